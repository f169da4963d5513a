# SPDX-License-Identifier: Apache-2.0
"""Finds the headrace program, which `python -m headrace` becomes for commands that are written in C.

A user names the interpreter in this way, whose folder of programs need not be in PATH: `python -m headrace run
train.py` starts the ranks with that interpreter, as `python -m torch.distributed.run train.py` does.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def _places() -> Iterator[Path]:
    """Yields where the program that was installed with this package can be."""
    packages = Path(__file__).resolve().parents[2]
    yield packages / "bin"  # pip install --target
    if len(packages.parents) > 2:
        yield packages.parents[2] / "bin"  # PREFIX/lib/python3.12/site-packages
    yield Path(sysconfig.get_path("scripts"))


def find() -> str | None:
    """Returns the path of the program headrace, or None if it is missing. That of this package comes first."""
    for place in _places():
        if os.access(path := place / "headrace", os.X_OK) and path.is_file():
            return str(path)
    return shutil.which("headrace")


def become(arguments: list[str]) -> int:
    """Replaces this process by the program. Returns the exit code of a usage error if that fails."""
    path = find()
    if path is None:
        looked = ", ".join(str(place) for place in _places())
        print(
            f"headrace: the program headrace, which has {' '.join(['the command', *arguments[:1]])}, is not in "
            f"{looked} or in PATH; install the package headrace again",
            file=sys.stderr,
        )
        return 2
    if arguments[:1] == ["run"]:
        os.environ.setdefault("PYTHON_EXEC", sys.executable)  # of the ranks
    os.environ.setdefault("HEADRACE_PYTHON", sys.executable)  # of commands that are written in Python
    try:
        os.execv(path, [path, *arguments])
    except OSError as error:
        print(f"headrace: cannot start {path}: {error.strerror}", file=sys.stderr)
        return 2
