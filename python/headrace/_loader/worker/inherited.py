# SPDX-License-Identifier: Apache-2.0
"""Removes from a worker what it has inherited from the trainer and must not keep: see the table in docs/reliability.md.

A worker gets signal handlers by fork, from a fork server that has imported the script, and with spawn from the import
of the script's main module. They belong to the trainer: a handler that saves a checkpoint has to run once, and not once
per worker. WorkerDescriptors and main call this.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from headrace import _core
from headrace._base import signals
from headrace._loader.start import blocking
from headrace._loader.worker import diagnostics

_trainer = 0  # its process ID, in a worker
_kept: list[Any] = []  # event loops: deleting one would unregister the trainer's files from the epoll that both share


def raise_interrupt(number: int, frame: Any) -> None:
    """Raises KeyboardInterrupt, as the handler of SIGINT that Python starts with. asyncio.run replaces that one, and
    sets it again at its end: the worker would no longer ignore a SIGINT of other processes."""
    raise KeyboardInterrupt


def drop_handlers(mask: set[Any], is_forked: bool, trainer: int) -> None:
    """Replaces handlers written in Python by those that Python starts with, and lets SIGTERM end the process. Signals
    that are ignored stay ignored, as across an exec; handlers of C libraries and of faulthandler stay too. Ignores
    SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 that process `trainer` has not sent.

    `mask`: the signals that the trainer's thread has blocked. SIGINT stays blocked until blocking.unblock."""
    global _trainer
    _trainer = trainer
    signal.set_wakeup_fd(-1)  # otherwise a signal in this process would run the trainer's handler in the trainer
    for number in signals.handlers():
        signal.signal(number, raise_interrupt if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _core.Loader.ignore_others(trainer, signal.getsignal(signal.SIGINT) is raise_interrupt)
    if is_forked:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask | {signal.SIGINT})
    else:  # the script may have blocked signals when it was imported
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocking.GROUP - mask)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, diagnostics.STACK_SIGNAL})


@contextlib.contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Undoes what the block does to SIGTERM: torch's handler ends a worker. A handler that the dataset has set when it
    was unpickled stays."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
    _core.Loader.ignore_others(_trainer, False)  # the dataset may have set a handler of SIGINT


def drop_event_loop() -> None:
    """Makes asyncio create a new event loop in the forked worker when one is needed. From Python 3.12 on asyncio does
    so itself."""
    events: Any = sys.modules.get("asyncio.events")
    asyncio: Any = sys.modules.get("asyncio")
    policy = getattr(events, "_event_loop_policy", None)
    if sys.version_info < (3, 12) and type(policy) is getattr(asyncio, "DefaultEventLoopPolicy", None):
        _kept.append(policy)
        asyncio.set_event_loop_policy(None)
