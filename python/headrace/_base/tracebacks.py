# SPDX-License-Identifier: Apache-2.0
"""Shows the user's frames first: leaves headrace's own frames out of the traceback of an exception of the user's code.

The exception, its cause, its context and its notes stay as they are. HEADRACE_TRACEBACK=full leaves all frames in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])
_sent: set[CodeType] = set()  # of the functions that raise what another process has sent


def raises_what_was_sent(function: _Function) -> _Function:
    """Marks a function that raises an exception of another process, whose frames are in its message."""
    _sent.add(function.__code__)
    return function


def _is_from(trace: TracebackType, package: str) -> bool:
    name = dict.get(trace.tb_frame.f_globals, "__name__")
    return type(name) is str and (name == package or name.startswith(package + "."))


def _is_own(trace: TracebackType) -> bool:
    return _is_from(trace, "headrace")


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without headrace's frames before the first one of the user's code; those of torch stay. One
    that ends in headrace, without a frame of the user, is returned as it is, unless it only raises what was sent."""
    if trace is None or os.environ.get("HEADRACE_TRACEBACK") == "full":
        return trace
    entries = [trace]
    while entries[-1].tb_next is not None:
        entries.append(entries[-1].tb_next)
    count = next((i for i, one in enumerate(entries) if not (_is_own(one) or _is_from(one, "torch.utils.data"))), None)
    if count is None:
        if _is_own(entries[-1]):
            return entries[-1] if entries[-1].tb_frame.f_code in _sent else trace
        count = len(entries)
    shown = entries[count] if count < len(entries) else None
    for one in reversed(entries[:count]):
        if not _is_own(one):
            is_same = one.tb_next is shown
            shown = one if is_same else TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown


def cut(error: Exception) -> None:
    """Cuts the traceback of an exception that was caught. The function that has caught it does `raise error` next: a
    bare `raise` restores the whole traceback on Python 3.10."""
    caught = error.__traceback__
    BaseException.with_traceback(error, None if caught is None else users_part(caught.tb_next))
