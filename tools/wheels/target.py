# SPDX-License-Identifier: Apache-2.0
"""A machine that wheels are built for, and the compiler for it: zig, with the symbols of glibc 2.17."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from wheels.commands import fail

GLIBC = (2, 17)
MACHINES = ("x86_64", "aarch64")
# zig adds checks for undefined behaviour unless it is told not to. The linker drops symbols and the debug sections that
# zig's own files of libc have, with the paths of this machine.
C_FLAGS = ["-g0", "-fno-sanitize=undefined", "-ffunction-sections", "-fdata-sections"]
LINK_FLAGS = ["-Wl,--strip-all", "-Wl,--gc-sections"]

CROSS_FILE = """\
[binaries]
c = '{folder}/bin/cc'
ar = '{folder}/bin/ar'
python = '{folder}/bin/python'
pkg-config = '{tools}/pkgconf'

[built-in options]
c_args = {c_args}
c_link_args = {link_args}

[properties]
pkg_config_libdir = {pkg_config}
needs_exe_wrapper = true

[host_machine]
system = 'linux'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'
"""


@dataclass(frozen=True)
class Target:
    machine: str
    folder: Path  # of everything that is built for this machine
    tools: Path = field(default_factory=lambda: Path(sys.prefix) / "bin")

    @property
    def tag(self) -> str:
        return "manylinux_{}_{}_".format(*GLIBC) + self.machine

    @property
    def cross_file(self) -> Path:
        return self.folder / "cross.ini"

    @property
    def environment(self) -> dict[str, str]:
        cache = str(self.folder / "zig-cache")
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        return {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, "PATH": path}

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def prefix(self, library: str) -> Path:
        """The folder into which a library is installed."""
        return self.folder / "libraries" / library

    def prepare(self, libraries: Iterable[str]) -> None:
        """Writes the commands that call zig, and meson's cross file, with which meson finds the libraries."""
        (self.folder / "bin").mkdir(parents=True, exist_ok=True)
        zig = find_zig()
        triple = "{}-linux-gnu.{}.{}".format(self.machine, *GLIBC)
        for name, words in {"cc": f"cc -target {triple}", "ar": "ar", "ranlib": "ranlib"}.items():
            write_program(self.program(name), f'exec "{zig}" {words} "$@"')
        text = CROSS_FILE.format(
            folder=self.folder,
            tools=self.tools,
            machine=self.machine,
            c_args=C_FLAGS,
            link_args=LINK_FLAGS,
            pkg_config=[str(self.prefix(library) / "lib/pkgconfig") for library in libraries],
        )
        self.cross_file.write_text(text)


def write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def find_zig() -> Path:
    try:
        import ziglang  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        fail(
            "ziglang is not installed; run `make wheels`, which installs requirements-wheels.txt into build/wheel-tools"
        )
    return Path(ziglang.__file__).parent / "zig"
