# SPDX-License-Identifier: Apache-2.0
"""Handles signals while workers start. After a Ctrl-C the trainer raises KeyboardInterrupt, and no worker prints a
traceback of its imports. The crew, the iterators and the workers call this module.

A worker that is started by fork or spawn starts with SIGINT blocked, and unblocks it when it can end without a
traceback. A fork server ignores SIGINT. Its children print nothing before they unpickle their arguments, which block
it. The signals of GROUP are blocked, too, until the worker ignores those that its trainer has not sent.

It also tells whether a signal's handler raised the exception that ended a call.
"""

from __future__ import annotations

import _thread
import contextlib
import inspect
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, TypeVar

from headrace._loader.start import contexts

_Result = TypeVar("_Result")


# Schedulers send these to the process group of a trainer that is to write a checkpoint, for which it needs its workers.
GROUP = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
_SIGNALS = tuple(map(int, signal.valid_signals()))
_get_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)  # without the enums, which take longer


def handlers() -> dict[int, Any]:
    """Returns the handlers that are functions in Python, by their signals."""
    found = ((number, _get_handler(number)) for number in _SIGNALS)
    return {number: handler for number, handler in found if callable(handler)}


def is_blocked() -> bool:
    """Returns True if the user has blocked SIGINT in this thread. It then stays blocked in workers."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextlib.contextmanager
def blocked(context: Any) -> Iterator[None]:
    """Blocks SIGINT and GROUP in this thread while it starts a process. A Ctrl-C that arrives in between is raised
    afterwards, unless another thread of the trainer receives it. For a fork it blocks all signals that have a handler,
    because the handler would otherwise run in the worker too, until _loader/worker/inherited.py removes it there."""
    method = contexts.start_method_of(context)
    if method == "forkserver":  # a server that is started here would pass the block on to all its children
        yield
        return
    if method == "spawn" and not multiprocessing.current_process().daemon:  # a daemon may start no process
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
    others = handlers() if method == "fork" else ()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *GROUP, *others})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def raised_later() -> Iterator[None]:
    """Raises a KeyboardInterrupt again after the __del__ that contains this block. In the __del__ it would be lost."""
    try:
        yield
    except KeyboardInterrupt:
        # The thread runs when this one releases the interpreter.
        main = threading.main_thread().ident
        assert main is not None
        _thread.start_new_thread(signal.pthread_kill, (main, signal.SIGINT))


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
    return any(_is_handler(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _set_handlers(wanted: dict[int, Any]) -> None:
    """Sets all of them, even if one of them is called in between and raises; its exception is raised at the end."""
    raised: BaseException | None = None
    for number, handler in wanted.items():
        try:
            signal.signal(number, handler)
        except BaseException as error:
            raised = error
            signal.signal(number, handler)
    if raised is not None:
        raise raised


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
    if raised is not None:
        raise raised


def block() -> None:
    """Blocks SIGINT in a worker that unpickles its arguments. Until `unblock`, multiprocessing would print a
    KeyboardInterrupt."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def unblock() -> None:
    """Unblocks SIGINT in a worker. From now on a Ctrl-C raises KeyboardInterrupt, including one that came earlier."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
