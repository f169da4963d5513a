# SPDX-License-Identifier: Apache-2.0
"""Keeps what headrace knows of each loader, including torch's own: the options that apply to it, its next epoch, its
newest engine, and the samples that its workers died at. _loader.py and the iterators use it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch.utils.data

from headrace import _options
from headrace._engine import engine as _engine
from headrace._engine import in_process, restart_state
from headrace._inspect import lookup
from headrace.torch import _base, _internals

_Known = TypeVar("_Known")
installed_options: dict[str, Any] = {}  # those of install(), for loaders that do not set them themselves


class _PerLoader(Generic[_Known]):
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

    def get_or_make(self, loader: Any, make: Callable[[], _Known]) -> _Known:
        """Returns the value of a loader. The first time it is make()."""
        found = self.get(loader)
        if found is None:
            found = make()
            self.set(loader, found)
        return found


epochs: _PerLoader[int] = _PerLoader()  # the number of the next epoch
engines: _PerLoader[_engine.Engine | in_process.InProcessEpoch] = _PerLoader()  # the newest one
blames: _PerLoader[restart_state.SampleDeaths] = _PerLoader()
freezers: _PerLoader[Any] = _PerLoader()
warmed: _PerLoader[bool] = _PerLoader()  # whether the fork server knows the modules of the dataset


def count_epoch(loader: Any) -> int:
    """Returns the number of the epoch that begins now."""
    epoch = epochs.get(loader) or 0
    epochs.set(loader, epoch + 1)
    return epoch


def policy_of(loader: Any) -> _options.Policy:
    """Returns the policy of a loader: from its attributes, if it is one of headrace's, and from install()."""
    is_iterable = loader._dataset_kind == _internals.DatasetKind.Iterable
    needs_indices = ("rng",) if is_iterable else ()
    others = {name: value for name, value in installed_options.items() if name not in needs_indices}
    if not isinstance(loader, _base.DataLoader):  # attributes of torch's loaders may have any meaning
        return _options.Policy.of(None, is_iterable, others)
    with _options.explained_as_attributes():
        return _options.Policy.of(loader, is_iterable, others)


def limit_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    """Returns the limit of shared memory for a loader in bytes, or 0 if the engine chooses it."""
    own = lookup.attribute(loader, "arena_limit")
    return _options.check_limit(installed_options.get("arena_limit") if own is None else own)


def seed_of(loader: Any, drawn: int) -> int:
    """Returns the seed of the samples' own random numbers. `drawn` is the seed that torch drew for this iterator."""
    others = installed_options.get("seed")
    own = _options.own(loader, "seed", others) if isinstance(loader, _base.DataLoader) else others
    with _options.explained_as_attributes():
        return drawn if own is None else _options.check_seed(own)
