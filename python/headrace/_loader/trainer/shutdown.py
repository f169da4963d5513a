# SPDX-License-Identifier: Apache-2.0
"""Ends the worker processes of a loader.

The engine calls close. The crew calls has_ended and reap_later when it replaces a worker, and register for each worker
that it starts.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from headrace import _core
from headrace._base import signals
from headrace._base.this_process import REAP_THREAD
from headrace._loader.trainer.snapshot import WorkerSnapshot

EXIT_CODE_S = 1.0  # how long to wait for the exit code of a dead worker

_workers: weakref.WeakSet[Any] = weakref.WeakSet()


End = Callable[[_core.Loader, float, bool], None]


def end(core: _core.Loader, timeout: float, have_ended: bool) -> None:
    """Frees what no batch uses. have_ended: all workers have."""
    core.close()


def close(core: _core.Loader, processes: list[Any], timeout: float, end: End) -> None:
    """Ends the workers within `timeout` seconds, and frees what no batch uses, by `end`. Signals that arrive in this
    time are handled afterwards."""
    deadline = time.monotonic() + timeout
    signals.without_signals(lambda: _close(core, processes, deadline, end))


def _close(core: _core.Loader, processes: list[Any], deadline: float, end_core: End) -> None:
    for worker, process in enumerate(processes):
        if WorkerSnapshot.of(core, worker).own_pid != process.pid:
            # This worker still imports modules, and would see the request to end only afterwards. It gets SIGKILL,
            # because a forked worker still has the trainer's handler of SIGTERM, which may save the state of the
            # training, or may be unable to run.
            process.kill()
    core.stop(max(0.1, deadline - time.monotonic()))
    end = min(deadline, time.monotonic() + EXIT_CODE_S)
    late = [process for process in processes if not has_ended(process, end)]
    end_core(core, max(0.1, deadline - time.monotonic()), not late)
    if late:
        reap_later(late)


def has_ended(process: Any, deadline: float) -> bool:
    """Reaps a process that has ended, and returns whether it has. A child is reaped at once; the exit code of a child
    of the fork server arrives a moment after its end. join() is not used: it would wait without limit for a process
    that has ended but cannot be reaped because a debugger holds it."""
    if process.is_alive():
        connection.wait([process.sentinel], max(0.0, deadline - time.monotonic()))
    return not process.is_alive()


def reap_later(processes: list[Any]) -> None:
    """Reaps killed processes in a thread. They end in a moment, or never if they hang in the kernel, and neither the
    caller nor the exit of this process waits for that."""
    multiprocessing.process._children.difference_update(processes)  # type: ignore[attr-defined]  # exit would wait

    def reap() -> None:
        for process in processes:
            process.join()

    with contextlib.suppress(RuntimeError):  # the interpreter is ending, and starts no more threads
        threading.Thread(target=reap, name=REAP_THREAD, daemon=True).start()


def register(process: Any) -> None:
    """Remembers a worker of this process, so that a process which is forked from this one does not end it."""
    _workers.add(process)


def _disown() -> None:
    """Runs in a forked child. Without this, multiprocessing would terminate the trainer's workers at the child's exit,
    as if they were the child's own."""
    multiprocessing.process._children.difference_update(_workers)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_disown)
