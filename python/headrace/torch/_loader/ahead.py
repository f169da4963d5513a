# SPDX-License-Identifier: Apache-2.0
"""Ahead: batches that arrived while the consumer was busy. The pinning thread has them, or they are sent to a device.
The iterator over workers uses it."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

from headrace import _core
from headrace._base import signals
from headrace._loader.trainer.engine import Engine
from headrace.torch._device.pinning import Pinner
from headrace.torch._device.sender import Sender


class _Batch(NamedTuple):
    """A batch that is ahead: its number for the thread or the device, and its number for the engine."""

    number: int
    serial: int


class Ahead:
    """See above. worker: the pinning thread, or the sender of a device. Each call gets the iterator, and keeps no
    reference to it."""

    def __init__(self, engine: Engine, show: _core.Show, worker: Pinner | Sender) -> None:
        self._engine, self._show, self._worker = engine, show, worker
        self._sender = worker if isinstance(worker, Sender) else None
        self._batches: collections.deque[_Batch] = collections.deque()

    @property
    def results(self) -> dict[int, Any]:
        """The batches that are ready, by number."""
        return self._worker.results

    def begin_epoch(self) -> int:
        """Drops what is ahead. Returns the number of the next batch."""
        number = self._worker.drop_all()
        if self._sender is not None:
            self._sender.begin_epoch()
        self._batches.clear()
        return number

    def next(self, iterator: Any) -> Any:
        """Returns the next batch, pinned or on the device, and passes on those that have arrived."""
        if self._sender is not None:
            self._sender.begin()
        while self._batches and self._batches[0].number < iterator._answered:
            self._batches.popleft()  # the consumer has it
        if not self._batches:
            self._put(iterator, iterator._wait())
        first = self._batches[0]
        self._engine.submit_owed(iterator, keep=len(self._batches) - 1 + self._is_behind())
        self._show.pin_begin()
        value = self._worker.take(first.number)
        self._show.pin_end()
        self._look_ahead(iterator)
        return value

    def _is_behind(self) -> bool:
        """Returns True if the last answer is an exception, which is not among the batches ahead."""
        return self._engine.has_answer and self._batches[-1].serial != self._engine.serial

    def _look_ahead(self, iterator: Any) -> None:
        """Gives the batches that have arrived to the pinning thread, which works while the consumer does, or sends some
        to the device. Stops at an exception, which is raised in its turn."""
        while self._may_look_ahead() and (status := self._engine.next_if_ready()) is not None:
            try:
                self._put(iterator, status)
            except Exception as error:
                if signals.is_from_signal(error):
                    raise
                if self._sender is not None and self._sender.has_failed:
                    self._sender.stop_ahead(error)
                return

    def _may_look_ahead(self) -> bool:
        return self._sender is None or self._sender.may_send_ahead(len(self._batches) - 1)

    def _put(self, iterator: Any, status: int) -> None:
        """Adds the last answer to the batches that are ahead. If a signal interrupts it, the next call continues where
        this one stopped, because the answer has a number and stays until it is dropped."""
        serial = self._engine.serial
        if not self._batches or self._batches[-1].serial != serial:
            number = iterator._answered + len(self._batches)
            batch = self._engine.answer(iterator, status, iterator._batch_size)
            self._worker.put(number, batch, self._engine.has_others)
            iterator._task_numbers[number] = self._engine.task
            self._batches.append(_Batch(number, serial))
        self._engine.drop()

    def close(self) -> None:
        """Ends the pinning thread. The sender of a device ends with the engine."""
        if isinstance(self._worker, Pinner):
            self._worker.close()
