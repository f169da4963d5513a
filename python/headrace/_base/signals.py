# SPDX-License-Identifier: Apache-2.0
"""Runs code that no handler of a signal interrupts, and tells whether a handler raised the exception that ended a
call."""

from __future__ import annotations

import _thread
import contextlib
import inspect
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


_SIGNALS = tuple(map(int, signal.valid_signals()))
_FREEING_S = 2.0  # if an instruction takes that long after the last __del__, it is not the freeing that takes it
_get_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)  # without the enums, which take longer


def handlers() -> dict[int, Any]:
    """Returns the handlers that are functions in Python, by their signals."""
    found = ((number, _get_handler(number)) for number in _SIGNALS)
    return {number: handler for number, handler in found if callable(handler)}


@contextlib.contextmanager
def raised_later() -> Iterator[None]:
    """Raises a KeyboardInterrupt again after the __del__ that contains this block. In the __del__ it would be lost."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            freeing = _freeing()
        except KeyboardInterrupt:  # pressed twice
            freeing = _freeing()
        _thread.start_new_thread(_interrupt_after, (freeing,))


def _freeing() -> tuple[int, int] | None:
    """Returns the frame that frees the object of the outermost __del__, and where it is. A generator may be freed
    itself."""
    found = None
    for frame in _with_callers(sys._getframe(1)):
        if frame.f_code.co_name == "__del__" and frame.f_back is not None:
            found = frame.f_back
    while found is not None and found.f_code.co_flags & inspect.CO_GENERATOR and found.f_back is not None:
        found = found.f_back
    return None if found is None else (id(found), found.f_lasti)


def _interrupt_after(freeing: tuple[int, int] | None) -> None:
    """Sends SIGINT to the main thread once that has freed an object. Until then, Python prints and forgets exceptions:
    those of its __del__, and those of the callbacks of weak references to its attributes. A program that ends with the
    freeing ends without the interrupt."""
    main = threading.main_thread().ident
    assert main is not None
    deadline = time.monotonic() + _FREEING_S
    while freeing in (found := {(id(frame), frame.f_lasti): frame.f_code.co_name for frame in _frames_of(main)}):
        if "__del__" in found.values():
            deadline = time.monotonic() + _FREEING_S
        elif time.monotonic() > deadline:
            break
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)


def _frames_of(thread: int) -> Iterator[FrameType]:
    return _with_callers(sys._current_frames().get(thread))


def _is_handler(frame: FrameType) -> bool:
    """Returns True for the frame of a signal's handler: it was given the frame that it interrupted, its caller's."""
    names, varargs, _ = inspect.getargs(frame.f_code)
    values = [frame.f_locals.get(name) for name in names]
    values += frame.f_locals.get(varargs, ()) if varargs else ()
    return frame.f_back is not None and any(value is frame.f_back for value in values)


def is_from_signal(error: BaseException) -> bool:
    """Returns True if a signal's handler raised the exception, for example because of a Ctrl-C or a time limit. Such an
    exception does not mean that the interrupted code failed."""
    if isinstance(error, KeyboardInterrupt):
        return True
    # The frames that catch the exception are left out. They have it in a variable, and until Python 3.12 a frame whose
    # f_locals were read keeps a copy of its variables: a cycle would keep the exception, the iterator and its workers.
    catching = {id(frame) for frame in _with_callers(sys._getframe(1))}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_is_handler(frame) for frame in frames if id(frame) not in catching)


def _with_callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _set_handlers(wanted: dict[int, Any]) -> None:
    """Sets all of them, even if one of them is called in between and raises; its exception is raised at the end."""
    raised: BaseException | None = None
    for number, handler in wanted.items():
        try:
            signal.signal(number, handler)
        except BaseException as error:
            raised = error
            signal.signal(number, handler)
    try:
        if raised is not None:
            raise raised
    finally:
        del raised  # this frame is in its traceback: a cycle would keep all that the traceback refers to


def without_signals(function: Callable[[], _Result]) -> _Result:
    """Returns what function() returns. Signals that arrive while it runs are handled afterwards, so that no handler can
    raise an exception between its steps. For what happens rarely."""
    if threading.current_thread() is not threading.main_thread():
        return function()  # handlers run in the main thread only
    arrived: set[int] = set()
    handlers_before = handlers()
    wakeup = signal.set_wakeup_fd(-1)  # asyncio would handle the signal twice
    try:
        _set_handlers(dict.fromkeys(handlers_before, lambda number, frame: arrived.add(number)))
        return function()
    finally:
        _set_handlers(handlers_before)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        _raise_all(arrived)


def _raise_all(numbers: set[int]) -> None:
    """Raises each of the signals, also after the handler of one has raised an exception, which is raised at the end."""
    raised: BaseException | None = None
    for number in numbers:
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raised = error
    try:
        if raised is not None:
            raise raised
    finally:
        del raised  # this frame is in its traceback: a cycle would keep all that the traceback refers to
