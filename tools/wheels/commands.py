# SPDX-License-Identifier: Apache-2.0
"""Runs commands, measures them, and ends the program with one clear text if something is missing."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn


def fail(text: str) -> NoReturn:
    sys.exit(f"make wheels: {text}")


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Returns what the command prints. If it fails, its output is the last that this program prints."""
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words, cwd=cwd, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        fail(f"cannot run {words[0]}: {error}")
    output = result.stdout.decode(errors="replace")
    if result.returncode:
        fail(f"this failed with exit status {result.returncode}: {' '.join(words)}\n{output}")
    return output


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks a tar archive into an empty folder, and returns the one folder that it has."""
    shutil.rmtree(folder, ignore_errors=True)
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in Python 3.11.2
    with tarfile.open(archive) as files:
        files.extractall(folder, **safely)
    return next(folder.iterdir())


@contextmanager
def step(name: str) -> Iterator[None]:
    """Prints how long a step took, in seconds by the clock and of CPU."""
    began, cpu_began = time.monotonic(), cpu_seconds()
    yield
    print(f"{name}: {time.monotonic() - began:.0f} s, {cpu_seconds() - cpu_began:.0f} s of CPU", flush=True)


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
