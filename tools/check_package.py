# SPDX-License-Identifier: Apache-2.0
"""Builds what users install, from a clean checkout: an sdist, from it a wheel, and with meson the C library.

The wheel has the package, the program and no C library; the C library is found by pkg-config and links.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from common import ROOT, list_files

PROGRAM = """
#include <headrace/headrace.h>
#include <stdio.h>
int main(void) { return puts(hr_version()) < 0; }
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    result = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"$ {' '.join(words)}\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(holds: bool, complaint: str) -> None:
    if not holds:
        sys.exit(complaint)


def make_checkout(folder: Path) -> Path:
    """A clean checkout of what is here now: a commit that has it, for `meson dist` takes what is committed."""
    for path in list_files(ROOT):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    run("git", "init", "-q", cwd=folder)
    run("git", "add", "-A", cwd=folder)
    author = ["-c", "user.name=check", "-c", "user.email=check@localhost", "-c", "commit.gpgsign=false"]
    run("git", *author, "commit", "-q", "-m", "A clean checkout", cwd=folder)
    return folder


def build(kind: str, source: Path, to: Path) -> Path:
    """An sdist or a wheel, by the same hooks that pip calls."""
    hook = f"import mesonpy, sys; print(mesonpy.build_{kind}(sys.argv[1]))"
    name = run(sys.executable, "-c", hook, to, cwd=source).splitlines()[-1]
    return to / name


def unpack_sdist(sdist: Path, to: Path) -> Path:
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in Python 3.11.2
    with tarfile.open(sdist) as archive:
        archive.extractall(to, **safely)
    return next(to.iterdir())


def check_wheel(wheel: Path, version: str, scratch: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    expect(f"-{version}-" in wheel.name, f"{wheel.name}: not version {version}")
    for wanted in ("headrace/__init__.py", "headrace/py.typed", "headrace/_core.pyi"):
        expect(wanted in names, f"{wheel.name}: lacks {wanted}")
    expect(any(name.startswith("headrace/_core.") and name.endswith(".so") for name in names), "no extension")
    foreign = [name for name in names if name.endswith((".a", ".h", ".pc", ".c"))]
    expect(not foreign, f"{wheel.name}: has {foreign}")
    run("uv", "pip", "install", "--no-deps", "--target", scratch / "site", wheel, cwd=scratch)
    said = run(scratch / "site/bin/headrace", "--version", cwd=scratch)
    expect(said == f"headrace {version}\n", f"the wheel's program says {said!r}")
    imports = "import headrace, headrace._core; print(headrace.__file__)"
    where = run(sys.executable, "-c", imports, cwd=scratch, env={"PYTHONPATH": str(scratch / "site")})
    expect(where.startswith(str(scratch)), f"imported {where} instead of the wheel's package")


def check_c_library(checkout: Path, version: str, scratch: Path) -> None:
    run("meson", "setup", "build", "--prefix", scratch / "usr", "--libdir=lib", "-Dpython=disabled", cwd=checkout)
    run("meson", "install", "-C", "build", cwd=checkout)
    where = {"PKG_CONFIG_PATH": str(scratch / "usr/lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "--static", "headrace", cwd=scratch, env=where).split()
    (scratch / "program.c").write_text(PROGRAM)
    run("cc", "program.c", "-o", "program", *flags, cwd=scratch)
    said = run(scratch / "program", cwd=scratch)
    expect(said == f"{version}\n", f"a program linked with the installed library says {said!r}")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        checkout = make_checkout(scratch / "checkout")
        sdist = build("sdist", checkout, scratch)
        version = sdist.name.removeprefix("headrace-").removesuffix(".tar.gz")
        check_wheel(build("wheel", unpack_sdist(sdist, scratch / "unpacked"), scratch), version, scratch)
        check_c_library(checkout, version, scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
