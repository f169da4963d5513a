# SPDX-License-Identifier: Apache-2.0
"""PerLoader: all that headrace keeps of one loader, from its first iterator to its last.

The loaders have it in an attribute (headrace.torch: torch/_own/table.py). It needs neither torch nor the
extension, because the fallback has positions too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._base.warn import warn_user
from headrace._loader.trainer.restart_state import SampleDeaths
from headrace._options import Settings
from headrace._ranks import worker_count
from headrace.sampling._position import EpochPosition

if TYPE_CHECKING:
    from headrace import _core
    from headrace._loader.both.any_loader import AnyLoader
    from headrace._loader.trainer.engine import Engine
    from headrace._loader.trainer.in_process import InProcessEpoch
    from headrace._loader.trainer.tuning import Tuning
    from headrace._samples.last_state import LastState

NO_REPORT = "headrace: there is no report before the first iteration with workers"
# Words of `told`. UNCOUNTED: headrace has not made the newest iterator.
NO_CACHE, WARMED, UNCOUNTED = "no cache", "warmed", "uncounted"


class PerLoader:
    """Keeps what headrace has of one loader. It refers to no loader and to no iterator, which end with the user's last
    reference.

    position: how far it is in its epochs. line: the line that made it, or None. deaths: the samples that workers died
    at. told: what was said or done once. The others are None until they are needed. show: what observers see.
    engine: that of the newest iterator. tuning: finds the number of workers. cached: the samples of the option cache.
    arena: the memory that a device keeps between two iterators. last_state: of an iterable dataset without
    workers, with the option retries.
    """

    def __init__(self, line: str | None = None) -> None:
        self.position = EpochPosition()
        self.line = line
        self.deaths = SampleDeaths()
        self.told: set[str] = set()
        self.show: _core.Show | None = None
        self.engine: Engine | InProcessEpoch | None = None
        self.tuning: Tuning | None = None
        self.cached: Any = None
        self.arena: Any = None
        self.last_state: LastState | None = None
        self._freezer: Any = None

    def copied(self) -> PerLoader:
        """Returns the record of a copy of the loader, which continues the same state and has begun no epoch."""
        other = PerLoader(self.line)
        other.position = self.position.copy(self.position.number)
        other.cached, other.told = self.cached, set(self.told)
        return other

    def show_of(self, settings: Settings) -> _core.Show:
        """Returns what shows the loader to observers, the same for all its epochs."""
        if self.show is None:
            from headrace._loader.trainer import shown  # it needs the extension

            made_by = self.position.made_by
            line = self.line if self.line is not None or made_by is None else made_by.where
            self.show = shown.new_show(line, settings.record_folder)
        return self.show

    def tuning_of(self, loader: AnyLoader, settings: Settings) -> Tuning | None:
        """Returns what decides how many workers get tasks, the same for all epochs. None: their number is fixed."""
        if loader.is_iterable or not worker_count.is_auto(loader.num_workers):
            return None
        if self.tuning is None:
            from headrace._loader.trainer.tuning import Tuning  # it needs the extension

            self.tuning = Tuning(loader.num_workers, loader.prefetch_factor, loader.context, settings)
        self.tuning.continue_with(self.position)
        return self.tuning

    def dataset_of(self, loader: AnyLoader, settings: Settings) -> Any:
        """Returns the dataset, with a cache of its samples if the settings ask for that. Raises what
        headrace.cache_samples raises."""
        if settings.cache is None:
            return loader.dataset
        gatherer = loader.gatherer()
        if gatherer is not None:
            if NO_CACHE not in self.told:
                self.told.add(NO_CACHE)
                from headrace._samples.rows import explain_no_cache

                warn_user(explain_no_cache(gatherer))
            return loader.dataset
        if self.cached is None or self.cached.dataset is not loader.dataset:
            from headrace._cache.samples import for_loader  # imported only if it is needed

            self.cached = for_loader(loader.dataset, settings.cache)
        return self.cached

    def freeze(self, dataset: Any) -> None:
        """Replaces the large containers of the dataset by views of frozen data, as the option freeze says."""
        if self._freezer is None:
            from headrace.frozen._attributes import Freezer  # imported only if it is needed

            self._freezer = Freezer()
        self._freezer.freeze(dataset)

    def report(self, loader: AnyLoader) -> dict[str, Any]:
        """Returns what headrace.Loader.report describes. Raises RuntimeError if there is nothing to report."""
        cache = {} if self.cached is None else {"cache": self.cached.report()}
        gatherer = loader.gatherer()
        rows = {} if gatherer is None else {"rows": gatherer.name}
        if self.engine is None and not cache and not rows:
            raise RuntimeError(NO_REPORT)
        from headrace._loader.both import ranks  # it needs the extension

        text = ranks.describe(loader)
        counters = {} if self.engine is None else self.engine.report()
        return {**counters, **cache, **rows, **({"ranks": text} if text else {})}
