# SPDX-License-Identifier: Apache-2.0
"""The table of what headrace keeps of each of torch's loaders, and the options of install(). The fallback uses it too,
so nothing here needs the extension."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from headrace._loader.both.per_loader import PerLoader
from headrace._options import Settings, explained_as_attributes, own_values

installed_options: dict[str, Any] = {}  # those of install(), for loaders that do not set them themselves

# By identity, because a subclass may compare loaders and have no hash. A record is not an attribute of its loader:
# torch's own loaders have headrace's iterators too, and a copy of a loader starts without it.
_kept: dict[int, tuple[weakref.ref[Any], PerLoader]] = {}


def found(loader: Any) -> PerLoader | None:
    """Returns what is kept of a loader, or None if nothing is."""
    one = _kept.get(id(loader))
    return None if one is None else one[1]


def kept(loader: Any) -> PerLoader:
    """Returns what is kept of a loader. The first time it is empty."""
    one = found(loader)
    if one is None:
        one, key = PerLoader(), id(loader)
        # A callback written in Python would lose a Ctrl-C that arrives when it begins.
        _kept[key] = (weakref.ref(loader, functools.partial(_kept.pop, key)), one)
    return one


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
