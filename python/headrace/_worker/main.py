# SPDX-License-Identifier: Apache-2.0
"""What runs in a worker process."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
from multiprocessing import reduction, util
from typing import Any, Protocol

from headrace import _core
from headrace._engine import reports, restart_state
from headrace._errors import exception_text, raising
from headrace._inspect import growth
from headrace._samples.refill import indices_of
from headrace._start import gc_pause, pickling, signals, transport  # noqa: F401
from headrace._worker import inherited


class Job(Protocol):
    """What a worker does. Sent to it by pickle, except with the start method fork."""

    def prepare(self, port: _core.Port, beginning: restart_state.Beginning) -> None:
        """Runs first, in the worker."""

    def begin_epoch(self, beginning: restart_state.Beginning) -> None:
        """Runs before each further epoch."""

    def fetch(self, task: Any) -> Any:
        """Returns the batch of a task (indices, or a Refillable); with `collates_in_c`, the list of samples.
        Raises EndOfData when this worker has no more."""

    def collate(self, samples: Any) -> Any:
        """Collates in Python."""

    def wrap_exception(self) -> raising.Sent:
        """The exception being handled, as something that the trainer's side raises again."""

    def sends(self, error: BaseException) -> bool:
        """Returns True if an exception that is not of class Exception goes to the trainer, instead of ending this
        worker as it does with torch."""

    def leave(self) -> None:
        """Runs when there is nothing more to make: what goes through the data set is let go, so that a generator's
        `finally` runs."""

    @property
    def seeding(self) -> tuple[int, int] | None:
        """See headrace._engine.reports.replay."""

    dataset: Any
    flavor: int
    worker: int
    collates_in_c: bool  # may the extension collate the samples? What it does not know comes to `collate`
    notes: restart_state.Notes | None  # what is to be said, beside it, of the batch that was fetched last


class EndOfData(Exception):
    """An iterable data set has come to its end in this worker."""


class Failed(Exception):
    """An exception of earlier is due now; it stands in args[0], wrapped."""


_LIFE = 3  # where Loader.open_pass has the descriptor that tells the trainer's death, without the worker's number


class Pass:
    """The descriptors that a worker opens its port with: sent by pickle when a process is started."""

    def __init__(self, worker: int, *fds: int) -> None:
        self.worker = worker
        self.trainer = os.getpid()
        self.fds: list[Any] = list(fds)
        self.mask: set[Any] | None = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # for a forked worker to begin with

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fds": [reduction.DupFd(fd) for fd in self.fds]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.check_process()
        self.mask = None  # has been dealt with
        signals.block()
        inherited.drop_handlers(None)  # before the data set arrives, which may set some of its own
        gc_pause.keep()  # what is imported by now
        gc_pause.rest()  # also while the data set arrives, which comes next
        _core.Loader.guard(self.fds[_LIFE].detach(), os.getpid())  # the trainer may have died before it could

    def check_process(self) -> None:
        """Raises RuntimeError in the trainer itself, whose signals, heap and collector are not a worker's to change."""
        if os.getpid() == self.trainer:
            raise RuntimeError(
                f"headrace: worker {self.worker} was started inside the process that iterates over the loader (pid "
                f'{self.trainer}), as a thread or by a call; give multiprocessing_context="fork", "forkserver" or '
                '"spawn", whose workers are processes'
            )

    def open(self) -> _core.Port:
        """Opens the port and gives the descriptors over to it."""
        return _core.Port(self.worker, *(fd if isinstance(fd, int) else fd.detach() for fd in self.fds))

    def guard(self, pid: int | None) -> None:
        """The trainer's side: the worker dies with this process, also while it still imports. Where the system refuses
        that, once it has opened its port."""
        _core.Loader.guard(self.fds[_LIFE], pid or 0)

    def close(self) -> None:
        """The trainer's side: the worker has its own by now."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def _note(job: Job, batch: int, indices: Any, position: int | None) -> str:
    """Where an exception came from."""
    text = f"headrace: {reports.name_sample(batch, indices, position)} (worker {job.worker})"
    replay = reports.replay(indices, position, job.seeding)
    return f"{text}\nheadrace: {replay}" if replay else text


def _collate(job: Job, samples: Any) -> Any:
    """By default collate, in Python; an exception has the attribute headrace_place, the count of samples
    and the place of the one that it is about."""
    try:
        return job.collate(samples)
    except Exception as error:
        if isinstance(samples, list) and samples and not isinstance(error, MemoryError):
            with contextlib.suppress(Exception):  # some classes refuse to be changed
                error.headrace_place = len(samples), _first_odd_one(job, samples, error)  # type: ignore[attr-defined]
        raise


def _first_odd_one(job: Job, samples: list[Any], error: Exception) -> int:
    """The place of the first sample that they fail for in the same way, by trying fewer of them again."""
    good, bad = 0, len(samples)  # so many of them collate, and do not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            job.collate(samples[:middle])
            good = middle
        except type(error):
            bad = middle
    return good


def _name_odd_one(job: Job, error: BaseException, indices: Any) -> str:
    """Nothing where there is none, or where it may be another than that of `indices`."""
    count, place = exception_text.remark(error, "headrace_place") or (0, None)
    if place is None or (job.notes is not None and job.notes.bad):
        return ""
    if reports.has_indices(indices) and len(indices) != count:
        return ""  # a __getitems__ that left some out
    return reports.name_odd_one(indices, place)


def _publish_batch(port: _core.Port, job: Job, data: Any) -> None:
    if job.notes is not None:
        data = _collate(job, data) if job.collates_in_c else data
        _publish(port, _core.STATUS_NOTED, data, (pickle.dumps(job.notes), data))
    elif not job.collates_in_c:
        _publish(port, _core.STATUS_BATCH, data, data)
    elif not port.collate(data, job.flavor):
        data = _collate(job, data)
        _publish(port, _core.STATUS_BATCH, data, data)


def _publish(port: _core.Port, status: int, batch: Any, message: Any) -> None:
    """Publishes; an exception has the attribute headrace_report where it is that the batch does not pickle."""
    try:
        port.publish(status, message)
    except Exception as error:
        from headrace.doctor.pickle import check  # only now: few batches ever fail

        report = check.what_is_in_the_way(check.check_batch, batch)
        if report is not None:
            with contextlib.suppress(Exception):  # some classes refuse to be changed
                error.headrace_report = report  # type: ignore[attr-defined]
        raise


def _answer(port: _core.Port, job: Job, number: int, task: Any, discard: int) -> bool:
    """Makes and publishes one batch, after `discard` for nothing. False: there is no more data."""
    try:
        if discard:
            _discard(job, discard, task)
        _publish_batch(port, job, job.fetch(task))
    except EndOfData:
        port.publish_status(_core.STATUS_END)
        return False
    except Failed as error:
        _publish_exception(port, error.args[0], "", None)
    except BaseException as error:
        if not isinstance(error, Exception) and not job.sends(error):
            raise
        indices = indices_of(task)
        told = exception_text.remark(error, "headrace_report") or _name_odd_one(job, error, indices)
        note = _note(job, number, indices, port.noted)
        note = f"headrace: {told}\n{note}" if told else note
        _publish_exception(port, job.wrap_exception(), note, job.notes)
    return True


def _publish_exception(port: _core.Port, sent: raising.Sent, note: str, notes: restart_state.Notes | None) -> None:
    told = None if notes is None else pickle.dumps(notes)
    port.publish(_core.STATUS_ERROR, (sent, note, told))


def _discard(job: Job, count: int, task: Any) -> None:
    """Makes batches that a dead worker has made before, for nothing."""
    for _ in range(count):
        try:
            job.fetch(task)
        except (EndOfData, Failed):
            raise
        except Exception:
            continue  # as before


def _serve(port: _core.Port, job: Job, discard: int) -> None:
    has_data = True
    while (task := port.take()) is not None:
        kind, number, payload = task
        if kind == _core.TASK_STOP:
            return
        if kind == _core.TASK_EPOCH:
            job.begin_epoch(payload)
            has_data, discard = True, 0
            port.publish_status(_core.STATUS_SKIPPED)
            continue
        if has_data:
            has_data = _answer(port, job, number, payload, discard)
            discard = 0
        else:
            port.publish_status(_core.STATUS_SKIPPED)


def _local_trainers() -> int:
    """How many ranks a launcher (torchrun, accelerate) says that it started on this machine; 1 where there is none."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if re.fullmatch("[0-9]{1,6}", told) else 1


def main(opener: Pass, cargo: transport.Cargo, is_interrupted: bool) -> None:
    """The worker process's target. `cargo`: a Job and a Beginning. `is_interrupted`: a Ctrl-C ends it."""
    opener.check_process()
    if opener.mask is not None:  # forked: nothing was unpickled
        inherited.drop_handlers(opener.mask)
        inherited.drop_event_loop()
    gc_pause.work()
    job, beginning = cargo.value
    exit_code = 0
    try:
        if is_interrupted:
            signals.unblock()
        port = opener.open()
        os.register_at_fork(after_in_child=port.close)  # what the data set forks has no business with the arena
        trainers = _local_trainers()
        port.keep_heap(trainers)  # first: a worker_init_fn may know better
        job.prepare(port, beginning)
        port.share_cores(trainers)
        growth.Watch(port, job.dataset, beginning.look_s)
        _serve(port, job, beginning.discard)
        job.leave()
        port.close()
    except KeyboardInterrupt:
        exit_code = reports.INTERRUPTED  # in silence: the trainer raises it too
    _leave(exit_code)


def _leave(exit_code: int) -> None:
    """Ends the process as a forked one ends: finalizers and atexit handlers run, modules are not taken down one by one,
    which with torch takes longer than many an epoch. Only a spawned worker needs this."""
    if getattr(multiprocessing.current_process(), "_start_method", None) != "spawn":
        if exit_code:
            sys.exit(exit_code)
        return
    threading._shutdown()  # type: ignore[attr-defined]
    util._exit_function()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code)
