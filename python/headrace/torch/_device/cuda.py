# SPDX-License-Identifier: Apache-2.0
"""A GPU of CUDA, by torch's public interface. choose.py opens it.

One stream for copies exists per GPU and process, because torch's allocator keeps free memory per stream. Memory that
the consumer frees goes back to this stream, which waits for the streams that batches were delivered to before it
writes. So no call of record_stream is needed, by which memory would grow as far as the CPU runs ahead.

Calls that would end the capture of a graph in another thread run in relaxed mode (cudaThreadExchangeStreamCaptureMode).
That function and cudaGetLastError are not in torch's interface; they are called in the libcudart that torch has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from headrace import _core

_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs of this process
_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_POLL_S = 0.0002  # how often a wait with a deadline looks
_CAPTURED = (
    "headrace: a CUDA graph is being captured in a stream to which a loader with device= has delivered batches; no "
    "batch can be sent meanwhile, because the copy would become a part of the graph: capture in a stream of its own"
)


class _Streams:
    """The stream for copies of one GPU, and the streams to which batches were delivered."""

    def __init__(self, device: torch.device) -> None:
        self.copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.consumers: dict[int, Any] = {}


@functools.cache
def _streams_of(index: int, pid: int) -> _Streams:
    return _Streams(torch.device("cuda", index))


def _library_of_torch() -> str | None:
    """Returns the path of the library by which torch calls the CUDA runtime. Names are looked up in what it depends on,
    so that they are those of the same runtime, if another package has loaded one of its own."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.partition("/")[2].strip()
            if os.path.basename(path).startswith("libc10_cuda"):
                return f"/{path}"
    return None


@functools.cache
def _runtime() -> Any:
    """Returns the CUDA runtime for calls that take no time, or None if it is not found: torch may contain it."""
    try:
        library = ctypes.PyDLL(_library_of_torch())
        library.cudaThreadExchangeStreamCaptureMode.argtypes = [ctypes.POINTER(ctypes.c_int)]
        library.cudaGetLastError.restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return library


class Cuda:
    """A Device (interface.py)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index
        self._streams = _streams_of(device.index, os.getpid())
        self._current: Any = None  # the stream of the consumer who calls next()
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._runtime = _runtime() if self._cudart is not None else None

    # ---- memory ----

    def register(self, address: int, size: int) -> str | None:
        with self._relaxed(), torch.cuda.device(self._device):
            return self._why_failed(self._cudart.cudaHostRegister(address, size, _PORTABLE))

    def unregister(self, address: int) -> str | None:
        with self._relaxed(), torch.cuda.device(self._device):
            return self._why_failed(self._cudart.cudaHostUnregister(address))

    def _why_failed(self, code: Any) -> str | None:
        """Returns the runtime's text, or None for success. A failed call leaves an error behind that torch would take
        for one of the user's next kernel, so it is cleared."""
        if code == self._cudart.cudaError.success:
            return None
        self._clear_error()
        return f"{self._cudart.cudaGetErrorString(code)} ({int(code)})"

    def _clear_error(self) -> None:
        if self._runtime is not None:
            self._runtime.cudaGetLastError()
            return
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)  # torch looks for errors after it has launched a kernel

    # ---- copies ----

    def run(self, function: Callable[[], Any]) -> Any:
        before = [torch.cuda.current_stream()]
        if before[0].device_index != self._index:  # set_stream changes the device too
            before.insert(0, torch.cuda.current_stream(self._index))
        self._current = before[0]
        copies = self._streams.copies

        def in_stream() -> Any:
            torch.cuda.set_stream(copies)
            return function()

        def undo() -> None:
            for stream in before:
                torch.cuda.set_stream(stream)

        with self._relaxed():
            return _core.call_and_undo(in_stream, undo)

    def allocate(self, sources: list[Any]) -> list[Any]:
        if torch.are_deterministic_algorithms_enabled():  # then torch fills new memory with a kernel, at once
            self.wait(None)
        return [torch.empty_like(one, device=self._device) for one in sources]

    def copy(self, targets: list[Any], sources: list[Any]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

    def record(self) -> Any:
        return self._streams.copies.record_event()

    def query(self, event: Any) -> bool:
        with self._relaxed():
            return bool(event.query())

    def wait(self, event: Any) -> None:
        streams = self._streams
        if event is None:
            for stream in list(streams.consumers.values()):
                if self._is_captured(stream):
                    raise RuntimeError(_CAPTURED)
                streams.copies.wait_stream(stream)
            return
        current = torch.cuda.current_stream(self._index)
        streams.consumers.setdefault(current.cuda_stream, current)
        current.wait_event(event)

    def synchronize(self, event: Any, timeout: float | None) -> bool:
        event = self.record() if event is None else event
        if timeout is None:
            with self._relaxed():
                event.synchronize()
            return True
        deadline = time.monotonic() + timeout
        while not self.query(event):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    # ---- graphs ----

    def is_capturing(self) -> bool:
        if torch.cuda.current_device() == self._index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()

    def _is_captured(self, stream: Any) -> bool:
        """Returns True if another thread captures a graph in a stream. is_capturing has looked at the current one."""
        if self._current is not None and stream.cuda_stream == self._current.cuda_stream:
            return False
        with torch.cuda.stream(stream):
            return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Lets calls of this thread run while another thread captures a graph."""
        if self._runtime is None:
            yield
            return
        mode = ctypes.c_int(_RELAXED)
        self._runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            self._runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
