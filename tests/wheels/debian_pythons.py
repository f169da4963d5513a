# SPDX-License-Identifier: Apache-2.0
"""Pythons that this machine does not have, from Debian's unstable release: in folders, nothing is installed.

One for this machine runs with its own libc in a chroot, which only root can do. One for aarch64 runs under qemu-user on
x86-64.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

from wheel_files import ROOT, Wheel
from wheels.debian import Debian
from wheels.headers import ARCHITECTURES

DEBIAN = Debian(ROOT / "build/wheels/debian")
FOLDER = ROOT / "build/wheels/pythons"
PARTS = "python{0}-minimal libpython{0}-minimal libpython{0}-stdlib libc6 libexpat1 zlib1g libffi8 libssl3t64"
PARTS += " libbz2-1.0 liblzma5 libzstd1 libuuid1 libgcc-s1 libstdc++6"
LINKS = ("bin", "lib", "lib64")  # to those in usr; Debian's base-files has them
# What a process sees of this machine in the root folder "$1": "$2" is its /tmp.
IN_ROOT = """
set -e
for name in dev proc; do mkdir -p "$1/$name"; mount --rbind "/$name" "$1/$name"; done
mkdir -p "$1/tmp"; mount --bind "$2" "$1/tmp"
root=$1; shift 2
exec chroot "$root" "$@"
"""
PATIENCE_S = 600


def why_not(wheel: Wheel) -> str:
    """Says why a wheel cannot be tried here; "": it can."""
    if not DEBIAN.is_here():
        return "no Debian, from which a Python could be had"
    if wheel.machine != platform.machine():
        return "" if (wheel.machine, platform.machine()) == ("aarch64", "x86_64") else f"no emulator of {wheel.machine}"
    return "" if os.geteuid() == 0 else "only root can chroot"


def prepare(wheel: Wheel) -> Path:
    """Returns the root folder of a Python for the wheel, with NumPy and Pillow of the package index in /site."""
    root = FOLDER / f"{wheel.python}-{wheel.machine}"
    if not (root / "site").exists():
        architecture = ARCHITECTURES[wheel.machine]
        DEBIAN.unpack([f"{name}:{architecture}" for name in PARTS.format(wheel.python).split()], root)
        for link in LINKS:
            if (root / "usr" / link).exists() and not (root / link).exists():
                (root / link).symlink_to(f"usr/{link}")
        install_packages(wheel, root / "site")
    return root


def install_packages(wheel: Wheel, folder: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    target = [
        "--target",
        folder,
        "--python-version",
        wheel.python,
        "--python-platform",
        f"{wheel.machine}-manylinux_2_28",
    ]
    command = [uv, "pip", "install", "--python", sys.executable, "--only-binary", ":all:", *target, "numpy", "pillow"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def run(wheel: Wheel, scratch: Path, script: Path, *arguments: str) -> str:
    """Runs a script with the wheel in a folder; returns what it prints."""
    root = prepare(wheel)
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(scratch / "wheel")
    (scratch / script.name).write_bytes(script.read_bytes())
    interpreter = f"/usr/bin/python{wheel.python}"
    if wheel.machine == platform.machine():
        words = ["unshare", "--mount", "sh", "-c", IN_ROOT, "sh", root, scratch]
        words += [interpreter, f"/tmp/{script.name}", *arguments]
        paths = {"PYTHONPATH": "/tmp/wheel:/site"}
    else:
        words = [find_emulator(wheel.machine), "-L", root, f"{root}{interpreter}", script.name, *arguments]
        paths = {"PYTHONPATH": f"{scratch}/wheel:{root}/site"}
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", **paths}
    done = subprocess.run(
        list(map(str, words)), cwd=scratch, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def find_emulator(machine: str) -> Path:
    folder = FOLDER / "qemu"
    emulator = folder / f"usr/bin/qemu-{machine}"
    if not emulator.exists():
        DEBIAN.unpack([f"qemu-user:{ARCHITECTURES[platform.machine()]}"], folder)
    return emulator
