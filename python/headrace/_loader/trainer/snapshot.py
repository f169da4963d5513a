# SPDX-License-Identifier: Apache-2.0
"""The state of one worker at one moment, as libheadrace reads it from shared memory and from /proc.

The crew, the reports and shutdown take a snapshot of a worker to decide what to do and what to print.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace import _core


class WorkerSnapshot(NamedTuple):
    """The state of one worker at one moment. The worker writes own_pid, phase, task, sample and the counters itself.
    Until a new process has opened its port, they are those of the process that had its number before: see
    is_starting."""

    number: int  # the worker's number in its loader
    pid: int
    is_alive: bool
    is_end_known: bool  # the kernel has reported how it ended: `signal`, or else `exit_code`
    signal: int
    exit_code: int
    oom_kills: int  # processes of this cgroup that the kernel killed for lack of memory since the worker started
    rss_bytes: int  # its memory when it was last seen
    starts: int  # how many processes have had this worker number
    own_pid: int  # the pid that the worker has written when it opened its port
    phase: int  # a value of _core.PHASE_...
    phase_since_ns: int  # on the monotonic clock; 0 before its first task
    task: int  # the number of the batch that it makes
    sample: int | None  # the place in the batch of the sample that it makes
    making: list[int]  # the places in the batch of the samples, or of those whose images, its threads make
    batches: int
    waiting_s: float
    fetching_s: float
    collating_s: float
    state: str  # the letter in /proc/PID/stat
    threads: int
    tracer_pid: int  # the process of a debugger, or 0
    stack: str  # the text that it has written to the stack part of its diagnostics file
    stderr: str  # the end of what it has written to sys.stderr
    stack_is_cut: bool
    kernel_function: str  # /proc/PID/wchan
    system_call: str  # /proc/PID/syscall
    caught_signals: int  # a mask: the signals that have a handler
    is_deadlocked: bool  # its only thread waits, without a limit, for another of its threads

    @classmethod
    def of(cls, core: _core.Loader, worker: int) -> WorkerSnapshot:
        """Takes a snapshot of worker number `worker`."""
        look = core.snapshot(worker)
        return cls(number=look.pop("worker"), stderr=look.pop("said"), **look)

    @property
    def is_starting(self) -> bool:
        """True until the worker has opened its port: no code of the user's has run in it except imports and fork
        handlers."""
        return self.own_pid != self.pid

    @property
    def is_waiting(self) -> bool:
        """True if the worker waits for a task, or has never had one."""
        return self.phase == _core.PHASE_WAIT

    @property
    def is_fetching(self) -> bool:
        """True if the worker is in the dataset."""
        return self.phase == _core.PHASE_FETCH

    @property
    def place(self) -> int | None:
        """The place in the batch of the only sample at which the worker is, or None: the one that it reads without
        threads, or the one whose image its only busy thread makes."""
        if self.is_fetching:
            return self.sample
        return self.making[0] if len(self.making) == 1 and not self.is_waiting else None

    @property
    def is_halted(self) -> bool:
        """True if the worker is stopped by a signal, or is in a debugger."""
        return bool(self.tracer_pid) or self.state in ("T", "t")

    def report(self) -> dict[str, Any]:
        """Returns the part of the snapshot that Loader.report() shows."""
        names = ("pid", "is_alive", "starts", "batches", "waiting_s", "fetching_s", "collating_s", "rss_bytes")
        return {name: getattr(self, name) for name in names}
