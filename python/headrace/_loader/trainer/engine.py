# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a loader with worker processes: it submits tasks to them and receives batches.

The iterators of both loaders call it (headrace.torch._loader.workers, headrace._numpy.iterator). The worker processes
are those of a Crew.
"""

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
from headrace._base import exception_text, pickling, signals  # noqa: F401
from headrace._base import growth as _growth
from headrace._base.help_key import help_on
from headrace._base.status import parts_of
from headrace._base.units import in_units
from headrace._base.warn import warn_user
from headrace._loader.trainer import crew, restart_state, shutdown, start_errors
from headrace._loader.trainer.announcing import announcing_of
from headrace._loader.trainer.snapshot import WorkerSnapshot
from headrace._loader.trainer.tuning import Tuning
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._loader.worker.batch_maker import BatchNotes
from headrace._options import Settings
from headrace._samples import epoch_reports, image_counts
from headrace._samples.dataset_epochs import DatasetEpochs
from headrace._samples.draw import is_in_other_thread


def _limit_of(report: dict[str, Any]) -> tuple[int, str]:
    """Returns the maximum size of an arena in bytes, and what sets that limit."""
    mapped = report["slots"] * report["window_bytes"]
    if mapped < report["limit_bytes"]:
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        is_by_file = 0 <= largest < mapped + (report["slots"] + 1) * _core.WINDOW_STEP
        return mapped, "the limit of " + ("file sizes (ulimit -f)" if is_by_file else "address space (ulimit -v)")
    return report["limit_bytes"], "arena_limit"


def _explain_indices(error: Exception, indices: Any, sampler: str, batch: int) -> None:
    from headrace._pickles import check  # imported here because few samplers ever need it

    report = check.what_is_in_the_way(check.check_indices, indices)
    if report is not None:
        report = check.with_subject(report, f"indices (batch {batch} of this epoch, drawn from the {sampler})")
        start_errors.attach(error, report)


class Timeout(Exception):
    """Raised when no batch arrived before the deadline. Its text says what the worker does that has to make it. It is
    not a TimeoutError, so a TimeoutError of the user's sampler is not taken for it."""


class EngineClient(crew.BatchMakers, Protocol):
    """The iterator that an engine works for. It is passed to each call, and the engine keeps no reference to it,
    because the user's last reference has to end it."""

    tasks: _core.Tasks  # the tasks of this epoch
    wrap: Callable[[Any], Any] | None  # returns what is sent for a task's indices; may be called again for one task

    @property
    def dataset(self) -> Any:
        """The dataset of the batch makers, as this process has it."""

    def name_sampler(self) -> str:
        """Returns the name, for messages, of the sampler that the tasks are drawn from."""

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        """Raises the exception that a worker sent, with a note."""


class Sender(Protocol):
    """Copies the tensors of answers to a device (headrace.torch._device.sender)."""

    def send(self, core: _core.Loader) -> list[Any]:
        """Begins to copy the tensors of the answer, and returns those that take their places."""

    def use(self, core: _core.Loader) -> None:
        """Takes the loader whose answers come."""

    def settle(self, needs_memory: bool) -> None:
        """Waits for all copies; needs_memory: and gives back all memory that can be."""

    def report(self) -> dict[str, Any]: ...


class Engine:
    """A loader's worker processes and its arena.

    Raises OSError if no process, descriptor or memory is available, and any exception of pickling a batch maker. After
    an error it leaves nothing behind. `restart_mode`: how another worker continues the dataset of a dead one (see
    restart_state), or None. `seed`: the seed of each sample's own random numbers, for reports. `sender`: copies the
    answers to a device. `arena`: an arena of an earlier loader. `tuning`: `workers` are the most, and it says how many
    get tasks. `threads`: what the report says of the threads of samples. `end`: ends _core.Loader, see shutdown.close.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        workers: int,
        prefetch_factor: int,
        in_order: bool,
        limit_bytes: int,
        context: Any,
        settings: Settings,
        restart_mode: str | None,
        seed: int,
        sample_deaths: restart_state.SampleDeaths,
        show: _core.Show,
        epoch: int,
        places: WorkerPositions | None = None,
        sender: Sender | None = None,
        arena: Any = None,
        tuning: Tuning | None = None,
        threads: dict[str, Any] | None = None,
        end: shutdown.End = shutdown.end,
    ) -> None:
        self._has_warned = False
        self._pid = os.getpid()
        self._last_report: dict[str, Any] = {}
        self._bad: dict[int, list[Any]] = {}  # the bad samples of this epoch, by the serial number of the answer
        self._retried: dict[int, list[Any]] = {}  # the further tries of this epoch, by the same number
        self._skipped = 0  # how many bad samples earlier epochs had
        self._seed = seed
        self._threads = threads
        self._settings = settings
        self._announcing = announcing_of(client.dataset)
        self._core = _core.Loader(workers, prefetch_factor, in_order, limit_bytes, arena)
        self._core.show(show)  # before the workers start
        self._began_ns = time.monotonic_ns()
        self._show, self._tuning = show, tuning
        self._started_at_s = 0.0  # how long the loop had waited when a worker was started last
        if tuning is not None:
            self._core.tune(tuning.tuner, tuning.changes_within_epochs, tuning.worker_bytes)
            self._core.use(tuning.tuner.wanted)
            self._core.expect(tuning.to_start)
        self._sender = sender
        self._needs_memory = False  # next_if_ready was told so: copies hold memory, or it is registered
        if sender is not None:
            sender.use(self._core)
        self._prefetch_factor = prefetch_factor
        self._crew = crew.Crew(self._core, context, settings, restart_mode, seed, sample_deaths)
        self.processes = self._crew.processes
        arguments = (self._core, self.processes, settings.shutdown_timeout, end)
        self._finalizer = util.Finalize(self, shutdown.close, arguments, exitpriority=100)
        self._places = places
        self._epochs: DatasetEpochs | None = None  # what workers that persist know of their dataset
        self._warned: set[int] = set()  # workers that make other batches again than before
        self._noted = 0  # the serial number of the answer that the places have got last
        try:
            self._crew.start(client, epoch, None if places is None else places.starts(epoch), self._core.expected)
        except BaseException:
            self.close()
            raise

    def begin(self, client: EngineClient, epoch: int, timeout: float | None, keep_workers: bool) -> None:
        """Begins an epoch. Waits for the outstanding batches of the last one, drops them, and sends the workers the new
        epoch. With `keep_workers`, workers without data wait for another epoch. Raises Timeout, and RuntimeError if a
        worker died and is not replaced."""
        self._is_over = self._has_begun = False
        self._draw_error = ""  # the sampler's last exception, if nothing was drawn after it
        self._skipped += len(self._bad_samples())
        self._bad, self._retried = {}, {}
        start = self._crew.begin_epoch(epoch)
        if self._epochs is not None:
            start.epochs = self._epochs.changes(client.dataset)
        elif keep_workers:
            self._epochs = DatasetEpochs(client.dataset)
        if self._tuning is not None:
            self._core.expect(len(self.processes))
        owed = self._core.used * self._prefetch_factor
        self._wait(client, lambda seconds: self._core.begin(start, owed, keep_workers, seconds), timeout)
        self._has_begun = True
        if self._epochs is not None:
            self._epochs.were_sent()
        self._begin_tuning(client)
        if self._places is not None:
            self._core.start_at(self._places.next_worker)
        self.submit_owed(client)

    def _begin_tuning(self, client: EngineClient) -> None:
        """Begins an epoch with as many workers as are wanted."""
        if self._tuning is None:
            return
        while self._core.lacks_worker:
            self._start_one(client)
            self._core.expect(len(self.processes))
        self._core.tune_begin(self._began_ns or time.monotonic_ns())
        self._began_ns = 0

    def _start_one(self, client: EngineClient) -> None:
        """Starts one more worker, which gets its first task when it is wanted."""
        self._crew.start_next(client)
        self._started_at_s = self._core.waited_s

    def _start_wanted(self, tuning: Tuning, client: EngineClient) -> None:
        """Starts one more worker in the middle of an epoch, if that is worth its time. It is expected once it is ready:
        the loop would wait for a worker that still imports modules."""
        if len(self.processes) > self._core.expected:
            if self._crew.is_last_ready():
                self._core.expect(len(self.processes))
        elif tuning.may_start(self._core.waited_s - self._started_at_s, self._show.numbers()[0]["start_s"]):
            self._start_one(client)

    def use_workers(self, count: int) -> None:
        """Lets only the first `count` workers get tasks, and tries nothing any more. For tests."""
        assert self._tuning is not None
        self._tuning.tuner.hold()
        self._core.use(count)

    def use_places(self, places: WorkerPositions | None) -> None:
        """Sets what notes the places of the workers in the next epoch."""
        self._places = places

    def _wait(self, client: EngineClient, wait: Callable[[float], int | None], timeout: float | None) -> int | None:
        """Waits in slices, so that a stall is noticed. Time in which this process was stopped counts as one slice."""
        deadline = None if timeout is None else time.monotonic() + timeout
        stalled_s, patience_s, progress = 0.0, self._settings.stall_after, None
        while True:
            seconds = self._crew.slice_s
            if deadline is not None:
                seconds = min(seconds, max(0.0, deadline - time.monotonic()))
            try:
                return wait(seconds)
            except _core.WorkerDied as death:
                dead = death.args[0]
            except _core.Unsettled as unsettled:
                assert self._sender is not None
                self._sender.settle(unsettled.args[0])
                continue
            except TimeoutError:
                dead = None
            except RuntimeError:
                if os.getpid() != self._pid:
                    raise RuntimeError(
                        "headrace: this iterator belongs to the process that forked this one; start a new loop over "
                        "the loader in this process"
                    ) from None
                if util.is_exiting() and threading.current_thread().daemon:
                    raise SystemExit from None  # a daemon thread ends without a traceback; exit closed its loader
                raise
            # No exception is being handled here: a forked successor would have it as the context of its own exceptions.
            if dead is not None:
                self._crew.replace(dead, client)
                continue
            if self._crew.kill_hung_at_start():
                stalled_s, progress = 0.0, None
                continue
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(self._crew.describe_wait() + help_on("worker-stalled"))
            before, progress = progress, self._crew.progress()
            if progress != before and before is not None:
                stalled_s, patience_s = 0.0, self._settings.stall_after
            stalled_s += seconds
            if stalled_s >= patience_s:
                self._crew.report_stall(stalled_s)
                patience_s = 2 * stalled_s

    def submit_owed(self, client: EngineClient, keep: int = 0) -> None:
        """Submits a task for each answer that was received, except for the last `keep`. If drawing a task raises, the
        exception is raised here, and the task is submitted later."""
        while self._core.owed > keep:
            try:
                if self._core.submit(client.tasks, client.wrap):
                    self._draw_error = ""
            except Exception as error:
                self._explain_submit(error, client)
                raise
        if self._announcing is not None:
            self._announcing.step(client.tasks)

    def _explain_submit(self, error: Exception, client: EngineClient) -> None:
        """Decides what becomes of a task that could not be submitted. If the handler of a signal raised the exception,
        the next call submits the task."""
        if self._core.failed_step == _core.SUBMIT_DRAW:
            if is_in_other_thread(error):
                raise RuntimeError(
                    "headrace: another thread is drawing from this loader's sampler; give each thread an iterator of "
                    "its own, or a lock"
                ) from error
            self._draw_error = exception_text.in_words(error)
            if not signals.is_from_signal(error):
                client.tasks.end_after_error()  # the generators of torch's samplers end, too
        elif self._core.failed_step == _core.SUBMIT_SEND and not signals.is_from_signal(error):
            indices = client.tasks.draw()
            client.tasks.lose()
            _explain_indices(error, indices, client.name_sampler(), self._core.submitted)

    def next(self, client: EngineClient, timeout: float | None) -> int | None:
        """Waits for the next answer and returns its status, or None at the end of the epoch. It returns the same status
        again until the answer is dropped.

        It submits one more task first, so an exception of drawing its indices is raised here. Raises Timeout, and
        RuntimeError if a worker died and is not replaced, or if the epoch could not be started. No exception loses a
        batch: the next call goes on."""
        if not self._has_begun:
            raise RuntimeError("headrace: this epoch could not be started; start a new loop over the loader")
        self.submit_owed(client)
        if self._needs_memory and self._sender is not None:
            self._sender.settle(True)
            self._needs_memory = False
        while not self._is_over:
            status = self._wait(client, self._core.wait, timeout)
            if status is None:
                self._end_epoch(client)
                break
            if self._tuning is not None and self._tuning.changes_within_epochs and self._core.lacks_worker:
                self._start_wanted(self._tuning, client)
            if self._crew.has_starting_workers:
                self._crew.kill_hung_at_start()  # _wait may never time out, because other workers' batches arrive
            self.submit_owed(client)
            if status != _core.STATUS_END:
                return status
            self._note_ends()
        return None

    @property
    def used_workers(self) -> int:
        """How many workers get tasks."""
        return self._core.used

    @property
    def is_closed(self) -> bool:
        """True if the workers have been ended."""
        return not self._finalizer.still_active()

    @property
    def has_lost_workers(self) -> bool:
        """True if the workers have been ended, or if one has died and was not replaced."""
        return self.is_closed or any(one.exitcode not in (None, 0) for one in self.processes)

    @property
    def drawn(self) -> int:
        """The number of batches of this epoch whose indices were drawn."""
        return self._core.submitted

    @property
    def is_over(self) -> bool:
        """True if the epoch has ended, with all batches delivered."""
        return self._is_over

    def next_if_ready(self) -> int | None:
        """Does what next does, before the consumer asks for the batch. Returns None if the next answer has not arrived
        yet, or if only next can decide what comes. It draws nothing: submit_owed submits the task that is due for the
        answer when the batch is handed on."""
        while self._has_begun and not self._is_over and not self._needs_memory:  # a second look would refuse the memory
            try:
                status = self._core.wait(0.0)
            except (TimeoutError, _core.WorkerDied):
                return None
            except _core.Unsettled as unsettled:  # it is said once; next waits
                self._needs_memory = self._needs_memory or unsettled.args[0]
                return None
            if status != _core.STATUS_END:
                return status
            self._note_ends()
        return None

    def answer(self, client: EngineClient, status: int, batch_size: int | None) -> Any:
        """Returns the batch that next waited for, and the same one again until it is dropped. Raises the exception of
        the worker, MemoryError for a batch over the limit, and any exception of rebuilding the batch."""
        value = self._core.answer() if self._sender is None else self._core.answer(self._sent(status))
        notes = pickle.loads(value[0]) if status == _core.STATUS_NOTED else None
        if self._places is not None:
            self._note_place(client, self._places, notes)
        if status == _core.STATUS_BATCH:
            return value
        if status == _core.STATUS_TOO_BIG:
            self._core.fail()
            raise self._explain_size(value, batch_size)
        if status == _core.STATUS_NOTED:
            self._keep_notes(notes)  # type: ignore[arg-type] # there are notes
            return value[1]
        *wrapped, bad = value
        if bad is not None:
            self._keep_notes(pickle.loads(bad))
        self._core.fail()
        return client.reraise(*wrapped)

    def _sent(self, status: int) -> list[Any]:
        """Returns the tensors that are copied to the device. What a worker raised stays here, in private memory."""
        is_batch = status in (_core.STATUS_BATCH, _core.STATUS_NOTED)
        return self._sender.send(self._core) if is_batch and self._sender is not None else []

    def _note_place(self, client: EngineClient, places: WorkerPositions, notes: BatchNotes | None) -> None:
        """Notes the worker of an answer, once. The consumer has all answers before it, except for those held back."""
        if self._noted == self._core.serial:
            return
        places.note(self._core.worker, notes, client.tasks.answered_count - self._settings.held_back)
        self._noted = self._core.serial

    def _note_ends(self) -> None:
        """Notes which workers have no more data."""
        if self._places is not None:
            workers = range(len(self.processes))
            self._places.note_ends([one for one in workers if not self._core.has_data(one)])

    @property
    def keeper(self) -> _core.Loader:
        """The object that keeps the answer until it is dropped, for _core.Iterator."""
        return self._core

    @property
    def task(self) -> int:
        """The number of the task of that answer."""
        return self._core.task

    @property
    def has_others(self) -> bool:
        """True if the answer has objects that may have to be moved to a device, other than what was sent."""
        return self._core.has_others

    @property
    def serial(self) -> int:
        """The number of the answer that next waited for last."""
        return self._core.serial

    @property
    def has_answer(self) -> bool:
        """True if next has returned an answer that was not dropped."""
        return self._core.has_answer

    def drop(self) -> None:
        """Drops the answer, so that the next call of next waits for the next one."""
        self._core.drop()

    def _keep_notes(self, notes: BatchNotes) -> None:
        """Keeps the notes of an answer. It may be called again for the same answer."""
        if notes.bad:
            self._bad[self._core.serial] = notes.bad
            self._core.count_skipped(self._skipped + len(self._bad_samples()))
        if notes.retried:
            self._retried[self._core.serial] = notes.retried
        if notes.warning and notes.worker not in self._warned:
            self._warned.add(notes.worker)  # first, because warnings may be errors
            warn_user(notes.warning)
        if notes.state is not None or notes.is_end:
            self._crew.keep_state(notes)

    def _bad_samples(self) -> list[Any]:
        return list(itertools.chain.from_iterable(self._bad.values()))

    def _retried_samples(self) -> list[Any]:
        return list(itertools.chain.from_iterable(self._retried.values()))

    def _end_epoch(self, client: EngineClient) -> None:
        self._is_over = True
        if self._announcing is not None:
            self._announcing.end()
        if self._tuning is not None:
            self._core.tune_end()
            self._tuning.say(self._show)
        if bad := self._bad_samples():
            warn_user(epoch_reports.describe_bad_samples(bad))
        if retried := self._retried_samples():
            warn_user(epoch_reports.describe_retried_samples(retried))
        if growth := _growth.news(self._core, len(self.processes), self._settings.freeze):
            warn_user(growth)
        if self._draw_error and client.tasks.is_ended_by_exceptions():
            sampler = client.name_sampler()
            warn_user(epoch_reports.describe_ended_sampler(self._core.submitted, sampler, self._draw_error))

    def report(self) -> dict[str, Any]:
        """Returns the counters, and after close the counters of that moment: see headrace.Loader.report."""
        if os.getpid() != self._pid and not self._last_report:
            raise RuntimeError(
                "headrace: this loader's workers belong to the process that forked this one; call report() there"
            )
        report = self._report() if self._finalizer.still_active() else self._last_report
        return {**report, "fork_server": self._crew.report_server()}

    def _report(self) -> dict[str, Any]:
        report = self._core.report()
        report["seed"] = self._seed
        if self._sender is not None:
            report["device"] = self._sender.report()
        if self._tuning is not None:
            report["auto"] = self._tuning.report(self._show)
        if self._threads is not None and self._threads["threads"] > 1:
            report["sample_threads"] = self._threads
        report["bad_samples"] = self._bad_samples()
        report["retried"] = len(self._retried_samples())
        looks = _growth.looks(self._core, len(self.processes))
        report["growth"] = [asdict(one) for one in _growth.sum_up(looks)]
        report["private_grown_bytes"] = sum(look["private_grown"] for look in looks)
        report["images"] = image_counts.sum_up(parts_of(self._core, len(self.processes), "images"))
        report["per_worker"] = [WorkerSnapshot.of(self._core, worker).report() for worker in range(len(self.processes))]
        return report

    def warn_of_copies(self, stacklevel: int) -> None:
        """Warns, once per loader, if batches had to be copied because the consumer keeps so many."""
        if self._has_warned or not self._core.copied():
            return
        self._has_warned = True
        report = self._core.report()
        limit, what = _limit_of(report)
        kept = f"{report['held']} batches that your program keeps ({in_units(report['held_bytes'])}) and the "
        warnings.warn(
            f"headrace: batches are copied, which is slower. The {kept if report['held'] else ''}batches in flight do "
            f"not fit into {in_units(limit)} of shared memory. Raise {what}, lower prefetch_factor, or keep fewer "
            "batches" + help_on("memory-limit"),
            stacklevel=stacklevel,
        )

    def _explain_size(self, needed: int, batch_size: int | None) -> MemoryError:
        report = self._core.report()
        limit, what = _limit_of(report)
        held = in_units(report["held_bytes"])
        per_sample = f" (batch_size {batch_size} x {in_units(needed / batch_size)})" if batch_size else ""
        return MemoryError(
            f"headrace: a batch of {in_units(needed)}{per_sample} does not fit the limit of "
            f"{in_units(limit)} of shared memory, of which your program keeps {held}; "
            f"lower batch_size, or raise {what} (it needs {needed} bytes, the limit is {limit})"
            + help_on("memory-limit")
        )

    def close(self) -> None:
        """Ends the workers and frees what no batch uses. It may be called again, and does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        signals.without_signals(self._close)

    def _close(self) -> None:
        self._announcing = None  # its end withdraws what was announced
        try:
            if self._finalizer.still_active():
                self._last_report = self._report()
        finally:
            self._finalizer()
