# SPDX-License-Identifier: Apache-2.0
"""The calls that the sender makes of a device. cuda.py has those of torch; the tests have a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Device(Protocol):
    """A device with one stream for copies. It is used by one thread at a time."""

    def register(self, address: int, size: int) -> str | None:
        """Registers memory, so that copies from it are fast and need no thread. Returns why it was refused, or None."""

    def unregister(self, address: int) -> str | None:
        """Ends that. Returns why it failed, or None."""

    def run(self, function: Callable[[], Any]) -> Any:
        """Returns function(), which allocates, waits, copies and records, in the stream for copies. Whatever happens,
        the stream that was current before is so afterwards."""

    def allocate(self, sources: list[Any]) -> list[Any]:
        """Returns tensors on the device of the shapes, strides and dtypes of others."""

    def copy(self, targets: list[Any], sources: list[Any]) -> None:
        """Begins to copy tensors. It reads them later, until an event that is recorded now."""

    def record(self) -> Any:
        """Returns an event, which happens when all copies until now have ended."""

    def query(self, event: Any) -> bool:
        """Returns True if an event has happened."""

    def wait(self, event: Any) -> None:
        """Makes the current stream wait for an event, and remembers that batches are delivered to this stream. None:
        the stream for copies waits for what is in those streams now. This process does not wait."""

    def synchronize(self, event: Any, timeout: float | None) -> bool:
        """Waits for an event, or for all copies until now (None). Returns False if the time was not enough."""

    def is_capturing(self) -> bool:
        """Returns True if a CUDA graph is being captured in the current stream."""
