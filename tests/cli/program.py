# SPDX-License-Identifier: Apache-2.0
"""The headrace program, as it is installed next to this interpreter."""

import contextlib
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PROGRAM = Path(sysconfig.get_path("scripts")) / "headrace"


def run(
    *arguments: str,
    program: Path = PROGRAM,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
    stdout: int | IO[str] = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Runs the program as in a terminal without colours."""
    pipes = {"stdout": stdout, "stderr": subprocess.PIPE}
    return subprocess.run([program, *arguments], cwd=cwd, env=env, input=stdin, text=True, timeout=100, **pipes)


@contextlib.contextmanager
def pipe_without_reader() -> Iterator[int]:
    """Gives the writing end of a pipe whose reader has gone, as `head` does."""
    ours, theirs = os.pipe()
    os.close(ours)
    yield theirs
    os.close(theirs)
