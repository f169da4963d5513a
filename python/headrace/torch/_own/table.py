# SPDX-License-Identifier: Apache-2.0
"""Keeps values for each loader, torch's own included, such as its position in its epochs. The fallback uses them too,
so nothing here needs the extension."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace._options import Settings, explained_as_attributes, own_values
from headrace.sampling._position import EpochPosition

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


_positions: PerLoader[EpochPosition] = PerLoader()
tunings: PerLoader[Any] = PerLoader()  # the Tuning of a loader with num_workers="auto"


def position_of(loader: Any) -> EpochPosition:
    """Returns how far a loader is in its epochs."""
    return _positions.get_or_make(loader, EpochPosition)


def take_position(loader: Any, position: EpochPosition) -> None:
    """Gives a copy of a loader its position."""
    _positions.set(loader, position)


def settings_of(loader: Any, is_iterable: bool) -> Settings:
    """Returns the settings of a loader: its own, if it is one of headrace's, and those of install(). Raises TypeError
    and ValueError."""
    own = own_values(loader)
    if not own:
        return Settings.of(own, installed_options, is_iterable)
    with explained_as_attributes():
        return Settings.of(own, installed_options, is_iterable)


def option(loader: Any, name: str) -> Any:
    """Returns one of headrace's options of a loader, which may be torch's own. It is not checked."""
    return Settings.one(name, own_values(loader), installed_options)
