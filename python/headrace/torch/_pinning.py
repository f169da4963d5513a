# SPDX-License-Identifier: Apache-2.0
"""pin_memory: torch's own pinning thread, fed with batches that have arrived while the consumer was busy."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import torch

from headrace._inspect import this_process
from headrace.torch import _internals

LOOK_S = 1.0  # the thread is looked at this often


class _Results:
    """What the pinning thread has pinned, by number. A dict and a lock in C: an exception of a signal's handler
    cannot take anything out of it that does not arrive, as it can with a queue."""

    def __init__(self) -> None:
        self.batches: dict[int, Any] = {}
        self.end = 0  # after the number that was put last
        self._news = threading.Lock()  # unlocked when something was put
        self._news.acquire()

    def put(self, item: tuple[int, Any], timeout: float | None = None) -> None:
        """Called by torch's loop, in its thread."""
        number, batch = item
        self.batches[number] = batch
        self.end = number + 1
        with contextlib.suppress(RuntimeError):  # the consumer has not seen the last news yet
            self._news.release()

    def wait(self, seconds: float) -> None:
        """Waits for news. It may return without any."""
        self._news.acquire(timeout=seconds)


class Pinner:
    """A thread that copies batches into pinned memory, in order. Closed by `close`, or when it is not referred to any
    more."""

    def __init__(self, device: str | None) -> None:
        self._end = 0  # after the number that was put last
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out = _Results()
        self._is_done = threading.Event()
        index = torch.accelerator.current_device_index()
        arguments = (self._in, self._out, index, self._is_done, device)
        self._thread = threading.Thread(
            target=_internals.pin_memory._pin_memory_loop, args=arguments, name=this_process.PIN_THREAD, daemon=True
        )
        self._thread.start()

    @property
    def results(self) -> dict[int, Any]:
        """What was pinned, by number."""
        return self._out.batches

    def put(self, number: int, batch: Any) -> None:
        """Gives batch `number` to the thread. If that was interrupted, it is given again."""
        self._end = number + 1
        self._in.put((number, batch))

    def take(self, number: int) -> Any:
        """Returns batch `number`, pinned, or what pinning it raised, wrapped. It stays among the results."""
        results = self.results
        for old in [other for other in list(results) if other < number]:
            del results[old]  # was put twice
        while number not in results:
            is_alive = self._thread.is_alive()
            self._out.wait(LOOK_S)
            if not is_alive and number not in results:
                raise RuntimeError("Pin memory thread exited unexpectedly")  # in torch's words
        return results[number]

    def drop_all(self) -> int:
        """Waits for the batches of an epoch that was broken off, and drops them. Returns the next number."""
        while self._out.end < self._end and self._thread.is_alive():
            self._out.wait(LOOK_S)
        self.results.clear()
        return self._end

    def close(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
        self._thread.join()

    def __del__(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
