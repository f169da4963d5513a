# SPDX-License-Identifier: Apache-2.0
"""Finds the headrace program: `python -m headrace` becomes it, and a loader with record= starts it."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path


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
