# SPDX-License-Identifier: Apache-2.0
"""The record of what headrace keeps of each of torch's loaders, and the options of install(). The fallback uses it too,
so nothing here needs the extension."""

from __future__ import annotations

import weakref
from typing import Any

from headrace._base import lookup
from headrace._loader.both.per_loader import PerLoader
from headrace._loader.trainer.restart_state import goes_by_state
from headrace._options import Settings, explained_as_attributes, own_values

installed_options: dict[str, Any] = {}  # those of install(), for loaders that do not set them themselves

why_no_engine: str | None = None  # why the fallback is used

NAME = "_headrace_kept"


class _Kept:
    """The record of a loader, as an attribute of it: a sampler may hold its loader, and the record the sampler, so a
    table would keep both for ever. A copy of the loader shares the attribute, or has None in its place; it starts
    without a record."""

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.record = PerLoader()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def found(loader: Any) -> PerLoader | None:
    """Returns what is kept of a loader, or None if nothing is."""
    one = lookup.attribute(loader, NAME)
    return one.record if type(one) is _Kept and one.loader() is loader else None


def kept(loader: Any) -> PerLoader:
    """Returns what is kept of a loader. The first time it is empty."""
    record = found(loader)
    if record is None:
        one = _Kept(loader)
        object.__setattr__(loader, NAME, one)
        record = one.record
    return record


def settings_of(loader: Any, is_iterable: bool) -> Settings:
    """Returns the settings of a loader: its own, if it is one of headrace's, and those of install(). Raises TypeError
    and ValueError."""
    own, keeps_place = own_values(loader), goes_by_state(loader.dataset, is_iterable)
    if not own:
        return Settings.of(own, installed_options, is_iterable, keeps_place)
    with explained_as_attributes():
        return Settings.of(own, installed_options, is_iterable, keeps_place)


def option(loader: Any, name: str) -> Any:
    """Returns one of headrace's options of a loader, which may be torch's own. It is not checked."""
    return Settings.one(name, own_values(loader), installed_options)
