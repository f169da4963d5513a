# SPDX-License-Identifier: Apache-2.0
"""Records in a worker what the report on its end shows: stacks, and the end of what it wrote to stderr.

Both go to its diagnostics file (headrace/crew.h), which the trainer reads. Text is kept as Python writes it to
sys.stderr. What C code writes to descriptor 2 appears on the terminal only. The batch makers call
record_stacks_and_stderr; the crew uses STACK_SIGNAL on a worker that stalls.
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


def threads_that_block_stack_signal(pid: int) -> set[str]:
    """Returns the threads of a worker that have STACK_SIGNAL blocked: threads of the user that always block it, and a
    thread that is writing stacks."""
    found: set[str] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        try:
            with open(path) as status:
                masks = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
        except OSError:  # the thread has just ended
            continue
        found.update(path for mask in masks if mask >> (STACK_SIGNAL - 1) & 1)
    return found


def _copy_stderr(stream: Any, port: _core.Port) -> None:
    """Makes a text stream copy the end of what is written to it into the worker's diagnostics file. The stream stays
    the same object, because logging's handlers have had it since before the worker was forked."""
    write = stream.write

    def write_and_copy(text: str) -> Any:
        with contextlib.suppress(Exception):  # a worker that has closed its descriptors still writes
            port.log_stderr(text.encode("utf-8", "replace"))
        return write(text)

    with contextlib.suppress(AttributeError):  # the stream is of a class without a __dict__
        stream.write = write_and_copy


def record_stacks_and_stderr(port: _core.Port) -> None:
    """From this call on, fatal signals and STACK_SIGNAL write stacks to the diagnostics file, and text that is written
    to sys.stderr is copied there. A faulthandler that the user has enabled writes there instead of to its own file.
    Handlers of fatal signals that are set later take its place."""
    fd = port.diagnostics_fd()
    if fd < 0:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # without this, a report has no stacks
        os.lseek(fd, _core.DIAGNOSTICS_STACK_AT, os.SEEK_SET)
        faulthandler.disable()  # if the trainer has enabled it, enable() would not put it in front of torch's handlers
        faulthandler.enable(fd, all_threads=True)
        if signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
            faulthandler.register(STACK_SIGNAL, fd, all_threads=True)
    if sys.stderr is not None:
        _copy_stderr(sys.stderr, port)
