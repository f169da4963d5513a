# SPDX-License-Identifier: Apache-2.0
"""The option `device` of a loader with workers: its sender, and the memory that outlives its iterators, so that nothing
is registered again in the next epoch. _iterator.py makes one for each iterator."""

from __future__ import annotations

import weakref
from multiprocessing import util
from typing import Any

from headrace import _core
from headrace._options import Settings
from headrace.torch._device import choose, sender
from headrace.torch._own import table


class Memory:
    """Gives the engine of one iterator the sender, the arena of the iterator before, and what keeps the arena for
    the next one."""

    def __init__(self, loader: Any, device: Any, prefetch: int, options: tuple[Any, ...]) -> None:
        target, opened = choose.resolved(device), choose.opened(device)
        self._loader = weakref.ref(loader)
        self._options = (*options, str(target))
        self.sender = sender.Sender(opened, target, prefetch)

    def for_engine(self) -> dict[str, Any]:
        """Returns arguments of Engine. It is called for each try to start one."""
        kept = table.kept(self._loader())
        arena, kept.arena = kept.arena, None
        if arena is None or arena.options != self._options:
            return {"sender": self.sender, "end": self.end}
        return {"sender": self.sender, "arena": arena.hand_over(self.sender), "end": self.end}

    def end(self, core: _core.Loader, timeout: float, have_ended: bool) -> None:
        """Waits for the copies, then keeps the arena for the loader, or closes it."""
        loader = self._loader()
        is_kept = have_ended and loader is not None and not util.is_exiting()
        if self.sender.close(timeout, keeps_registered=is_kept) and is_kept:
            table.kept(loader).arena = sender.KeptArena(core.detach(), self.sender, self._options)
        else:
            core.close()


def memory_of(loader: Any, settings: Settings, workers: int, prefetch_factor: int | None) -> Memory | None:
    """Returns the memory of an iterator, or None if the batches of the loader stay on the CPU."""
    if choose.parsed(settings.device) is None:
        return None
    options = workers, prefetch_factor, settings.limit_bytes
    return Memory(loader, settings.device, settings.device_prefetch, options)
