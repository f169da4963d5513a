# SPDX-License-Identifier: Apache-2.0
"""What a worker leaves behind for the report on its end: stacks, and the end of what it wrote to stderr.

Both go to its box (headrace/crew.h), which the trainer reads. Text is kept as Python writes it to sys.stderr; what C
code writes to descriptor 2 is seen on the terminal only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import glob
import os
import signal
import sys
from typing import Any

from headrace import _core

STACK_SIGNAL = signal.SIGRTMAX - 5  # makes a worker write the stacks of its threads, whatever it is doing


def threads_without_ear(pid: int) -> set[str]:
    """The threads of a worker that have STACK_SIGNAL blocked: those of the user's that always have, and one that is
    writing stacks."""
    found: set[str] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        try:
            with open(path) as status:
                masks = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
        except OSError:  # it has just ended
            continue
        found.update(path for mask in masks if mask >> (STACK_SIGNAL - 1) & 1)
    return found


def _listen(stream: Any, port: _core.Port) -> None:
    """Keeps the end of what is written to a text stream in the worker's box, too. The stream stays the same object:
    logging's handlers have it since before the worker was forked."""
    write = stream.write

    def heard(text: str) -> Any:
        with contextlib.suppress(Exception):  # a worker that has closed its descriptors still writes
            port.log_stderr(text.encode("utf-8", "replace"))
        return write(text)

    with contextlib.suppress(AttributeError):  # a stream of a class of its own, without a __dict__
        stream.write = heard


def arm(port: _core.Port) -> None:
    """From here on fatal signals, and STACK_SIGNAL, leave stacks in the box, and so do words in sys.stderr. A
    faulthandler that the user has enabled writes there instead of to its own file. Handlers of fatal signals that are
    set later take its place."""
    fd = port.diagnostics_fd()
    if fd < 0:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # without stacks, then
        os.lseek(fd, _core.DIAGNOSTICS_STACK_AT, os.SEEK_SET)
        faulthandler.disable()  # one that the trainer has enabled would not be put in front of torch's handlers again
        faulthandler.enable(fd, all_threads=True)
        if signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
            faulthandler.register(STACK_SIGNAL, fd, all_threads=True)
    if sys.stderr is not None:
        _listen(sys.stderr, port)
