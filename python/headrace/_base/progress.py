# SPDX-License-Identifier: Apache-2.0
"""Shows how far a long work is, with its rate and the time that is left: a line that changes on a terminal, a new line
every ten seconds elsewhere, for example in a log file."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from headrace._base.units import in_duration

_TERMINAL_S, _FILE_S = 0.2, 10.0


class Progress:
    """Counts up to `total`. is_shown: None: on a terminal only; True: everywhere."""

    def __init__(self, name: str, total: int, is_shown: bool | None = None, stream: TextIO | None = None) -> None:
        self._name, self._total, self._done = name, total, 0
        self._stream = sys.stderr if stream is None else stream
        try:
            self._is_terminal = self._stream.isatty()
        except (AttributeError, ValueError):  # it is None, or closed
            self._is_terminal = is_shown = False
        self._is_shown = self._is_terminal if is_shown is None else is_shown
        self._start = self._last = time.monotonic()
        self._has_line = False

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._is_shown and now - self._last >= (_TERMINAL_S if self._is_terminal else _FILE_S):
            self._last = now
            self._write(now)

    def _write(self, now: float) -> None:
        rate = self._done / max(now - self._start, 1e-9)
        left = in_duration((self._total - self._done) / rate) if rate else "unknown time"
        share = 100 * self._done // max(self._total, 1)
        text = f"{self._name}: {share} %, {self._done:,} of {self._total:,}, {rate:,.0f}/s, {left} left"
        end = "\033[K" if self._is_terminal else "\n"
        print(f"\r{text}" if self._is_terminal else text, end=end, file=self._stream, flush=True)
        self._has_line = self._is_terminal

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._has_line:
            print("\r\033[K", end="", file=self._stream, flush=True)
        elif self._is_shown:
            seconds = in_duration(time.monotonic() - self._start)
            print(f"{self._name}: {self._done:,} of {self._total:,} in {seconds}", file=self._stream, flush=True)
