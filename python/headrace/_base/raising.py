# SPDX-License-Identifier: Apache-2.0
"""Sends an exception from a worker to the trainer, and makes it again there.

Whatever the class of the exception does, the original text and traceback arrive. The batch makers wrap exceptions in
Sent; the iterators raise what `remade` returns.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace._base import exception_text, tracebacks


def traceback_of(error: BaseException) -> str:
    """Returns the traceback as Python prints it, without headrace's frames above the user's code, or a shorter one if a
    part of the exception refuses to be printed."""
    trace = tracebacks.users_part(error.__traceback__)
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        frames = "".join(traceback.format_tb(trace))
        return f"Traceback (most recent call last):\n{frames}{exception_text.in_words(error)}\n"


@dataclass(frozen=True)
class Sent:
    """An exception as a worker sends it: the pickled object that raises it again, and always its text.

    The object is pickled on its own, because its class may not be importable in the trainer."""

    pickled: bytes | None
    text: str

    @classmethod
    def of(cls, wrapped: object, text: str) -> Sent:
        try:
            return cls(bytes(ForkingPickler.dumps(wrapped)), text)
        except Exception as error:
            return cls(None, f"{exception_text.in_words(error)}\nwhile sending:\n{text}")

    def open(self) -> Any:
        """Returns the object. If it cannot be unpickled, returns a str with the text and the reason."""
        if self.pickled is None:
            return self.text
        try:
            return pickle.loads(self.pickled)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module that is imported to unpickle it may raise anything
            return f"{exception_text.in_words(error)}\nwhile receiving:\n{self.text}"


def remade(make: Callable[[], Any], kind: Any, text: str) -> BaseException:
    """Returns the exception that `make` returns or raises, if it can be printed and is of the class `kind` or shows the
    text. Otherwise returns a RuntimeError with the text. An exception whose own message does not show the text gets it
    as a note, or as its cause."""
    try:
        error = make()
    except KeyboardInterrupt:  # the user pressed Ctrl-C
        raise
    except BaseException as raised:
        error = BaseException.with_traceback(raised, None)  # its frames refer to it: a reference cycle
    if not isinstance(error, BaseException):
        return RuntimeError(text)
    if not _can_be_printed(error):
        return RuntimeError(text)
    if _shows(error, text):
        return error
    if not (isinstance(kind, type) and isinstance(error, kind)):
        return RuntimeError(text)
    if not exception_text.add_note(error, text):
        vars(BaseException)["__cause__"].__set__(error, RuntimeError(text))  # a frozen class refuses an assignment
    return error


def _can_be_printed(error: BaseException) -> bool:
    try:
        traceback.format_exception_only(type(error), error)
    except Exception:
        return False
    return True


def _shows(error: BaseException, text: str) -> bool:
    try:
        return text in str(error)
    except Exception:  # the __str__ of its class raised it
        return False
