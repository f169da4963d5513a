# SPDX-License-Identifier: Apache-2.0
"""Finds the options that apply to a loader, including torch's own, and keeps what was made by them: its newest engine,
its cache, and the samples that its workers died at. _loader.py and the iterators use it."""

from __future__ import annotations

from typing import Any

from headrace import _core, _options
from headrace._base.warn import warn_user
from headrace._loader.trainer import engine as _engine
from headrace._loader.trainer import in_process, restart_state, shown, tuning
from headrace._ranks import worker_count
from headrace._samples.rows import Gatherer, explain_no_cache
from headrace.torch._batches import rows
from headrace.torch._own import loaders, table
from headrace.torch._own.table import PerLoader

engines: PerLoader[_engine.Engine | in_process.InProcessEpoch] = PerLoader()  # the newest one
shows: PerLoader[_core.Show] = PerLoader()
blames: PerLoader[restart_state.SampleDeaths] = PerLoader()
freezers: PerLoader[Any] = PerLoader()
caches: PerLoader[Any] = PerLoader()  # the CachedSamples of a loader with the option cache
told: PerLoader[bool] = PerLoader()  # whether a loader has said that its cache is left out
warmed: PerLoader[bool] = PerLoader()  # whether the fork server knows the modules of the dataset


def dataset_of(loader: Any, settings: _options.Settings) -> Any:
    """Returns the dataset of a loader, with a cache of its samples if the options ask for that. Raises what
    headrace.cache_samples raises."""
    budget = settings.cache
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
    return rows.gatherer_of(loader.dataset, loader.collate_fn) if loaders.is_batched(loader) else None


def report_dataset(loader: Any) -> dict[str, Any]:
    """Returns what a loader's report says of its cache, and of rows that are gathered."""
    cached, gatherer = caches.get(loader), gatherer_of(loader)
    cache = {} if cached is None else {"cache": cached.report()}
    return cache if gatherer is None else {**cache, "rows": gatherer.name}


def show_of(loader: Any) -> _core.Show:
    """Returns what shows a loader to observers, the same for all its epochs."""
    return shows.get_or_make(loader, lambda: _new_show(loader))


def _new_show(loader: Any) -> _core.Show:
    settings = table.settings_of(loader, loaders.is_iterable(loader))
    return shown.new_show(_line_of(loader), settings.record_folder)


def tuning_of(loader: Any, settings: _options.Settings) -> tuning.Tuning | None:
    """Returns what decides how many workers of a loader get tasks, the same for all its epochs. None: their number is
    fixed."""
    if not worker_count.is_auto(loader.num_workers) or loaders.is_iterable(loader):
        return None
    found: tuning.Tuning = table.tunings.get_or_make(loader, lambda: _new_tuning(loader, settings))
    found.continue_with(table.position_of(loader))
    return found


def _new_tuning(loader: Any, settings: _options.Settings) -> tuning.Tuning:
    return tuning.Tuning(loader.num_workers, loader.prefetch_factor, loader.multiprocessing_context, settings)


def _line_of(loader: Any) -> str | None:
    made_by = table.position_of(loader).made_by
    return None if made_by is None else made_by.where
