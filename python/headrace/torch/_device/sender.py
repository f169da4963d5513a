# SPDX-License-Identifier: Apache-2.0
"""Sends batches to a device: copies them from their slots while the consumer is busy, and keeps each slot until its
copy has ended. The iterator over workers uses it, in the place that torch's pinning thread has otherwise (_pinning.py).

The consumer never gets memory that is registered: torch calls it pinned, and would read it later without saying so. So
what stays on the CPU is a private copy. What the sender does with registered memory:

- A slot is registered when a batch arrives in it for the second time, one slot in a call of next(). So a short epoch
  pays nothing. One slot is one registration. The arena then keeps its pages (hr_arena_register).
- A copy holds its sources, which have leases on the slot, until its event has happened.
- Registered memory is unregistered before it is unmapped. If that fails, it stays mapped.

A forked child makes no call of the device, and keeps all objects of it, because their ends would make some.
"""

from __future__ import annotations

import collections
import os
import time
import weakref
from multiprocessing import util
from typing import Any

import torch

from headrace import _core
from headrace._base import signals
from headrace.torch._device import groups, move
from headrace.torch._device.interface import Device

RUNS_AHEAD = 2  # copies that may be unfinished beyond those that are ahead: the CPU is so many steps before the GPU
CAPTURING = (
    "headrace: a CUDA graph is being captured in the current stream, and next() of a loader with device= would end the "
    "capture; take the batch before the capture, and copy it into a tensor of the graph"
)
_IN_CHILD = "headrace: this iterator belongs to the process that forked this one; start a new loop in this process"

_kept_for_ever: list[Any] = []  # of copies that never ended, and what forked children inherited
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


class _Copy:
    """A batch that is being copied. Its sources hold the slot. event is None until the copy was begun as a whole."""

    __slots__ = ("event", "sources")

    def __init__(self, sources: list[Any]) -> None:
        self.sources = sources
        self.event: Any = None


class Registrations:
    """The slots of an arena that a device has registered, and what is counted of them. They outlive an iterator."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.slots: dict[int, tuple[int, int]] = {}  # slot -> address, size
        self.stuck: set[int] = set()  # slots that the device could not unregister
        self.refusal = ""  # why the device has refused
        self.is_full = False  # the rest is over the limit
        self.seconds = 0.0

    def add(self, core: _core.Loader, slot: int, size: int, has_grown: bool) -> bool:
        """Registers a slot. Returns False if it is copied plainly. No handler of a signal raises between its steps:
        memory that counts as registered and is not could not be unregistered, and would stay mapped."""
        return signals.without_signals(lambda: self._add(core, slot, size, has_grown))

    def _add(self, core: _core.Loader, slot: int, size: int, has_grown: bool) -> bool:
        begin = time.perf_counter()
        place = core.register_slot(slot, size, has_grown)
        if not place:
            self.is_full = place is None
            return False
        self.slots[slot] = place  # first: an exception of the device leaves it marked, and so mapped
        refusal = self.device.register(*place)
        if refusal is not None:
            del self.slots[slot]
            core.unregister_slot(slot)
            self.refusal = refusal
        self.seconds += time.perf_counter() - begin
        return refusal is None

    def remove(self, slot: int, core: Any = None, arena: Any = None) -> None:
        """Unregisters a slot. If that fails, it stays marked, and so mapped for the life of the process."""
        signals.without_signals(lambda: self._remove(slot, core, arena))

    def _remove(self, slot: int, core: Any, arena: Any) -> None:
        address, _ = self.slots.pop(slot)
        self.stuck.add(slot)
        if self.device.unregister(address) is not None:
            return
        self.stuck.discard(slot)
        if core is not None:
            core.unregister_slot(slot)
        else:
            _core.unregister_kept(arena, slot)

    def remove_all(self, core: Any = None, arena: Any = None) -> None:
        """Unregisters all slots at the end. A device that fails has nothing to say any more: its slots stay mapped."""
        for slot in list(self.slots):
            try:
                self.remove(slot, core, arena)
            except Exception:
                return


class KeptArena:
    """The memory of a loader between two of its iterators, with what the device has registered there."""

    def __init__(self, arena: Any, sender: Sender, options: tuple[Any, ...]) -> None:
        self._arena = arena
        self._registrations: Registrations | None = sender.registrations
        self.options = options
        self._pid = os.getpid()

    def hand_over(self, sender: Sender) -> Any:
        """Gives a sender what is registered. Returns the arena, for its loader."""
        assert self._registrations is not None
        sender.registrations, self._registrations = self._registrations, None
        return self._arena

    def __del__(self) -> None:
        if self._registrations is not None and os.getpid() == self._pid and not util.is_exiting():
            self._registrations.remove_all(arena=self._arena)


class Sender:
    """Sends the batches of one iterator. prefetch: how many batches are sent before the consumer asks for them."""

    def __init__(self, device: Device, target: torch.device, prefetch: int) -> None:
        self.results: dict[int, Any] = {}  # the batches that were sent, by number
        self._others: dict[int, tuple[Any, bool]] = {}  # number -> event, and whether something is left to be moved
        self._device = device
        self._target = target
        self._prefetch = prefetch
        self.registrations = Registrations(device)
        self._copies: collections.deque[_Copy] = collections.deque()
        self._event: Any = None  # of the answer that was sent last
        self._end = 0
        self._may_register = True
        self._pid = os.getpid()
        self._why_not_ahead = ""
        self.has_failed = False  # the last call of send has raised
        self._sent = self._tensors = self._waits = self._plain = self._bytes = 0
        _senders.add(self)

    # ---- next() ----

    def begin(self) -> None:
        """Begins a call of next(): frees the slots whose copies have ended. Raises RuntimeError if this is a forked
        child, or if a graph is being captured."""
        if os.getpid() != self._pid:
            raise RuntimeError(_IN_CHILD)
        if self._device.is_capturing():
            raise RuntimeError(CAPTURING)
        self._may_register = True
        copies = self._copies
        while copies and self._has_ended(copies[0]):
            copies.popleft()
        while len(copies) > self._prefetch + RUNS_AHEAD:
            self._waits += 1
            self._device.synchronize(copies[0].event, None)
            copies.popleft()

    def _has_ended(self, one: _Copy) -> bool:
        if one.event is None:  # a signal, or an exception of the device, has interrupted it: some may be on their way
            self._device.synchronize(None, None)
            return True
        return self._device.query(one.event)

    def may_send_ahead(self, ahead: int) -> bool:
        """Returns True if another batch may be sent, of which the consumer will ask later. Not in inference mode: the
        tensors would stay tensors of that mode."""
        return ahead < self._prefetch and not self._why_not_ahead and not torch.is_inference_mode_enabled()

    def stop_ahead(self, error: Exception) -> None:
        """Notes why a batch could not be sent ahead. In this epoch none is, any more."""
        self._why_not_ahead = f"{type(error).__name__}: {error}"

    def begin_epoch(self) -> None:
        self._why_not_ahead = ""

    # ---- sending ----

    def send(self, core: _core.Loader) -> list[Any]:
        """Copies the tensors of the answer to the device. Returns those that take their places. If it is called again
        for an answer that was rebuilt, it does nothing."""
        self.has_failed = True  # until it returns
        tensors = self._send(core)
        self.has_failed = False
        return tensors

    def _send(self, core: _core.Loader) -> list[Any]:
        sources = core.sources()
        if sources is None:
            return []
        self._event = None
        if not sources:
            return []
        copied, places = sources, None
        if not self._register(core):
            copied = [one.clone() for one in sources]
        elif len(sources) > groups.MOST_ALONE:
            copied, places = groups.pieces(sources, core.span)
        targets = self._device.run(lambda: self._copy(copied))
        self._sent += 1
        self._tensors += len(sources)
        return targets if places is None else groups.tensors(targets, sources, places)

    def _copy(self, sources: list[Any]) -> list[Any]:
        device = self._device
        targets = device.allocate(sources)
        one = _Copy(sources)
        self._copies.append(one)  # it holds the slot before the copy begins
        device.wait(None)  # the memory of the targets may be that of a batch which kernels still read
        device.copy(targets, sources)
        one.event = self._event = device.record()
        return targets

    def _register(self, core: _core.Loader) -> bool:
        """Registers the slot of the answer if that is due. Returns False if nothing can be copied from it."""
        place = core.slot()
        if place is None:
            self._plain += 1
            return True
        slot, size, registered, times = place
        if registered >= size:
            return True
        known = self.registrations
        if (
            registered and slot not in known.stuck
        ):  # it grew, and a copy must not cross the border of what is registered
            known.remove(slot, core)
        if slot in known.stuck:
            return False
        is_due = times > 1 and self._may_register and not known.refusal and not known.is_full
        self._may_register = self._may_register and not is_due
        if not is_due or not known.add(core, slot, size, registered > 0):
            self._plain += 1
        return True

    # ---- delivering: the part of Pinner ----

    def put(self, number: int, batch: Any, has_others: bool) -> None:
        """Keeps batch `number`, which was sent last. A caller that was interrupted calls it again."""
        self._end = number + 1
        self._others[number] = self._event, has_others
        self.results[number] = batch

    def take(self, number: int) -> Any:
        """Returns batch `number`, which the current stream may use from now on. It stays among the results."""
        while (first := next(iter(self._others))) < number:
            del self._others[first]
            self.results.pop(first, None)  # it was put twice
        event, has_others = self._others[number]
        if event is not None:
            self._device.wait(event)
        if has_others:
            self.results[number] = move.move(self.results[number], self._target)
            self._others[number] = event, False
        return self.results[number]

    def drop_all(self) -> int:
        """Drops the batches of an epoch that the consumer left. Returns the next number."""
        self.results.clear()
        self._others.clear()
        return self._end

    # ---- memory that is needed, and the end ----

    def settle(self, needs_memory: bool) -> None:
        """Waits for all copies, so that their slots are free. needs_memory: unregisters all, too."""
        while self._copies:
            self._waits += 1
            self._device.synchronize(self._copies[0].event, None)
            self._copies.popleft()
        if needs_memory:
            for slot in list(self.registrations.slots):
                self.registrations.remove(slot, self._core)

    def use(self, core: _core.Loader) -> None:
        """Sets the loader whose slots are registered."""
        self._core = core

    def close(self, timeout: float, keeps_registered: bool = False) -> bool:
        """Waits for the copies, and unregisters what is registered unless it is kept. What cannot be ended in time
        keeps its memory mapped. At the exit of the interpreter nothing is unregistered. Returns True if all has
        ended."""
        if os.getpid() != self._pid:
            return False
        self.drop_all()
        deadline = time.monotonic() + timeout
        while self._copies and self._end_in_time(self._copies[0], deadline):
            self._copies.popleft()
        if self._copies or util.is_exiting():
            _kept_for_ever.append((list(self._copies), self.registrations))
            self._copies.clear()
            return False
        if not keeps_registered:
            self.registrations.remove_all(self._core)
        return True

    def _end_in_time(self, one: _Copy, deadline: float) -> bool:
        """Returns False, too, if the device fails. After an illegal access each call of CUDA raises, and the consumer
        has the exception already."""
        try:
            return self._device.synchronize(one.event, max(0.0, deadline - time.monotonic()))
        except Exception:
            return False

    def report(self) -> dict[str, Any]:
        """Returns report()["device"]."""
        known = self.registrations
        return {
            "device": str(self._target),
            "registered_bytes": sum(size for _, size in known.slots.values()),
            "registered_slots": len(known.slots),
            "registering_s": known.seconds,
            "refusal": known.refusal,
            "is_full": known.is_full,
            "sent": self._sent,
            "tensors": self._tensors,
            "plain": self._plain,
            "waits": self._waits,
            "not_ahead": self._why_not_ahead,
        }


def _keep_in_child() -> None:
    _kept_for_ever.extend(vars(one).copy() for one in list(_senders))


os.register_at_fork(after_in_child=_keep_in_child)
