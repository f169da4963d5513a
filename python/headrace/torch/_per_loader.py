# SPDX-License-Identifier: Apache-2.0
"""Keeps values for each loader, torch's own included: its next epoch, how far it is, and what its next iterator
continues. The fallback uses them too, so nothing here needs the extension."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace._ranks.loader_identity import LoaderIdentity
from headrace.sampling import _epoch
from headrace.sampling._pending import Pending
from headrace.sampling._windows import Windows

_Known = TypeVar("_Known")
installed_options: dict[str, Any] = {}  # those of install(), for loaders that do not set them themselves


class PerLoader(Generic[_Known]):
    """Keeps a value for each loader that is alive, by its identity, because a subclass may compare loaders and have no
    hash. The value is not an attribute of the loader: torch's own loaders have headrace's iterators too, and a copy of
    a loader starts without it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], _Known]] = {}

    def get(self, loader: Any) -> _Known | None:
        found = self._known.get(id(loader))
        return None if found is None else found[1]

    def set(self, loader: Any, value: _Known) -> None:
        key, known = id(loader), self._known
        # A callback written in Python would lose a Ctrl-C that arrives when it begins.
        known[key] = (weakref.ref(loader, functools.partial(known.pop, key)), value)

    def drop(self, loader: Any) -> None:
        self._known.pop(id(loader), None)

    def get_or_make(self, loader: Any, make: Callable[[], _Known]) -> _Known:
        """Returns the value of a loader. The first time it is make()."""
        found = self.get(loader)
        if found is None:
            found = make()
            self.set(loader, found)
        return found


epochs: PerLoader[int] = PerLoader()  # the number of the next epoch
pending: PerLoader[Pending] = PerLoader()  # what the next iterator continues
warned: PerLoader[bool] = PerLoader()  # of a set_epoch that was forgotten
places: PerLoader[LoaderIdentity] = PerLoader()  # the lines that made the loader
agreements: PerLoader[Any] = PerLoader()  # how it is compared with those of other ranks: see _agree
looked: PerLoader[int] = PerLoader()  # epochs in which the parts of ranks were compared: see _overlap
initials: PerLoader[bytes] = PerLoader()  # state of a dataset before another one was loaded into it, pickled
past_draws: PerLoader[Any] = PerLoader()  # what its epochs were drawn from: see _past_draws
progress: PerLoader[_epoch.Progress] = PerLoader()  # the newest epoch
windows: PerLoader[Windows] = PerLoader()  # the epochs of a loader with steps_per_epoch


def pending_of(loader: Any) -> Pending | None:
    """Returns what the next iterator of a loader continues, or None."""
    found = pending.get(loader)
    if found is not None and found.is_used:
        pending.drop(loader)
        return None
    return found


def number_of_next(loader: Any, continued: Pending | None) -> int:
    """Returns the number of the loader's next epoch. continued: what it continues."""
    state = None if continued is None else continued.state
    return (epochs.get(loader) or 0) if state is None else state.epoch


def has_begun(loader: Any, epoch: _epoch.Progress, number: int, continued: Pending | None) -> None:
    """Notes an epoch that has begun, as the last step of iter(): if it is interrupted, the next one does it again."""
    if continued is not None:
        continued.begun = epoch
    progress.set(loader, epoch)
    epochs.set(loader, number + 1)
