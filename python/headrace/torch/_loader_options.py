# SPDX-License-Identifier: Apache-2.0
"""Finds the options that apply to a loader, including torch's own, and keeps what was made by them: its newest engine,
its cache, and the samples that its workers died at. _loader.py and the iterators use it."""

from __future__ import annotations

from typing import Any

from headrace import _core, _options
from headrace._base import lookup
from headrace._base.warn import warn_user
from headrace._loader.trainer import engine as _engine
from headrace._loader.trainer import in_process, restart_state, shown, tuning
from headrace._ranks import worker_count
from headrace._samples.rows import Gatherer, explain_no_cache
from headrace.torch import _base, _internals, _per_loader, _rows, _torchs
from headrace.torch._per_loader import PerLoader

engines: PerLoader[_engine.Engine | in_process.InProcessEpoch] = PerLoader()  # the newest one
shows: PerLoader[_core.Show] = PerLoader()
blames: PerLoader[restart_state.SampleDeaths] = PerLoader()
freezers: PerLoader[Any] = PerLoader()
caches: PerLoader[Any] = PerLoader()  # the CachedSamples of a loader with the option cache
told: PerLoader[bool] = PerLoader()  # whether a loader has said that its cache is left out
warmed: PerLoader[bool] = PerLoader()  # whether the fork server knows the modules of the dataset


def policy_of(loader: Any) -> _options.Policy:
    """Returns the policy of a loader: from its attributes, if it is one of headrace's, and from install()."""
    is_iterable = _internals.is_iterable(loader)
    needs_indices = ("rng", "cache") if is_iterable else ()
    others = {name: value for name, value in _per_loader.installed_options.items() if name not in needs_indices}
    if not isinstance(loader, _base.DataLoader):  # attributes of torch's loaders may have any meaning
        return _options.Policy.of(None, is_iterable, others)
    with _options.explained_as_attributes():
        return _options.Policy.of(loader, is_iterable, others)


def dataset_of(loader: Any, policy: _options.Policy) -> Any:
    """Returns the dataset of a loader, with a cache of its samples if the options ask for that. Raises what
    headrace.cache_samples raises."""
    budget = policy.cache
    if budget is None:
        return loader.dataset
    gatherer = gatherer_of(loader)
    if gatherer is not None:
        if told.get(loader) is None:
            told.set(loader, True)
            warn_user(explain_no_cache(gatherer))
        return loader.dataset
    from headrace._cache.samples import for_loader  # imported only if it is needed

    return caches.get_or_make(loader, lambda: for_loader(loader.dataset, budget))


def gatherer_of(loader: Any) -> Gatherer | None:
    """Returns what gathers the batches of a loader in C, if its dataset is known and its batches are torch's."""
    return _rows.gatherer_of(loader.dataset, loader.collate_fn) if _internals.is_batched(loader) else None


def report_dataset(loader: Any) -> dict[str, Any]:
    """Returns what a loader's report says of its cache, and of rows that are gathered."""
    cached, gatherer = caches.get(loader), gatherer_of(loader)
    cache = {} if cached is None else {"cache": cached.report()}
    return cache if gatherer is None else {**cache, "rows": gatherer.name}


def show_of(loader: Any) -> _core.Show:
    """Returns what shows a loader to observers, the same for all its epochs."""
    return shows.get_or_make(loader, lambda: shown.new_show(_line_of(loader), _record_of(loader)))


def _record_of(loader: Any) -> Any:
    """Returns the option record of a loader."""
    others = _per_loader.installed_options.get("record")
    own = _options.own(loader, "record", others) if isinstance(loader, _base.DataLoader) else others
    with _options.explained_as_attributes():
        return _options.check_record("record", own)


def tuning_of(loader: Any, policy: _options.Policy) -> tuning.Tuning | None:
    """Returns what decides how many workers of a loader get tasks, the same for all its epochs. None: their number is
    fixed."""
    if not worker_count.is_auto(loader.num_workers) or _internals.is_iterable(loader):
        return None
    found: tuning.Tuning = _per_loader.tunings.get_or_make(loader, lambda: _new_tuning(loader, policy))
    found.continue_with(_per_loader.position_of(loader))
    return found


def _new_tuning(loader: Any, policy: _options.Policy) -> tuning.Tuning:
    return tuning.Tuning(loader.num_workers, loader.prefetch_factor, loader.multiprocessing_context, policy)


def _line_of(loader: Any) -> str | None:
    made_by = _per_loader.position_of(loader).made_by
    return None if made_by is None else made_by.where


def limit_of(loader: _torchs.DataLoader[Any]) -> int:
    """Returns the limit of shared memory for a loader in bytes, or 0 if the engine chooses it."""
    own = lookup.attribute(loader, "arena_limit")
    return _options.check_limit(_per_loader.installed_options.get("arena_limit") if own is None else own)


def seed_of(loader: Any, drawn: int) -> int:
    """Returns the seed of the samples' own random numbers. `drawn` is the seed that torch drew for this iterator."""
    others = _per_loader.installed_options.get("seed")
    own = _options.own(loader, "seed", others) if isinstance(loader, _base.DataLoader) else others
    with _options.explained_as_attributes():
        return drawn if own is None else _options.check_seed(own)
