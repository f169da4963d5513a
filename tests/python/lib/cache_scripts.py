# SPDX-License-Identifier: Apache-2.0
"""Scripts that use the cache, in processes of their own, which share a folder with the test."""

from __future__ import annotations

import pathlib
import subprocess
import textwrap
import time

from processes import start_python

PATIENCE_S = 100.0
_HEAD = """
import os, pathlib, sys, time
import numpy as np
import headrace
events = pathlib.Path(os.environ["EVENTS"])
def note(name): (events / name).touch()
def await_(name, deadline=time.monotonic() + 100):
    while not (events / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.002)
"""


class Scripts:
    """Starts scripts and waits for the files by which they tell how far they are: `note` and `await_` in a script."""

    def __init__(self, events: pathlib.Path) -> None:
        self._events = events
        self._started: list[subprocess.Popen[str]] = []

    def start(self, text: str, **environment: str) -> subprocess.Popen[str]:
        code = _HEAD + textwrap.dedent(text)
        process = start_python(self._events, "-c", code, EVENTS=str(self._events), **environment)
        self._started.append(process)
        return process

    def note(self, name: str) -> None:
        (self._events / name).touch()

    def await_(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (self._events / name).exists():
            for process in self._started:
                assert process.poll() in (None, 0, -9, -15), process.communicate()
            assert time.monotonic() < deadline, f"{name} did not come"
            time.sleep(0.002)

    def end(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        """Waits for the end of a script; returns its output and its errors."""
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, (process.returncode, out, err)
        return out, err

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def sleeping_in(pid: int) -> str:
    """Returns the function of the kernel in which a process sleeps."""
    try:
        return pathlib.Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
