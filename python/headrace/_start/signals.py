# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while workers start: the trainer raises KeyboardInterrupt, and no worker prints a traceback of its imports.

A worker that is started by fork or spawn is born with SIGINT blocked, and unblocks it where it can end in silence. A
fork server ignores SIGINT itself; its children print nothing before they have unpickled their job, which blocks it.
"""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from headrace._start import forkserver

_Result = TypeVar("_Result")


def handled() -> set[int]:
    """Returns the signals that run a function in Python."""
    return {number for number in signal.valid_signals() if callable(signal.getsignal(number))}


def is_blocked() -> bool:
    """Has the user blocked SIGINT in this thread? Then workers keep it so."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextlib.contextmanager
def blocked(context: Any) -> Iterator[None]:
    """Blocks SIGINT in this thread while it starts a process. A Ctrl-C of meanwhile is raised afterwards,
    unless another thread of a trainer with several takes it. For a fork it blocks each signal that has a handler, which
    would otherwise run in the worker too, until headrace._worker.inherited drops it there."""
    method = forkserver.start_method_of(context)
    if method == "forkserver":  # a server that is started here would pass the block on to what others start by it
        yield
        return
    if method == "spawn" and not multiprocessing.current_process().daemon:  # a daemon may start no process
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
    others = handled() if method == "fork" else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *others})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def raised_later() -> Iterator[None]:
    """For a __del__, where a KeyboardInterrupt would be lost: it is raised again when the __del__ has ended."""
    try:
        yield
    except KeyboardInterrupt:
        # The thread runs once this one lets go of the interpreter.
        main = threading.main_thread().ident
        assert main is not None
        _thread.start_new_thread(signal.pthread_kill, (main, signal.SIGINT))


def _code_of(handler: Any) -> Any:
    """Returns the code that a signal's handler runs, or None."""
    handler = getattr(handler, "func", handler)  # functools.partial
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004  # an object with __call__
    return getattr(handler, "__code__", None)


def _handlers() -> dict[int, Any]:
    """Returns the handlers that are written in Python, by their signals."""
    return {number: signal.getsignal(number) for number in handled()}


def is_from_signal(error: BaseException) -> bool:
    """Returns True if a handler of a signal raised the exception, as for a Ctrl-C or a time limit. Such an exception
    says nothing about the code that it was raised in."""
    if isinstance(error, KeyboardInterrupt):
        return True
    codes = set(map(_code_of, _handlers().values())) - {None}
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in frames)


def _set_handlers(handlers: dict[int, Any]) -> None:
    """Sets all of them, even if one of them is called in between and raises; its exception is raised at the end."""
    raised: BaseException | None = None
    for number, handler in handlers.items():
        try:
            signal.signal(number, handler)
        except BaseException as error:
            raised = error
            signal.signal(number, handler)
    if raised is not None:
        raise raised


def without_signals(function: Callable[[], _Result]) -> _Result:
    """Returns what function() returns. Signals that arrive while it runs are handled afterwards, so that no handler can
    raise an exception between its steps. For what takes milliseconds and happens rarely."""
    if threading.current_thread() is not threading.main_thread():
        return function()  # handlers run in the main thread only
    arrived: list[int] = []
    handlers = _handlers()
    try:
        _set_handlers(dict.fromkeys(handlers, lambda number, frame: arrived.append(number)))
        return function()
    finally:
        _set_handlers(handlers)
        for number in arrived:
            signal.raise_signal(number)


def block() -> None:
    """In a worker that is being unpickled: multiprocessing would print a KeyboardInterrupt from there to `unblock`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def unblock() -> None:
    """In a worker: KeyboardInterrupt from here on, also for a Ctrl-C of earlier."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
