# SPDX-License-Identifier: Apache-2.0
"""The main function of a worker process: it takes tasks from its port, has batches made, and publishes them.

The crew starts processes with it. A BatchMaker makes the batches (headrace._loader.worker.batch_maker).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

from headrace import _core
from headrace._base import exception_text, growth, pickling, raising  # noqa: F401
from headrace._base.status import Status
from headrace._loader.start import blocking, gc_pause, transport
from headrace._loader.worker import inherited
from headrace._loader.worker.batch_maker import BatchMaker, BatchNotes, EndOfData, Failed, count_local_trainers
from headrace._loader.worker.descriptors import WorkerDescriptors
from headrace._samples import deferred, image_counts
from headrace._samples.names import has_indices, name_odd_one, name_sample, replay_command
from headrace._samples.refill import draws_of, indices_of
from headrace._samples.threaded import Stopped

INTERRUPTED = 128 + signal.SIGINT  # the exit code after a KeyboardInterrupt; shells use the same number


def _note(maker: BatchMaker, batch: int, indices: Any, position: int | None, draws: Sequence[int]) -> str:
    """Returns the note of an exception, which says where it came from."""
    text = f"headrace: {name_sample(batch, indices, position)} (worker {maker.worker})"
    replay = replay_command(indices, position, maker.seeding, draws)
    return f"{text}\nheadrace: {replay}" if replay else text


def _collate(maker: BatchMaker, samples: Any) -> Any:
    """Collates in Python. An exception gets the attribute headrace_place: the number of samples, and the place of the
    sample that it is about."""
    try:
        return maker.collate(samples)
    except Exception as error:
        if isinstance(samples, list) and samples and not isinstance(error, MemoryError):
            with contextlib.suppress(Exception):  # some exception classes refuse new attributes
                error.headrace_place = len(samples), _first_odd_one(maker, samples, error)  # type: ignore[attr-defined]
        raise


def _first_odd_one(maker: BatchMaker, samples: list[Any], error: Exception) -> int:
    """Returns the place of the first sample that fails to collate with those before it. It collates fewer samples until
    the same exception does not come."""
    good, bad = 0, len(samples)  # the first `good` samples collate, the first `bad` ones do not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            maker.collate(samples[:middle])
            good = middle
        except type(error):
            bad = middle
    return good


def _name_odd_one(maker: BatchMaker, error: BaseException, indices: Any) -> str:
    """Returns the name of the sample that did not collate, or "" if every sample collated or if the sample may not be
    the one of `indices` at that place."""
    count, place = exception_text.remark(error, "headrace_place") or (0, None)
    if place is None or (maker.notes is not None and maker.notes.bad):
        return ""
    if has_indices(indices) and len(indices) != count:
        return ""  # __getitems__ has left some out
    return name_odd_one(indices, place)


def _publish_batch(port: _core.Port, maker: BatchMaker, task: Any, data: Any) -> None:
    image_counts.post()
    if maker.notes is not None:
        data = _collate(maker, data) if maker.collates_in_c else data
        _publish(port, _core.STATUS_NOTED, data, (pickle.dumps(maker.notes), data))
    elif not maker.collates_in_c:
        _publish(port, _core.STATUS_BATCH, data, data)
    elif isinstance(data, _core.Rows):
        if not port.collate(data, maker.flavor):
            _publish_batch(port, maker, task, maker.fetch_each(task))
    elif not (maker.still_collates_in_c() and _collate_in_c(port, maker, data)):
        data = _collate(maker, data)
        _publish(port, _core.STATUS_BATCH, data, data)


def _collate_in_c(port: _core.Port, maker: BatchMaker, data: Any) -> bool:
    return port.collate(data, maker.flavor) or (maker.finish(data) and port.collate(data, maker.flavor))


def _publish(port: _core.Port, status: int, batch: Any, message: Any) -> None:
    """Publishes a batch. If that raises because the batch cannot be pickled, the exception gets the attribute
    headrace_report."""
    try:
        port.publish(status, message)
    except Exception as error:
        from headrace._pickles import check  # imported here because few batches ever fail

        report = check.what_is_in_the_way(check.check_batch, batch)
        if report is not None:
            with contextlib.suppress(Exception):  # some exception classes refuse new attributes
                error.headrace_report = report  # type: ignore[attr-defined]
        raise


def _answer(port: _core.Port, maker: BatchMaker, number: int, task: Any, discard: int) -> bool:
    """Makes and publishes one batch, after it has made and discarded `discard` batches. Returns False if there is no
    more data."""
    try:
        if discard:
            _discard(maker, discard, task)
        _publish_batch(port, maker, task, maker.fetch(task))
        deferred.settle_kept()
    except EndOfData:
        port.publish_status(_core.STATUS_END)
        return False
    except Failed as error:
        _publish_exception(port, error.args[0], "", None)
    except BaseException as error:
        if isinstance(error, Stopped) or not (isinstance(error, Exception) or maker.sends(error)):
            raise
        indices = indices_of(task)
        reason = exception_text.remark(error, "headrace_report") or _name_odd_one(maker, error, indices)
        note = _note(maker, number, indices, port.noted, draws_of(task))
        note = f"headrace: {reason}\n{note}" if reason else note
        _publish_exception(port, maker.wrap_exception(), note, maker.notes)
    return True


def _publish_exception(port: _core.Port, sent: raising.Sent, note: str, notes: BatchNotes | None) -> None:
    pickled_notes = None if notes is None else pickle.dumps(notes)
    port.publish(_core.STATUS_ERROR, (sent, note, pickled_notes))


def _discard(maker: BatchMaker, count: int, task: Any) -> None:
    """Makes batches that a dead worker has made before, and discards them."""
    for _ in range(count):
        try:
            maker.fetch(task)
        except (EndOfData, Failed):
            raise
        except Exception:
            continue  # the dead worker has published this exception already


def _serve(port: _core.Port, maker: BatchMaker, discard: int) -> None:
    with contextlib.suppress(Stopped):
        _serve_tasks(port, maker, discard)


def _serve_tasks(port: _core.Port, maker: BatchMaker, discard: int) -> None:
    has_data = True
    while (task := port.take()) is not None:
        kind, number, payload = task
        if kind == _core.TASK_STOP:
            return
        if kind == _core.TASK_EPOCH:
            maker.begin_epoch(payload)
            has_data, discard = True, 0
            port.publish_status(_core.STATUS_SKIPPED)
            continue
        if has_data:
            has_data = _answer(port, maker, number, payload, discard)
            discard = 0
        else:
            port.publish_status(_core.STATUS_SKIPPED)


def main(descriptors: WorkerDescriptors, arguments: transport.WorkerArguments, is_interrupted: bool) -> None:
    """Runs a worker process from its start to its end. `arguments`: a BatchMaker and a StartState. `is_interrupted`:
    the trainer has not blocked SIGINT."""
    descriptors.check_process()
    if descriptors.is_forked:  # nothing was unpickled
        inherited.drop_handlers(descriptors.mask, True, descriptors.trainer)
        inherited.drop_event_loop()
    gc_pause.resume()
    maker, start = arguments.value
    exit_code = 0
    try:
        if is_interrupted:
            blocking.unblock()
        port = descriptors.open()
        os.register_at_fork(after_in_child=port.close)  # processes that the dataset forks must not use the arena
        trainers = count_local_trainers()
        port.keep_heap(trainers)  # before maker.prepare, so that worker_init_fn can change it
        if start.installs_images:
            _install_images()
        maker.prepare(port, start)
        port.share_cores(trainers)
        status = Status(port)
        image_counts.post_by(functools.partial(status.put, "images"))
        growth.Watch(port, status, maker.dataset, start.look_s)
        _serve(port, maker, start.discard)
        maker.leave()
        port.close()
    except KeyboardInterrupt:
        exit_code = INTERRUPTED  # without a traceback, because the trainer raises KeyboardInterrupt too
    _leave(exit_code)


def _install_images() -> None:
    """Does what images.install() did in the trainer."""
    from headrace import images  # imported here because it needs Pillow

    images.install()


def _leave(exit_code: int) -> None:
    """Ends the process like a forked one: finalizers and atexit handlers run, but modules are not taken down one by
    one, because with torch that takes longer than a short epoch. Only a spawned worker needs this."""
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
