# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a loader with worker processes: starts them, submits tasks, receives batches, ends them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from multiprocessing import connection, util
from typing import Any

from headrace import _core, _forkserver, _interrupt, _pickling, _worker  # noqa: F401

Draw = Callable[[], Any]
_LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # what starting a process fails with

_ADVICE = "Rerunning with num_workers=0 may give a better error trace."
_OOM_ADVICE = (
    "Often that is the kernel, out of memory (dmesg says so): lower num_workers, prefetch_factor or batch_size. "
    + _ADVICE
)
_TAKEN = (
    "; how is not known, for this process ignores SIGCHLD, or waits for any child (os.wait or os.waitpid(-1) in a "
    "SIGCHLD handler or a thread) and took the exit code"
)
_START_ADVICE = (
    "It ended before its first batch; if it failed to start, its own error stands above. With spawn and forkserver the "
    "script must be a file that can be imported, what it does under `if __name__ == '__main__':`. " + _ADVICE
)

JOIN_S = 5.0  # for a worker to end by itself, after which it is terminated
KILL_S = 1.0  # after which it is killed
EXIT_CODE_S = 1.0  # for the exit code of a dead worker to arrive


def in_units(count: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


@functools.cache
def why_not() -> str | None:
    """Why the engine cannot run in this process (a sandbox that refuses what it needs), or None. Tried once."""
    try:
        _core.Loader(1, 1, True, 1 << 20).close()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            return str(error.strerror)
    return None


def _limit_of(report: dict[str, Any]) -> tuple[int, str]:
    """The most bytes that an arena may have, and what sets that limit."""
    mapped = report["slots"] * report["window_bytes"]
    if mapped < report["limit_bytes"]:
        return mapped, "the limit of address space (ulimit -v)"
    return report["limit_bytes"], "arena_limit"


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, where that can be: some classes refuse to be changed."""
    if sys.version_info >= (3, 11) and note:
        with contextlib.suppress(Exception):
            error.add_note(note)


class Timeout(Exception):
    """No batch came in time. A class of its own: a sampler's TimeoutError is none."""


class Engine:
    """A loader's worker processes and its arena.

    `job_of(worker)` gives what worker number `worker` does (see headrace._worker.Job); it is pickled unless `context`
    starts processes by fork. The processes are daemons. Errors: OSError when no process, descriptor or memory is to be
    had; whatever pickling the jobs raises. Whatever fails, nothing is left behind.
    """

    def __init__(
        self,
        *,
        workers: int,
        prefetch_factor: int,
        in_order: bool,
        limit_bytes: int,
        context: Any,
        job_of: Any,
    ) -> None:
        self.processes: list[Any] = []
        self._fds: dict[int, int] = {}
        self._has_warned = False
        self._has_received = False
        self._last_report: dict[str, Any] = {}
        self._core = _core.Loader(workers, prefetch_factor, in_order, limit_bytes)
        self._prefetch_factor = prefetch_factor
        self._finalizer = util.Finalize(self, _close, (self._core, self.processes, self._fds), exitpriority=100)
        try:
            for worker in range(workers):
                self._start(worker, context, job_of(worker))
        except BaseException:
            self.close()
            raise

    def _start(self, worker: int, context: Any, job: _worker.Job) -> None:
        opener = _worker.Pass(*self._core.open_pass(worker))
        try:
            args = (opener, job, not _interrupt.is_blocked())
            process = context.Process(target=_worker.main, args=args)
            process.daemon = True
            _fail_at("fork")
            with _interrupt.blocked(context):
                process.start()
                self.processes.append(process)
        except OSError as error:
            if error.errno not in _LIMITS:
                raise
            raise _explain_start(error) from error
        finally:
            opener.close()
        self._watch(worker, process)

    def _watch(self, worker: int, process: Any) -> None:
        try:
            fd = self._fds[worker] = _core.open_pidfd(process.pid)
        except OSError:
            fd = process.sentinel  # no pidfd here: multiprocessing's pipe, which closes a little later
        self._core.watch(worker, fd)

    # `draw` is an argument and not kept: it belongs to the iterator, which must die with its last reference.

    def begin(self, draw: Draw, epoch: object, timeout: float | None, keep_workers: bool) -> None:
        """Begins an epoch: `draw()` gives the next task's indices or raises StopIteration. What is outstanding of the
        last epoch is waited for and dropped; workers that made it are sent `epoch`. With `keep_workers` workers without
        data wait for another epoch. Timeout; RuntimeError for a dead worker."""
        self._keep_workers = keep_workers
        self._retired: set[int] = set()
        self._is_over = False
        self._wait(lambda: self._core.begin(epoch, timeout))
        for _ in range(len(self.processes) * self._prefetch_factor):
            self._submit(draw)

    def _wait(self, wait: Callable[[], int | None]) -> int | None:
        try:
            return wait()
        except _core.WorkerDied as death:
            raise self._explain_death(death.args[0]) from None
        except TimeoutError as error:
            raise Timeout(str(error)) from None
        except RuntimeError:
            if util.is_exiting():
                raise SystemExit from None  # a daemon thread whose loader was closed under it: it ends in silence
            raise

    def _submit(self, draw: Draw) -> None:
        try:
            indices = draw()
        except StopIteration:
            return
        self._core.submit(indices)

    def next(self, draw: Draw, timeout: float | None, batch_size: int | None) -> tuple[int, Any] | None:
        """The next (STATUS_BATCH, batch) or (STATUS_ERROR, wrapped exception); None at the epoch's end.

        One more task is submitted first, so what drawing its indices raises is raised here. Timeout; RuntimeError for a
        dead worker; MemoryError for a batch over the limit; what rebuilding the batch raises."""
        while not self._is_over:
            status = self._wait(lambda: self._core.wait(timeout))
            if status is None:
                self._is_over = True
                break
            if status == _core.STATUS_END:
                self._retire_workers()
            self._submit(draw)
            if status == _core.STATUS_END:
                continue
            self._has_received = True
            value = self._core.take()
            if status == _core.STATUS_TOO_BIG:
                raise self._explain_size(value, batch_size)
            return status, value
        return None

    def _retire_workers(self) -> None:
        for worker in range(len(self.processes)):
            if self._keep_workers or worker in self._retired or self._core.has_data(worker):
                continue
            self._retired.add(worker)
            self._core.watch(worker, -1)
            self._core.dismiss(worker)

    def report(self) -> dict[str, Any]:
        """Counters, after close as they were then: see headrace._loader._WorkerIterator.report."""
        return self._core.report() if self._finalizer.still_active() else self._last_report

    def warn_of_copies(self, stacklevel: int) -> None:
        """One warning per loader when batches had to be copied because the consumer keeps so many."""
        if self._has_warned or not self._core.copied():
            return
        self._has_warned = True
        report = self._core.report()
        limit, what = _limit_of(report)
        held = in_units(report["held_bytes"])
        warnings.warn(
            f"headrace: batches arrive as private copies, which is slower: {report['held']} batches that are held "
            f"({held}) and those in flight do not fit {in_units(limit)} of shared memory. Raise {what}, lower "
            "prefetch_factor, or keep fewer batches",
            stacklevel=stacklevel,
        )

    def _explain_size(self, needed: int, batch_size: int | None) -> MemoryError:
        report = self._core.report()
        limit, what = _limit_of(report)
        per_sample = f" (batch_size {batch_size} x {in_units(needed / batch_size)})" if batch_size else ""
        return MemoryError(
            f"headrace: a batch of {in_units(needed)}{per_sample} does not fit the limit of "
            f"{in_units(limit)} of shared memory, {in_units(report['held_bytes'])} of which are held; "
            f"lower batch_size, or raise {what} (it needs {needed} bytes, the limit is {limit})"
        )

    def _explain_death(self, worker: int) -> RuntimeError:
        process = self.processes[worker]
        _join(process, self._fds.get(worker), EXIT_CODE_S)
        code = process.exitcode
        if code is not None and code < 0:
            name = signal.strsignal(-code) or f"signal {-code}"
            advice = _OOM_ADVICE if code == -signal.SIGKILL else _ADVICE
            return RuntimeError(f"DataLoader worker (pid {process.pid}) is killed by signal: {name}. {advice}")
        advice = _ADVICE if self._has_received else _START_ADVICE
        how = _TAKEN if code is None else f" with exit code {code}"
        return RuntimeError(f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly{how}. {advice}")

    def close(self) -> None:
        """Ends the workers and frees what no batch holds. Idempotent; does nothing in a forked child."""
        if self._finalizer.still_active():
            self._last_report = self._core.report()
        self._finalizer()


def _close(core: _core.Loader, processes: list[Any], fds: dict[int, int]) -> None:
    core.stop()
    for process in processes:
        if _interrupt.is_starting(process.pid):
            process.terminate()  # it would see only after its imports that it shall end
    deadline = time.monotonic() + JOIN_S
    stuck = _still_running(enumerate(processes), fds, deadline)
    for end in ("terminate", "kill"):
        for _, process in stuck:
            getattr(process, end)()
        stuck = _still_running(stuck, fds, time.monotonic() + KILL_S)
    for fd in fds.values():
        os.close(fd)
    fds.clear()
    core.close()


def _still_running(workers: Iterable[Any], fds: dict[int, int], deadline: float) -> list[Any]:
    return [
        (worker, process)
        for worker, process in workers
        if not _join(process, fds.get(worker), max(0.0, deadline - time.monotonic()))
    ]


def _join(process: Any, pidfd: int | None, timeout: float) -> bool:
    """Waits for a process to end, and reaps it. False: it still runs.

    Process.join alone waits in vain for a worker that left a child behind, which keeps the sentinel open, and no exit
    code comes where somebody else has reaped the worker."""
    has_ended = bool(connection.wait([process.sentinel if pidfd is None else pidfd], timeout))
    if has_ended and process.is_alive():
        process.join(EXIT_CODE_S)
    return has_ended or not process.is_alive()


def _fail_at(point: str) -> None:
    """A failpoint for what Python does: $HEADRACE_FAIL="fork:EAGAIN"."""
    if not _core.FAILPOINTS:
        return
    for item in os.environ.get("HEADRACE_FAIL", "").split(","):
        name, _, code = item.partition(":")
        if name == point:
            number = getattr(errno, code, errno.EIO)
            raise OSError(number, os.strerror(number))


def _explain_start(error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"headrace: cannot start a worker process: {error.strerror or error}; look at the limits of processes "
        "(ulimit -u, the cgroup's pids.max), of open files (ulimit -n) and of memory, or lower num_workers",
    )
