# SPDX-License-Identifier: Apache-2.0
"""A GPU that is simulated, for the option `device`: a Device (headrace/torch/_device/interface.py) in this process.

A thread is its stream for copies. It copies late, and reads the bytes only then. "Device memory" is on the CPU,
where freed memory is filled with 0xFF and used again, as torch's allocator does: at once, for the next allocation.
It fails (`faults`) if registered memory is punched, unmapped or registered twice, if a copy crosses the border of
registered memory or finds other bytes than when it was begun, if it writes memory that a consumer's kernel still reads,
for a call during the capture of a graph or in a forked child, and if an error of the runtime is left behind.

It can be made to refuse, to lag, to run out of memory and to lose events.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from headrace import _core
from headrace.torch._device import choose

GARBAGE = 0xFF


class OutOfMemory(RuntimeError):
    pass


class Event:
    def __init__(self) -> None:
        self.happened = threading.Event()


class Simulated:
    """The device. Tests read `faults`, and set how it behaves."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.registered: dict[int, int] = {}  # address -> size
        self.calls: list[str] = []
        self.refuses_after: int | None = None  # registrations that succeed before it refuses
        self.room: int | None = None  # allocations that succeed before memory has run out
        self.loses_events = False
        self.is_in_capture = False
        self.last_error = False
        self.clears_errors = True
        self.unregister_fails = False
        self.go = threading.Event()  # cleared: copies wait
        self.go.set()
        self.copied: list[int] = []  # the sizes of the copies
        self._free: dict[int, list[Any]] = {}  # size -> blocks
        self.blocks: set[int] = set()  # the addresses of all memory of the device
        self._pid = os.getpid()
        self._lost = _core.guard_lost()
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="simulated-gpu", daemon=True)
        self._thread.start()

    # ---- the calls ----

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if os.getpid() != self._pid:
            self._fail(f"{name} in a forked child")
        if self.is_in_capture and name != "is_capturing":
            self._fail(f"{name} during a capture")
        self.look()

    def look(self) -> None:
        """Notes what has happened to registered memory since the last look."""
        lost = _core.guard_lost()
        if lost != self._lost:
            self._lost = lost
            self._fail("registered memory was punched or unmapped")

    def _fail(self, fault: str) -> None:
        self.faults.append(fault)

    def register(self, address: int, size: int) -> str | None:
        self._call("register")
        if self.refuses_after is not None and len(self.registered) >= self.refuses_after:
            self.last_error = not self.clears_errors
            return "out of memory (2)"
        try:
            _core.guard(address, size)
        except OSError:
            self._fail("memory was registered twice")
        self.registered[address] = size
        return None

    def unregister(self, address: int) -> str | None:
        self._call("unregister")
        if self.unregister_fails:
            return "unknown error (999)"
        if self.registered.pop(address, None) is None:
            self._fail("memory was unregistered that is not registered")
        else:
            _core.guard(address, 0)
        return None

    def run(self, function: Callable[[], Any]) -> Any:
        return _core.call_and_undo(function, lambda: None)

    def allocate(self, sources: list[Any]) -> list[Any]:
        self._call("allocate")
        if self.room is not None:
            if self.room <= 0:
                raise OutOfMemory("the simulated device has no memory left")
            self.room -= 1
        return [self._allocated(one) for one in sources]

    def _allocated(self, source: Any) -> Any:
        """Returns a tensor over memory that was freed before, if there is some. What is in it is garbage."""
        size = source.nbytes
        free = self._free.setdefault(size, [])
        block = free.pop() if free else self._garbage(ctypes.create_string_buffer(size))
        owner = type("Owner", (ctypes.c_ubyte * size,), {}).from_address(ctypes.addressof(block))
        weakref.finalize(owner, self._freed, block).atexit = False
        self.blocks.add(ctypes.addressof(block))
        flat = torch.frombuffer(owner, dtype=source.dtype)
        return flat.as_strided(source.size(), source.stride())

    def _garbage(self, block: Any) -> Any:
        ctypes.memset(block, GARBAGE, len(block))
        return block

    def _freed(self, block: Any) -> None:
        self._free[len(block)].append(self._garbage(block))

    def copy(self, targets: list[Any], sources: list[Any]) -> None:
        self._call("copy")
        if self.calls[-2] != "wait_for_consumers":
            self._fail("a copy did not wait for the kernels that may read the memory of its target")
        if self.last_error:
            self._fail("an error of the runtime was left behind")
        for target, source in zip(targets, sources, strict=True):
            self._check_border(source)
            self.copied.append(source.nbytes)
            address, size = source.data_ptr(), source.nbytes
            self._work.put((target, address, size, zlib.crc32(ctypes.string_at(address, size))))

    def _check_border(self, source: Any) -> None:
        first, end = source.data_ptr(), source.data_ptr() + source.nbytes
        for address, size in self.registered.items():
            if first < address + size and address < end and not (address <= first and end <= address + size):
                self._fail("a copy crosses the border of registered memory")

    def record(self) -> Event:
        self._call("record")
        event = Event()
        self._work.put(event)
        return event

    def query(self, event: Event) -> bool:
        self._call("query")
        return not self.loses_events and event.happened.is_set()

    def wait(self, event: Event | None) -> None:
        self._call("wait" if event is not None else "wait_for_consumers")
        if event is not None:
            self.go.set()  # the consumer's kernels need the copy now
            event.happened.wait(50)

    def synchronize(self, event: Event | None, timeout: float | None) -> bool:
        self._call("synchronize")
        if timeout is None:
            self.go.set()
        event = self.record() if event is None else event
        return event.happened.wait(50 if timeout is None else timeout)

    def is_capturing(self) -> bool:
        self._call("is_capturing")
        return self.is_in_capture

    # ---- the stream ----

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            self.go.wait(50)
            if isinstance(item, Event):
                item.happened.set()
                continue
            target, address, size, crc = item
            ctypes.memmove(target.data_ptr(), address, size)
            if zlib.crc32(ctypes.string_at(target.data_ptr(), size)) != crc:
                self._fail("the bytes of a copy changed before it was done")

    def close(self) -> None:
        """Ends the thread, and looks a last time."""
        self.go.set()
        self._work.put(None)
        self._thread.join(50)
        self.look()
        for address in list(self.registered):
            _core.guard(address, 0)


def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    """Yields a device that every loader with the option `device` gets, for a fixture."""
    simulated = Simulated()
    monkeypatch.setattr(choose, "resolved", lambda given: torch.device("cpu"))
    monkeypatch.setattr(choose, "opened", lambda given: simulated)
    yield simulated
    gc.collect()
    simulated.close()
