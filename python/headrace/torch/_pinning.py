# SPDX-License-Identifier: Apache-2.0
"""pin_memory: torch's own pinning thread, fed with batches that have arrived while the consumer was busy."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch

from headrace import _crew
from headrace.torch import _internals

LOOK_S = 1.0  # the thread is looked at this often


class Pinner:
    """A thread that copies batches into pinned memory, in order. Closed by `close`, or when it is not referred to any
    more."""

    def __init__(self, device: str | None) -> None:
        self.count = 0  # batches that were put and not taken yet
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out: queue.Queue[Any] = queue.Queue()
        self._is_done = threading.Event()
        index = torch.accelerator.current_device_index()
        arguments = (self._in, self._out, index, self._is_done, device)
        self._thread = threading.Thread(
            target=_internals.pin_memory._pin_memory_loop, args=arguments, name=_crew.PIN_THREAD, daemon=True
        )
        self._thread.start()

    def put(self, batch: Any) -> None:
        self._in.put((self.count, batch))
        self.count += 1

    def take(self) -> Any:
        """The oldest batch, pinned, or what pinning it raised, wrapped. What raises here leaves it to be taken."""
        while True:
            is_alive = self._thread.is_alive()
            try:
                _, batch = self._out.get(timeout=LOOK_S)
            except queue.Empty:
                if is_alive:
                    continue
                raise RuntimeError("Pin memory thread exited unexpectedly") from None  # in torch's words
            self.count -= 1
            return batch

    def drop_all(self) -> None:
        """Of an epoch that was broken off."""
        while self.count and self._thread.is_alive():
            self.take()

    def close(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
        self._thread.join()

    def __del__(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
