# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while workers start: the trainer raises KeyboardInterrupt, and no worker prints a traceback of its imports.

A worker that is started by fork or spawn is born with SIGINT blocked, and unblocks it where it can end in silence. A
fork server ignores SIGINT itself; its children print nothing before they have unpickled their job, which blocks it.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

from headrace import _forkserver


def is_blocked() -> bool:
    """Has the user blocked SIGINT in this thread? Then workers keep it so."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextlib.contextmanager
def blocked(context: Any) -> Iterator[None]:
    """Blocks SIGINT in this thread while it starts a process. A Ctrl-C of meanwhile is raised afterwards,
    unless another thread of a trainer with several takes it."""
    method = _forkserver.start_method_of(context)
    if method == "forkserver":  # a server that is started here would pass the block on to what others start by it
        yield
        return
    if method == "spawn":
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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


def end_by_sigterm() -> None:
    """In a worker, before worker_init_fn: SIGTERM ends it as such, so that its death names the signal. A handler that
    it has from the trainer by fork is the trainer's business, and would be run by each worker."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def block() -> None:
    """In a worker that is being unpickled: multiprocessing would print a KeyboardInterrupt from there to `unblock`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def unblock() -> None:
    """In a worker: KeyboardInterrupt from here on, also for a Ctrl-C of earlier."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
