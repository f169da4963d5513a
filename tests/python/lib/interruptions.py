# SPDX-License-Identifier: Apache-2.0
"""Interrupts next() at every place: a signal's handler raises an exception before the n-th instruction of its Python
code, for each n."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

import headrace

_PACKAGE = headrace.__path__[0]
_RAISING = ("/signal.py", "/enum.py", "/traceback.py", "torch/_utils.py")  # what raises a worker's exception again
_TORCHS = ("torch/utils/data/dataloader.py", "torch/utils/data/sampler.py", "torch/utils/data/_utils/fetch.py")


class Interruption(Exception):
    """Raised by the signal's handler."""


def _raise(number: int, frame: Any) -> None:
    raise Interruption


def is_of_loader(filename: str) -> bool:
    """Returns True for the code between the user's loop and the user's dataset."""
    return filename.startswith(_PACKAGE) or filename.endswith((*_TORCHS, *_RAISING))


def _apart(iterator: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Gives what next() returns, or nothing at the end. CPython forgets to end an exception that is being handled when
    tracing raises another, and it would keep the loader. A generator has an own one, which ends with it."""
    try:
        found: tuple[Any, ...] = (next(iterator),)
    except StopIteration:
        found = ()
    yield found


class Interrupter:
    """Calls next() and interrupts it. `place`: the number of the instruction; it goes up by `step` at each call, and
    begins again after the last one. `rounds`: how often that happened. `interruptions`: of all calls."""

    def __init__(self, step: int = 1) -> None:
        self.step = step
        self.place = 1
        self.rounds = 0
        self.interruptions = 0
        self._passed = 0

    def __enter__(self) -> Interrupter:
        self._handler = signal.signal(signal.SIGUSR1, _raise)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGUSR1, self._handler)

    def _in_frame(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "opcode":
            self._passed += 1
            if self._passed == self.place:
                signal.raise_signal(signal.SIGUSR1)
        return self._in_frame

    def _at_call(self, frame: Any, event: str, argument: Any) -> Any:
        if not is_of_loader(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._in_frame

    def next(self, iterator: Iterator[Any]) -> Any:
        """Returns what next(iterator) returns, after it was interrupted once, if it has so many instructions."""
        self._passed = 0
        before = sys.gettrace()
        sys.settrace(self._at_call)
        try:
            found = next(_apart(iterator))
        except Interruption:
            self.place += self.step
            self.interruptions += 1
        except ValueError:
            self.place, self.rounds = 1, self.rounds + 1
            raise
        else:
            if not found:
                raise StopIteration
            self.place, self.rounds = 1, self.rounds + 1
            return found[0]
        finally:
            sys.settrace(before)
        return next(iterator)

    def all_of(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Goes through an iterator, with each next() interrupted. What it raises is given, too."""
        while True:
            try:
                yield self.next(iterator)
            except StopIteration:
                return
            except ValueError as error:
                yield error
