# SPDX-License-Identifier: Apache-2.0
"""Says what kind of program this process is, and finds the headrace program: `python -m headrace` becomes it, and a
loader with record= starts it."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def is_frozen() -> bool:
    """Returns True if sys.executable is this program and no interpreter: PyInstaller, cx_Freeze, PyOxidizer or Nuitka
    has made it. It must not be started with the options of an interpreter."""
    return bool(getattr(sys, "frozen", False)) or _is_compiled()


def frozen_method() -> str:
    """Returns the start method that replaces "headrace" in a frozen program: PyInstaller and cx_Freeze start
    multiprocessing's fork server, the others its new processes only."""
    return "spawn" if _is_compiled() else "forkserver"


def _is_compiled() -> bool:
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    return "__compiled__" in main or bool(getattr(sys, "oxidized", False))


def places() -> Iterator[Path]:
    """Yields where the program that was installed with this package can be."""
    packages = Path(__file__).resolve().parents[2]
    yield packages / "bin"  # pip install --target
    if len(packages.parents) > 2:
        yield packages.parents[2] / "bin"  # PREFIX/lib/python3.12/site-packages
    yield Path(sysconfig.get_path("scripts"))


def find() -> str | None:
    """Returns the path of the program headrace, or None if it is missing. That of this package comes first."""
    for place in places():
        if os.access(path := place / "headrace", os.X_OK) and path.is_file():
            return str(path)
    return shutil.which("headrace")
