# SPDX-License-Identifier: Apache-2.0
"""The file descriptors that a worker needs to open its port. The crew makes them and sends them to the new process."""

from __future__ import annotations

import os
import signal
from multiprocessing import reduction
from typing import Any

from headrace import _core
from headrace._loader.start import blocking, gc_pause
from headrace._loader.worker import inherited

# The place of the pipe that closes with the trainer, among the descriptors that Loader.open_worker_fds returns.
_LIFE = 3


class WorkerDescriptors:
    """The descriptors that a worker opens its port with. They are sent by pickle when the process is started, unless it
    is forked. Unpickling them is the first thing of headrace's that runs in a worker, so it also prepares the process
    for the rest: signals, the garbage collector, and the death of the trainer."""

    def __init__(self, worker: int, *fds: int) -> None:
        self.worker = worker
        self.trainer = os.getpid()
        self.fds: list[Any] = list(fds)
        self.mask: set[Any] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.is_forked = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fds": [reduction.DupFd(fd) for fd in self.fds]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.check_process()
        self.is_forked = False  # main need not drop the handlers again
        blocking.block()
        # Before the dataset is unpickled, which may set handlers of its own.
        inherited.drop_handlers(self.mask, False, self.trainer)
        gc_pause.freeze()  # the modules that are imported by now
        gc_pause.pause()  # also while the dataset is unpickled, which comes next
        _core.Loader.guard(self.fds[_LIFE].detach(), os.getpid())  # the trainer may have died before it could do this

    def check_process(self) -> None:
        """Raises RuntimeError in the trainer itself, because a worker must not change the signals, the heap and the
        garbage collector of the trainer."""
        if os.getpid() == self.trainer:
            raise RuntimeError(
                f"headrace: worker {self.worker} was started inside the process that iterates over the loader (pid "
                f'{self.trainer}), as a thread or by a call; give multiprocessing_context="fork", "forkserver" or '
                '"spawn", whose workers are processes'
            )

    def open(self) -> _core.Port:
        """Opens the port, which then owns the descriptors."""
        return _core.Port(self.worker, *(fd if isinstance(fd, int) else fd.detach() for fd in self.fds))

    def guard(self, pid: int | None) -> None:
        """Runs in the trainer: makes the kernel kill the worker when this process dies, also while the worker still
        imports modules. If the system refuses that, the worker is guarded once it has opened its port."""
        _core.Loader.guard(self.fds[_LIFE], pid or 0)

    def close(self) -> None:
        """Runs in the trainer: closes its copies, because the worker has its own by now."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []
