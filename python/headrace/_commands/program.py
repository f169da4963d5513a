# SPDX-License-Identifier: Apache-2.0
"""The headrace program, which `python -m headrace` becomes for commands that are written in C.

A user names the interpreter in this way, whose folder of programs need not be in PATH: `python -m headrace run
train.py` starts the ranks with that interpreter, as `python -m torch.distributed.run train.py` does.
"""

from __future__ import annotations

import os
import sys

from headrace._base import program


def become(arguments: list[str]) -> int:
    """Replaces this process by the program. Returns the exit code of a usage error if that fails."""
    path = program.find()
    if path is None:
        looked = ", ".join(str(place) for place in program.places())
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
