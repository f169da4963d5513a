# SPDX-License-Identifier: Apache-2.0
"""Blocks signals while workers start. After a Ctrl-C the trainer raises KeyboardInterrupt, and no worker prints a
traceback of its imports. The crew and the workers call this module.

A worker that is started by fork or spawn starts with SIGINT blocked, and unblocks it when it can end without a
traceback. A fork server ignores SIGINT, and its children block it. The signals of GROUP are blocked, too, until the
worker ignores those that its trainer has not sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

from headrace._base import signals
from headrace._loader.start import contexts

# Schedulers send these to the process group of a trainer that is to write a checkpoint, for which it needs its workers.
GROUP = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})


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
    others = signals.handlers() if method == "fork" else ()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *GROUP, *others})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block() -> None:
    """Blocks SIGINT in a worker that unpickles its arguments. Until `unblock`, multiprocessing would print a
    KeyboardInterrupt."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def unblock() -> None:
    """Unblocks SIGINT in a worker. From now on one of the trainer raises KeyboardInterrupt, including one that came
    earlier; others are ignored."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
