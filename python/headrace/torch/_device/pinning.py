# SPDX-License-Identifier: Apache-2.0
"""Pins batches for pin_memory=True: gives torch's pinning thread the batches that arrive while the consumer is busy.

The iterator over workers uses it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import torch

from headrace._base.this_process import PIN_THREAD
from headrace.torch._own import workers

CHECK_S = 1.0  # a waiting consumer checks this often whether the thread is alive


class _Results:
    """The batches that the pinning thread has pinned, by number. It is a dict and a lock written in C, because an
    exception of a signal's handler can lose an item that is being taken out of a queue."""

    def __init__(self) -> None:
        self.batches: dict[int, Any] = {}
        self.end = 0  # the number after the last one that was put
        self._news = threading.Lock()  # released when something was put
        self._news.acquire()

    def put(self, item: tuple[int, Any], timeout: float | None = None) -> None:
        """Stores a batch. torch's loop calls it in its thread."""
        number, batch = item
        self.batches[number] = batch
        self.end = number + 1
        with contextlib.suppress(RuntimeError):  # the consumer has not noticed the last batch yet
            self._news.release()

    def wait(self, seconds: float) -> None:
        """Waits for a new batch, and may return without one."""
        self._news.acquire(timeout=seconds)


class Pinner:
    """A thread that copies batches into pinned memory, in order. It ends with `close`, or when the last reference to
    this object is gone."""

    def __init__(self, device: str | None) -> None:
        self._end = 0  # the number after the last one that was put
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out = _Results()
        self._is_done = threading.Event()
        index = torch.accelerator.current_device_index()
        arguments = (self._in, self._out, index, self._is_done, device)
        self._thread = threading.Thread(target=workers.pin_loop(), args=arguments, name=PIN_THREAD, daemon=True)
        self._thread.start()

    @property
    def results(self) -> dict[int, Any]:
        """Returns the pinned batches, by number."""
        return self._out.batches

    def put(self, number: int, batch: Any, has_others: bool) -> None:
        """Gives batch `number` to the thread. A caller that was interrupted calls it again. has_others: see Sender.put;
        the thread looks at all objects."""
        self._end = number + 1
        self._in.put((number, batch))

    def take(self, number: int) -> Any:
        """Returns batch `number`, pinned, or the wrapped exception of pinning it. It stays among the results."""
        results = self.results
        for old in [other for other in list(results) if other < number]:
            del results[old]  # it was put twice
        while number not in results:
            is_alive = self._thread.is_alive()
            self._out.wait(CHECK_S)
            if not is_alive and number not in results:
                raise RuntimeError("Pin memory thread exited unexpectedly")  # in torch's words
        return results[number]

    def drop_all(self) -> int:
        """Waits for the batches of an epoch that the consumer left, and drops them. Returns the next number."""
        while self._out.end < self._end and self._thread.is_alive():
            self._out.wait(CHECK_S)
        self.results.clear()
        return self._end

    def close(self) -> None:
        """Ends the thread."""
        self._is_done.set()
        self._in.put((None, None))
        self._thread.join()

    def __del__(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
