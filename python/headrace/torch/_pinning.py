# SPDX-License-Identifier: Apache-2.0
"""pin_memory: torch's own pinning thread, fed with batches that have arrived while the consumer was busy."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import torch

from headrace import _crew
from headrace.torch import _internals


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
        """The oldest batch, pinned. Raises what pinning it raised."""
        self.count -= 1
        _, batch = self._out.get()
        if isinstance(batch, _internals.ExceptionWrapper):
            batch.reraise()
        return batch

    def drop_all(self) -> None:
        while self.count:
            with contextlib.suppress(Exception):  # of a batch that nobody wants any more
                self.take()

    def close(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
        self._thread.join()

    def __del__(self) -> None:
        self._is_done.set()
        self._in.put((None, None))
