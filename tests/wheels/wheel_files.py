# SPDX-License-Identifier: Apache-2.0
"""Finds the wheels that `make wheels` has built, and reads what is inside."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
IS_WANTED = "HEADRACE_WHEELS" in os.environ  # set by make test-wheels: these tests take minutes and need the network
NAME = re.compile(
    r"headrace-(?P<version>[^-]+)-cp3(?P<minor>\d+)-cp3\d+-manylinux_2_17_(?P<machine>x86_64|aarch64)\.whl"
)
WHY_MISSING = "make wheels builds what make test-wheels tests"


@dataclass(frozen=True)
class Wheel:
    path: Path

    @property
    def _parts(self) -> dict[str, str]:
        found = NAME.fullmatch(self.path.name)
        assert found, f"{self.path.name} has another name than a wheel of headrace for glibc 2.17"
        return found.groupdict()

    @property
    def version(self) -> str:
        return self._parts["version"]

    @property
    def machine(self) -> str:
        return self._parts["machine"]

    @property
    def python(self) -> str:
        return "3." + self._parts["minor"]

    @property
    def info(self) -> str:
        return f"headrace-{self.version}.dist-info"

    @property
    def extension(self) -> str:
        return f"headrace/_core.cpython-{self.python.replace('.', '')}-{self.machine}-linux-gnu.so"

    @property
    def program(self) -> str:
        return f"headrace-{self.version}.data/scripts/headrace"

    def read(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def list_wheels() -> list[Wheel]:
    return [Wheel(path) for path in sorted(DIST.glob("*.whl"))] if IS_WANTED else []


def ask_readelf(file: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, str(file)], check=True, capture_output=True, text=True).stdout


def list_needed(file: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", ask_readelf(file, "--dynamic")))


def list_search_paths(file: Path) -> list[str]:
    return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", ask_readelf(file, "--dynamic"))


def list_sections(file: Path) -> list[str]:
    return re.findall(r"^ *\[ *\d+\] (\.\S+)", ask_readelf(file, "--sections"), re.MULTILINE)


def list_exported(file: Path) -> list[str]:
    """The names of all symbols that the file defines for others."""
    rows = (line.split() for line in ask_readelf(file, "--dyn-syms").splitlines())
    kept = (row for row in rows if len(row) > 7 and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND")
    return [row[7] for row in kept]


def list_glibc_versions(file: Path) -> set[tuple[int, ...]]:
    """The versions of glibc's symbols that the file asks for."""
    names = re.findall(r"GLIBC_([0-9.]+)", ask_readelf(file, "--version-info"))
    return {tuple(map(int, name.split("."))) for name in names}


def find_machine(file: Path) -> str:
    named = re.findall(r"Machine: +(.+)", ask_readelf(file, "--file-header"))[0]
    return {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}[named]
