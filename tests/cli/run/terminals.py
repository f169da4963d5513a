# SPDX-License-Identifier: Apache-2.0
"""A job in a terminal of its own, whose keys a test presses and whose screen it reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path
from typing import Any

from jobs import SLACK, Job


class Terminal:
    """Leaving the context ends the job and closes the terminal."""

    def __init__(self, folder: Path, code: str, *options: str, **settings: Any) -> None:
        self.master, slave = pty.openpty()
        self.screen = ""
        self.job = Job(
            folder,
            code,
            *options,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **settings,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.job.__exit__(*arguments)
        os.close(self.master)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, timeout_s: float) -> bool:
        """Reads what comes within this time. Returns False at the end: no process has the terminal open."""
        if not select.select([self.master], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)

    def await_text(self, pattern: str, expected_s: float = 2.0) -> re.Match[str]:
        """Waits for a pattern, and removes what is up to it from `screen`."""
        end = time.monotonic() + SLACK * expected_s
        while True:
            found = re.search(pattern, self.screen, re.MULTILINE)
            if found:
                self.screen = self.screen[found.end() :]
                return found
            assert time.monotonic() < end and self.read(0.1), f"no {pattern!r} in {self.screen!r}"

    def finish(self, expected_s: float = 2.0) -> int:
        """Waits for the end of headrace and reads the rest of the screen. Returns the exit code."""
        end = time.monotonic() + SLACK * expected_s
        while self.job.process.poll() is None:
            assert time.monotonic() < end, self.screen
            self.read(0.02)
        while self.read(0) and select.select([self.master], [], [], 0)[0]:
            pass
        return self.job.process.returncode

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)
