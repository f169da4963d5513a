# SPDX-License-Identifier: Apache-2.0
"""Carries an exception of a worker to the trainer: the batch maker makes it, and the iterator raises it again."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import NoReturn

from headrace._base import exception_text, raising, signals, tracebacks


class _Lines(str):
    """A text for the message of a KeyError, which shows the repr of its argument: this repr keeps the lines."""

    def __repr__(self) -> str:
        return str(self)


@dataclass
class WorkerError:
    """An exception of a worker, as it is sent to the trainer."""

    type: type[BaseException]
    text: str

    def remade(self, note: str) -> BaseException:
        """Returns an exception of the same type with the worker's traceback as its message, and with the note. A
        StopIteration becomes a RuntimeError, as in a generator, because it would end the loop without a message."""
        text = self.text if sys.version_info >= (3, 11) or not note else f"{self.text.rstrip()}\n{note}"
        error = raising.remade(lambda: self._make(text), self.type, text)
        exception_text.add_note(error, note)
        return error

    def _make(self, text: str) -> BaseException:
        kind = RuntimeError if issubclass(self.type, StopIteration) else self.type
        return kind(_Lines(text) if issubclass(kind, KeyError) else text)


def _error_of(sent: raising.Sent, note: str) -> BaseException:
    found = sent.open()
    if not isinstance(found, WorkerError):
        found = WorkerError(RuntimeError, found)
    return found.remade(note)


@tracebacks.raises_what_was_sent
def reraise(sent: raising.Sent, note: str) -> NoReturn:
    """Raises the exception that a worker sent, with a note about where it came from."""
    # Without signals, because the code of the exception's class may raise anything: the exception of a signal's handler
    # would be taken for that.
    error = signals.without_signals(functools.partial(_error_of, sent, note))
    try:
        raise error
    finally:
        del error  # this frame is in its traceback: a cycle would keep all that the traceback refers to
