# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a loader with worker processes: submits tasks, receives batches."""

from __future__ import annotations

import itertools
import os
import pickle
import resource
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import util
from typing import Any, NoReturn, Protocol

from headrace import _core
from headrace._engine import crew, reports, restart_state, start_errors
from headrace._errors import exception_text
from headrace._inspect import growth as _growth
from headrace._inspect.units import in_units
from headrace._options import Policy
from headrace._start import pickling, signals  # noqa: F401

_DRAW, _SEND = 1, 2  # _core.Loader.failed_step
WINDOW_STEP = 2 << 20  # windows of shared memory are multiples of this, where limits allow it
NO_REPORT = "headrace: there is no report before the first iteration with workers"


def _limit_of(report: dict[str, Any]) -> tuple[int, str]:
    """The most bytes that an arena may have, and what sets that limit."""
    mapped = report["slots"] * report["window_bytes"]
    if mapped < report["limit_bytes"]:
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        is_by_file = 0 <= largest < mapped + (report["slots"] + 1) * WINDOW_STEP
        return mapped, "the limit of " + ("file sizes (ulimit -f)" if is_by_file else "address space (ulimit -v)")
    return report["limit_bytes"], "arena_limit"


def _explain_indices(error: Exception, indices: Any, sampler: str, batch: int) -> None:
    from headrace.doctor.pickle import check  # only now: few samplers ever need it

    report = check.what_is_in_the_way(check.check_indices, indices)
    if report is not None:
        report = check.with_subject(report, f"indices (batch {batch} of this epoch, drawn from the {sampler})")
        start_errors.attach(error, report)


class Timeout(Exception):
    """No batch came in time. A class of its own: a sampler's TimeoutError is none."""


class Host(crew.Host, Protocol):
    """The iterator that an engine works for. It is passed to each call and not kept: it must die with its last
    reference."""

    tasks: _core.Tasks  # what is to be made in this epoch
    wrap: Callable[[Any], Any] | None  # what is sent of a task's indices; may be called again for the same task

    def name_sampler(self) -> str:
        """Returns what the tasks are drawn from, for messages."""

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        """Raises the exception that a worker sent, with the note."""


class Engine:
    """A loader's worker processes and its arena.

    Errors: OSError when no process, descriptor or memory is to be had; whatever pickling the jobs raises. Whatever
    fails, nothing is left behind. `way`: how a worker's dataset is continued by another (see restart_state), or None.
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
        blame: restart_state.Blame,
        epoch: int,
    ) -> None:
        self._has_warned = False
        self._pid = os.getpid()
        self._last_report: dict[str, Any] = {}
        self._bad: dict[int, list[Any]] = {}  # bad samples of this epoch, by the serial number of the answer
        self._skipped = 0  # bad samples of earlier epochs
        self._seed = seed
        self._policy = policy
        self._core = _core.Loader(workers, prefetch_factor, in_order, limit_bytes)
        self._prefetch_factor = prefetch_factor
        self._crew = crew.Crew(self._core, workers, context, policy, way, seed, blame)
        self.processes = self._crew.processes
        arguments = (self._core, self.processes, policy.shutdown_timeout)
        self._finalizer = util.Finalize(self, crew.close, arguments, exitpriority=100)
        try:
            self._crew.start(host, epoch)
        except BaseException:
            self.close()
            raise

    def begin(self, host: Host, epoch: int, timeout: float | None, keep_workers: bool) -> None:
        """Begins an epoch. What is outstanding of the last one is waited for and dropped, and its workers are told.
        With `keep_workers` workers without data wait for another epoch. Timeout; RuntimeError for a dead worker."""
        self._is_over = self._has_begun = False
        self._draw_error = ""  # the sampler's last exception; nothing was drawn after it
        self._skipped += len(self._bad_samples())
        self._bad = {}
        beginning = self._crew.begin_epoch(epoch)
        owed = len(self.processes) * self._prefetch_factor
        self._wait(host, lambda seconds: self._core.begin(beginning, owed, keep_workers, seconds), timeout)
        self._has_begun = True
        self.submit_owed(host)

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

    def submit_owed(self, host: Host, keep: int = 0) -> None:
        """Submits the tasks that are due for what was received, but for the last `keep`. What drawing a task raises is
        raised here, and the task stays due."""
        while self._core.owed > keep:
            try:
                if self._core.submit(host.tasks, host.wrap):
                    self._draw_error = ""
            except Exception as error:
                self._explain_submit(error, host)
                raise

    def _explain_submit(self, error: Exception, host: Host) -> None:
        """Decides what becomes of a task that could not be submitted. Where a signal's handler raised the exception, it
        is submitted by the next call."""
        if self._core.failed_step == _DRAW:
            self._draw_error = exception_text.in_words(error)
            if isinstance(error, ValueError) and error.args == ("generator already executing",):
                raise RuntimeError(
                    "headrace: another thread is drawing from this loader's sampler; give each thread an iterator of "
                    "its own, or a lock"
                ) from error
            if not signals.is_from_signal(error):
                host.tasks.end_if_batched()  # the generator of torch's BatchSampler ends, too
        elif self._core.failed_step == _SEND and not signals.is_from_signal(error):
            indices = host.tasks.draw()
            host.tasks.handed_on()
            _explain_indices(error, indices, host.name_sampler(), self._core.submitted)

    def next(self, host: Host, timeout: float | None) -> int | None:
        """Waits for the next answer and returns its status, and the same one again until it is dropped; None at the
        epoch's end.

        One more task is submitted first, so what drawing its indices raises is raised here. Timeout; RuntimeError for a
        dead worker, or an epoch whose beginning failed. Whatever raises, and wherever: nothing is lost, and the next
        call goes on."""
        if not self._has_begun:
            raise RuntimeError("headrace: this epoch could not be started; start a new loop over the loader")
        self.submit_owed(host)
        while not self._is_over:
            status = self._wait(host, self._core.wait, timeout)
            if status is None:
                self._end_epoch(host)
                break
            if self._crew.has_unborn:
                self._crew.end_stillborn()  # out of order the others' batches keep coming
            self.submit_owed(host)
            if status != _core.STATUS_END:
                return status
        return None

    @property
    def is_closed(self) -> bool:
        """Have the workers been ended?"""
        return not self._finalizer.still_active()

    @property
    def drawn(self) -> int:
        """Batches of this epoch whose indices were drawn."""
        return self._core.submitted

    @property
    def is_over(self) -> bool:
        """Has the epoch come to its end, with all batches delivered?"""
        return self._is_over

    def next_if_ready(self) -> int | None:
        """Does as next, ahead of the consumer: None when the next answer has not arrived yet, or when only next can
        tell what comes. Nothing is drawn: submit_owed submits the task that is due for it, when it is handed on."""
        while self._has_begun and not self._is_over:
            try:
                status = self._core.wait(0.0)
            except (TimeoutError, _core.WorkerDied):
                return None
            if status != _core.STATUS_END:
                return status
        return None

    def answer(self, host: Host, status: int, batch_size: int | None) -> Any:
        """Returns the batch that was waited for, and the same one again until it is dropped. Raises the worker's
        exception, MemoryError for a batch over the limit, and what rebuilding the batch raises."""
        value = self._core.answer()
        if status == _core.STATUS_BATCH:
            return value
        if status == _core.STATUS_TOO_BIG:
            self._core.fail()
            raise self._explain_size(value, batch_size)
        if status == _core.STATUS_NOTED:
            notes, value = value
            self._keep_notes(pickle.loads(notes))
            return value
        *wrapped, notes = value
        if notes is not None:
            self._keep_notes(pickle.loads(notes))
        self._core.fail()
        return host.reraise(*wrapped)

    @property
    def source(self) -> _core.Loader:
        """What keeps the answer until it is dropped, for _core.Iterator."""
        return self._core

    @property
    def serial(self) -> int:
        """The number of the answer that was waited for last."""
        return self._core.serial

    @property
    def is_pending(self) -> bool:
        """Whether an answer was waited for and not dropped."""
        return self._core.is_pending

    def drop(self) -> None:
        """Lets go of the answer: the next call of next is for the next one."""
        self._core.drop()

    def _keep_notes(self, notes: restart_state.Notes) -> None:
        """May be called again for the same answer."""
        if notes.bad:
            self._bad[self._core.serial] = notes.bad
            self._core.count_skipped(self._skipped + len(self._bad_samples()))
        if notes.state is not None:
            self._crew.keep_state(notes)

    def _bad_samples(self) -> list[Any]:
        return list(itertools.chain.from_iterable(self._bad.values()))

    def _end_epoch(self, host: Host) -> None:
        self._is_over = True
        if bad := self._bad_samples():
            crew.tell(reports.of_bad_samples(bad))
        if growth := _growth.news(self._core, len(self.processes)):
            crew.tell(growth)
        if self._draw_error and host.tasks.is_ended_by_exceptions():
            crew.tell(reports.of_ended_sampler(self._core.submitted, host.name_sampler(), self._draw_error))

    def report(self) -> dict[str, Any]:
        """Counters, after close as they were then: see headrace.Loader.report."""
        if os.getpid() != self._pid and not self._last_report:
            raise RuntimeError("headrace: this loader's workers belong to the process that forked this one; ask there")
        return self._report() if self._finalizer.still_active() else self._last_report

    def _report(self) -> dict[str, Any]:
        report = self._core.report()
        report["seed"] = self._seed
        report["bad_samples"] = self._bad_samples()
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
        held = f"{report['held']} batches that are held ({in_units(report['held_bytes'])}) and "
        warnings.warn(
            f"headrace: batches arrive as private copies, which is slower: {held if report['held'] else ''}those in "
            f"flight do not fit {in_units(limit)} of shared memory. Raise {what}, lower prefetch_factor, or "
            "keep fewer batches",
            stacklevel=stacklevel,
        )

    def _explain_size(self, needed: int, batch_size: int | None) -> MemoryError:
        report = self._core.report()
        limit, what = _limit_of(report)
        held = in_units(report["held_bytes"])
        per_sample = f" (batch_size {batch_size} x {in_units(needed / batch_size)})" if batch_size else ""
        return MemoryError(
            f"headrace: a batch of {in_units(needed)}{per_sample} does not fit the limit of "
            f"{in_units(limit)} of shared memory, {held} of which are held; "
            f"lower batch_size, or raise {what} (it needs {needed} bytes, the limit is {limit})"
        )

    def close(self) -> None:
        """Ends the workers and frees what no batch holds. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        signals.without_signals(self._close)

    def _close(self) -> None:
        try:
            if self._finalizer.still_active():
                self._last_report = self._report()
        finally:
            self._finalizer()


def _vitals(look: dict[str, Any]) -> dict[str, Any]:
    """Of a look at a worker, what a report shows."""
    names = ("pid", "is_alive", "starts", "batches", "waiting_s", "fetching_s", "collating_s", "rss_bytes")
    return {name: look[name] for name in names}
