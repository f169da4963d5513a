# SPDX-License-Identifier: Apache-2.0
"""Takes from a worker what it has inherited from the trainer and must not keep: see the table in docs/reliability.md.

Signal handlers come by fork, from a fork server that has imported the script, and with spawn from the import of the
script's main module. They belong to the trainer: "save a checkpoint" is to run once, and not once per worker.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from headrace._start import signals
from headrace._worker import diagnostics

_kept: list[Any] = []  # event loops: deleting one would unregister the trainer's files from the epoll that both share


def drop_handlers(mask: set[Any] | None) -> None:
    """Sets handlers written in Python back to those that Python begins with, and lets SIGTERM end the process. What is
    ignored stays ignored, as across an exec; handlers of C libraries and of faulthandler stay, too. `mask`: the signals
    that the trainer's thread has blocked; None leaves them as they are. SIGINT stays blocked: see _interrupt."""
    signal.set_wakeup_fd(-1)  # by which a signal here would run the trainer's handler there
    for number in signals.handled():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask | {signal.SIGINT})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, diagnostics.STACK_SIGNAL})


def drop_event_loop() -> None:
    """Lets asyncio make a loop of the forked worker's own when it is asked for one. It does so itself from Python 3.12
    on."""
    events: Any = sys.modules.get("asyncio.events")
    asyncio: Any = sys.modules.get("asyncio")
    policy = getattr(events, "_event_loop_policy", None)
    if sys.version_info < (3, 12) and type(policy) is getattr(asyncio, "DefaultEventLoopPolicy", None):
        _kept.append(policy)
        asyncio.set_event_loop_policy(None)
