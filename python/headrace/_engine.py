# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a loader with worker processes: submits tasks, receives batches."""

from __future__ import annotations

import errno
import functools
import os
import pickle
import resource
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import util
from typing import Any, Protocol

from headrace import _core, _crew, _diagnosis, _forkserver, _growth, _pickling, _reports, _restart  # noqa: F401
from headrace._options import Policy

WINDOW_STEP = 2 << 20  # windows of shared memory are multiples of this, where limits allow it
NO_REPORT = "headrace: there is no report before the first iteration with workers"


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
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        is_by_file = 0 <= largest < mapped + (report["slots"] + 1) * WINDOW_STEP
        return mapped, "the limit of " + ("file sizes (ulimit -f)" if is_by_file else "address space (ulimit -v)")
    return report["limit_bytes"], "arena_limit"


def _explain_indices(error: Exception, indices: Any, sampler: str, batch: int) -> None:
    from headrace.doctor import _check  # only now: few samplers ever need it

    report = _check.what_is_in_the_way(_check.check_indices, indices)
    if report is not None:
        report = _check.with_subject(report, f"indices (batch {batch} of this epoch, drawn from the {sampler})")
        _diagnosis.attach(error, report)


class Timeout(Exception):
    """No batch came in time. A class of its own: a sampler's TimeoutError is none."""


class Host(_crew.Host, Protocol):
    """The iterator that an engine works for. It is passed to each call and not kept: it must die with its last
    reference."""

    def draw(self) -> Any:
        """The next task's indices. StopIteration."""

    def name_sampler(self) -> str:
        """What draw draws them from, for people."""


class Engine:
    """A loader's worker processes and its arena.

    Errors: OSError when no process, descriptor or memory is to be had; whatever pickling the jobs raises. Whatever
    fails, nothing is left behind. `way`: how a worker's data set is continued by another (headrace._restart), or None.
    `seed`: of samples' own random numbers, for reports.
    """

    def __init__(
        self,
        host: Host,
        *,
        workers: int,
        prefetch_factor: int,
        in_order: bool,
        limit_bytes: int,
        context: Any,
        policy: Policy,
        way: str | None,
        seed: int,
        blame: _restart.Blame,
        epoch: int,
    ) -> None:
        self._has_warned = False
        self._pid = os.getpid()
        self._last_report: dict[str, Any] = {}
        self._bad: list[Any] = []
        self._seed = seed
        self._policy = policy
        self._core = _core.Loader(workers, prefetch_factor, in_order, limit_bytes)
        self._prefetch_factor = prefetch_factor
        self._crew = _crew.Crew(self._core, workers, context, policy, way, seed, blame)
        self.processes = self._crew.processes
        arguments = (self._core, self.processes, policy.shutdown_timeout)
        self._finalizer = util.Finalize(self, _crew.close, arguments, exitpriority=100)
        try:
            self._crew.start(host, epoch)
        except BaseException:
            self.close()
            raise

    def begin(self, host: Host, epoch: int, timeout: float | None, keep_workers: bool) -> None:
        """Begins an epoch. What is outstanding of the last one is waited for and dropped, and its workers are told.
        With `keep_workers` workers without data wait for another epoch. Timeout; RuntimeError for a dead worker."""
        self._keep_workers = keep_workers
        self._retired: set[int] = set()
        self._is_over = self._has_begun = False
        self._drawn = 0  # tasks of this epoch
        self._owed = 0  # tasks to be submitted for batches that were taken ahead
        self._bad = []
        beginning = self._crew.begin_epoch(epoch)
        self._wait(host, lambda seconds: self._core.begin(beginning, seconds), timeout)
        self._has_begun = True
        for _ in range(len(self.processes) * self._prefetch_factor):
            self._submit(host)

    def _wait(self, host: Host, wait: Callable[[float], int | None], timeout: float | None) -> int | None:
        """Waits in slices, so that a stall is seen; what passed while this process was stopped is one slice."""
        deadline = None if timeout is None else time.monotonic() + timeout
        stalled_s, patience_s, progress = 0.0, self._policy.stall_after, None
        while True:
            seconds = self._crew.slice_s
            if deadline is not None:
                seconds = min(seconds, max(0.0, deadline - time.monotonic()))
            try:
                return wait(seconds)
            except _core.WorkerDied as death:
                dead = death.args[0]
            except TimeoutError:
                dead = None
            except RuntimeError:
                if os.getpid() != self._pid:
                    raise RuntimeError(
                        "headrace: this iterator belongs to the process that forked this one; iterate over the loader "
                        "anew here"
                    ) from None
                if util.is_exiting() and threading.current_thread().daemon:
                    raise SystemExit from None  # a daemon thread whose loader was closed under it: it ends in silence
                raise
            # No exception is being handled any more: a forked successor would find it in its tracebacks.
            if dead is not None:
                self._crew.replace(dead, host)
                continue
            if self._crew.end_stillborn():
                stalled_s, progress = 0.0, None
                continue
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout
            before, progress = progress, self._crew.progress()
            if progress != before and before is not None:
                stalled_s, patience_s = 0.0, self._policy.stall_after
            stalled_s += seconds
            if stalled_s >= patience_s:
                self._crew.report_stall(stalled_s)
                patience_s = 2 * stalled_s

    def _submit(self, host: Host) -> None:
        try:
            indices = host.draw()
        except StopIteration:
            return
        except ValueError as error:
            if error.args != ("generator already executing",):
                raise
            raise RuntimeError(
                "headrace: another thread is drawing from this loader's sampler; give each thread an iterator of its "
                "own, or a lock"
            ) from error
        try:
            self._core.submit(indices)
        except Exception as error:
            _explain_indices(error, indices, host.name_sampler(), self._drawn)
            raise
        self._drawn += 1

    def next(self, host: Host, timeout: float | None, batch_size: int | None) -> tuple[int, Any] | None:
        """The next (STATUS_BATCH, batch) or (STATUS_ERROR, (wrapped exception, note)); None at the epoch's end.

        One more task is submitted first, so what drawing its indices raises is raised here. Timeout; RuntimeError for a
        dead worker, or an epoch whose beginning failed; MemoryError for a batch over the limit; what rebuilding the
        batch raises."""
        if not self._has_begun:
            raise RuntimeError("headrace: the beginning of this epoch failed; iterate over the loader anew")
        while self._owed:
            self.submit_owed(host)
        while not self._is_over:
            status = self._wait(host, self._core.wait, timeout)
            if status is None:
                self._end_epoch()
                break
            if self._crew.has_unborn:
                self._crew.end_stillborn()  # out of order the others' batches keep coming
            if status == _core.STATUS_END:
                self._retire_workers()
            self._submit(host)
            if status != _core.STATUS_END:
                return self._take(status, batch_size)
        return None

    @property
    def is_closed(self) -> bool:
        """Have the workers been ended?"""
        return not self._finalizer.still_active()

    @property
    def drawn(self) -> int:
        """Batches of this epoch whose indices were drawn."""
        return self._drawn

    @property
    def is_over(self) -> bool:
        """Has the epoch come to its end, with all batches delivered?"""
        return self._is_over

    def next_if_ready(self, batch_size: int | None) -> tuple[int, Any] | None:
        """As next, ahead of the consumer: None when the next batch has not arrived yet, or when only next can tell what
        comes. Nothing is drawn: the task that is due for it is submitted by submit_owed, when it is handed on."""
        while self._has_begun and not self._is_over:
            try:
                status = self._core.wait(0.0)
            except (TimeoutError, _core.WorkerDied):
                return None
            if status is None:
                return None
            self._owed += 1
            if status != _core.STATUS_END:
                return self._take(status, batch_size)
            self._retire_workers()
        return None

    def submit_owed(self, host: Host) -> None:
        """Submits one of the tasks that next_if_ready left due."""
        self._owed -= 1
        self._submit(host)

    def _take(self, status: int, batch_size: int | None) -> tuple[int, Any]:
        value = self._core.take()
        if status == _core.STATUS_TOO_BIG:
            raise self._explain_size(value, batch_size)
        notes = None
        if status == _core.STATUS_NOTED:
            notes, value = value
            status = _core.STATUS_BATCH
        elif status == _core.STATUS_ERROR:
            *value, notes = value
        if notes is not None:
            self._heed(pickle.loads(notes))
        return status, value

    def _heed(self, notes: _restart.Notes) -> None:
        if notes.bad:
            self._bad += notes.bad
            self._core.count_skipped(len(notes.bad))
        if notes.state is not None:
            self._crew.keep_state(notes)

    def _end_epoch(self) -> None:
        self._is_over = True
        if self._bad:
            _crew.tell(_reports.of_bad_samples(self._bad))
        if growth := _growth.news(self._core, len(self.processes)):
            _crew.tell(growth)

    def _retire_workers(self) -> None:
        for worker in range(len(self.processes)):
            if self._keep_workers or worker in self._retired or self._core.has_data(worker):
                continue
            self._retired.add(worker)
            self._core.dismiss(worker)

    def report(self) -> dict[str, Any]:
        """Counters, after close as they were then: see headrace.Loader.report."""
        if os.getpid() != self._pid and not self._last_report:
            raise RuntimeError("headrace: this loader's workers belong to the process that forked this one; ask there")
        return self._report() if self._finalizer.still_active() else self._last_report

    def _report(self) -> dict[str, Any]:
        report = self._core.report()
        report["seed"] = self._seed
        report["bad_samples"] = list(self._bad)
        looks = _growth.looks(self._core, len(self.processes))
        report["growth"] = [asdict(one) for one in _growth.sum_up(looks)]
        report["private_grown_bytes"] = sum(look["private_grown"] for look in looks)
        report["per_worker"] = [_vitals(self._core.look(worker)) for worker in range(len(self.processes))]
        return report

    def warn_of_copies(self, stacklevel: int) -> None:
        """One warning per loader when batches had to be copied because the consumer keeps so many."""
        if self._has_warned or not self._core.copied():
            return
        self._has_warned = True
        report = self._core.report()
        limit, what = _limit_of(report)
        held = f"{report['held']} batches that are held ({_reports.in_units(report['held_bytes'])}) and "
        warnings.warn(
            f"headrace: batches arrive as private copies, which is slower: {held if report['held'] else ''}those in "
            f"flight do not fit {_reports.in_units(limit)} of shared memory. Raise {what}, lower prefetch_factor, or "
            "keep fewer batches",
            stacklevel=stacklevel,
        )

    def _explain_size(self, needed: int, batch_size: int | None) -> MemoryError:
        report = self._core.report()
        limit, what = _limit_of(report)
        held = _reports.in_units(report["held_bytes"])
        per_sample = f" (batch_size {batch_size} x {_reports.in_units(needed / batch_size)})" if batch_size else ""
        return MemoryError(
            f"headrace: a batch of {_reports.in_units(needed)}{per_sample} does not fit the limit of "
            f"{_reports.in_units(limit)} of shared memory, {held} of which are held; "
            f"lower batch_size, or raise {what} (it needs {needed} bytes, the limit is {limit})"
        )

    def close(self) -> None:
        """Ends the workers and frees what no batch holds. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        try:
            if self._finalizer.still_active():
                self._last_report = self._report()
        finally:  # also after a Ctrl-C of meanwhile, which the garbage collector's call of the finalizer would lose
            self._finalizer()


def _vitals(look: dict[str, Any]) -> dict[str, Any]:
    """Of a look at a worker, what a report shows."""
    names = ("pid", "is_alive", "starts", "batches", "waiting_s", "fetching_s", "collating_s", "rss_bytes")
    return {name: look[name] for name in names}
