# SPDX-License-Identifier: Apache-2.0
"""Finds which of the processes of headrace.torch.spawn failed first, and where the others are.

torch raises the failure that it notices first. A process whose exception says that another one was lost often exits
before that other one, which may still run finalizers. So each process notes the time of its exception in a file in
memory, and the parent raises the earliest one that is no consequence of another. _spawn uses this.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import struct
import time
from collections.abc import Callable
from multiprocessing import connection, reduction
from typing import Any

from headrace._base import exception_text, memory_file
from headrace._ranks import what_ended
from headrace.torch._own import workers

_STACK_SIGNAL = signal.SIGRTMAX - 6  # as the ranks of `headrace run`; data workers have SIGRTMAX - 5
_NOTE = struct.Struct("qqq")  # CLOCK_MONOTONIC of the exception in ns, is it a lost peer, the stack signal
_SLOT_BYTES = 4 << 20  # a note and stacks; the file is sparse
_CAUSE_S = 0.3  # a process that has lost another one may exit so much earlier
_EXIT_S = 5.0  # a process that has failed has so long to exit
_STACKS_S = 1.0
_STACK_LINES = 40  # the text shows so many for each process
_MAX_STACKS = 8  # processes


class Notes:
    """The file in which the processes note how they fail. It is sent to them by pickle."""

    def __init__(self, count: int) -> None:
        """Raises OSError."""
        self._file = memory_file.create("headrace-spawn")
        os.ftruncate(self._file.fileno(), count * _SLOT_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {"_fd": reduction.DupFd(self._file.fileno())}

    def begin(self, index: int) -> None:
        """Runs in process number `index`: makes it write its stacks on the signal."""
        shared = self.__dict__["_fd"].detach()
        self._index = index
        # The place at which faulthandler appends must not be shared with the other processes.
        self._own = os.open(f"/proc/self/fd/{shared}", os.O_RDWR | os.O_CLOEXEC)
        os.close(shared)
        os.lseek(self._own, index * _SLOT_BYTES + _NOTE.size, os.SEEK_SET)
        faulthandler.register(_STACK_SIGNAL, file=self._own, all_threads=True, chain=False)
        self._write(0, False)

    def note(self, error: BaseException) -> None:
        """Runs in a process: notes that its function raised."""
        ns = time.monotonic_ns()
        self._write(ns, what_ended.is_lost_peer(error))

    def _write(self, ns: int, is_lost_peer: bool) -> None:
        os.pwrite(self._own, _NOTE.pack(ns, is_lost_peer, _STACK_SIGNAL), self._index * _SLOT_BYTES)

    def read(self, index: int) -> tuple[int, bool, int]:
        """Returns the time of the exception or 0, whether it says that another process was lost, and the stack signal
        or 0."""
        ns, is_lost_peer, number = _NOTE.unpack(os.pread(self._file.fileno(), _NOTE.size, index * _SLOT_BYTES))
        return ns, bool(is_lost_peer), number

    def read_stacks(self, index: int) -> str:
        data = os.pread(self._file.fileno(), _SLOT_BYTES - _NOTE.size, index * _SLOT_BYTES + _NOTE.size)
        return data.partition(b"\0")[0].decode(errors="replace")

    def close(self) -> None:
        self._file.close()


class Noting:
    """Calls a function in a spawned process, and notes its exception."""

    def __init__(self, function: Callable[..., Any], notes: Notes) -> None:
        self._function = function
        self._notes = notes

    def __call__(self, index: int, *args: Any) -> Any:
        with contextlib.suppress(OSError, ValueError):  # without /proc, or if the signal is refused
            self._notes.begin(index)
        try:
            return self._function(index, *args)
        except Exception as error:
            with contextlib.suppress(Exception):
                self._notes.note(error)
            raise


class Context(workers.ProcessContext):  # type: ignore[misc]
    """torch's ProcessContext, whose `join` raises the first failure and shows where the other processes are."""

    processes: list[Any]
    sentinels: dict[int, int]  # of the processes that have not been joined, with their numbers

    def __init__(self, context: Any, notes: Notes) -> None:
        super().__init__(context.processes, context.error_files)
        self._notes = notes

    def join(self, timeout: float | None = None, *args: Any, **options: Any) -> Any:
        """Joins processes as torch's does."""
        ready: list[Any] = connection.wait(list(self.sentinels), timeout) if self.sentinels else []
        if not any(self._has_failed(self.sentinels[one]) for one in ready):
            return super().join(0, *args, **options)
        first = self._find_first()
        stacks = self._take_stacks(first)
        process = self.processes[first]
        if not connection.wait([process.sentinel], _EXIT_S):  # a thread keeps it; its exception is known
            process.kill()
        self.sentinels = {process.sentinel: first}  # the only one that torch looks at
        try:
            return super().join(None, *args, **options)
        except Exception as error:
            if stacks:
                exception_text.add_text(error, stacks)
            raise
        finally:
            self._notes.close()

    def _has_failed(self, index: int) -> bool:
        self.processes[index].join()  # its sentinel is ready
        return bool(self.processes[index].exitcode)

    def _find_first(self) -> int:
        """Returns the process with the earliest failure. What another failure has caused comes last: a lost peer, and
        SIGABRT, by which NCCL's watchdog ends a process."""
        deadline = time.monotonic() + _CAUSE_S
        while True:
            failures = [found for index in range(len(self.processes)) if (found := self._look(index))]
            running = [process.sentinel for process in self.processes if process.is_alive()]
            is_symptom, _, first = min(failures)
            left_s = deadline - time.monotonic()
            if not is_symptom or not running or left_s <= 0:
                return first
            connection.wait(running, min(left_s, _CAUSE_S / 10))

    def _look(self, index: int) -> tuple[bool, int, int] | None:
        ns, is_lost_peer, _ = self._notes.read(index)
        process = self.processes[index]
        if not ns and (process.is_alive() or not process.exitcode):
            return None
        return is_lost_peer or process.exitcode == -signal.SIGABRT, ns or time.monotonic_ns(), index

    def _take_stacks(self, first: int) -> str:
        """Returns the stacks of the processes that still run, as text, or ""."""
        asked: list[int] = []
        for index, process in enumerate(self.processes):
            number = self._notes.read(index)[2]
            if index != first and number == _STACK_SIGNAL and process.is_alive() and len(asked) < _MAX_STACKS:
                os.kill(process.pid, number)
                asked.append(index)
        end = time.monotonic() + _STACKS_S
        while time.monotonic() < end and not all(map(self._notes.read_stacks, asked)):
            time.sleep(0.01)
        return "".join(self._describe(index, first) for index in asked)

    def _describe(self, index: int, first: int) -> str:
        lines = self._notes.read_stacks(index).splitlines()
        if not lines:
            return ""
        text = "\n".join(f"  {line}" for line in lines[:_STACK_LINES])
        pid = self.processes[index].pid
        return f"\nprocess {index} (pid {pid}) was still running when process {first} had failed; its stacks:\n{text}\n"
