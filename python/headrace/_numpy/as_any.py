# SPDX-License-Identifier: Apache-2.0
"""AsAnyLoader: a headrace.Loader as the code that both loaders share sees it (headrace._loader.both.any_loader)."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._loader.both import state as _state
from headrace._loader.both.any_loader import Dealing
from headrace._loader.both.per_loader import PerLoader
from headrace._loader.trainer.restart_state import goes_by_state
from headrace._numpy import indices as _indices
from headrace._options import Settings, own_values
from headrace._samples.rows import Gatherer, gatherer_of_source
from headrace.sampling._epoch import Progress
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._next_start import NextStart
from headrace.sampling._plan import Plan
from headrace.sampling._state import State, StateError

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class AsAnyLoader:
    """See above. It is made where it is needed and never kept, because it holds the loader."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.kept: PerLoader = loader._kept
        self.dataset = loader.dataset
        self.num_workers: int = loader.num_workers
        self.prefetch_factor = loader.prefetch_factor
        self.context = loader.multiprocessing_context
        self.processes = self.context or multiprocessing
        self.in_order, self.collate_fn = loader.in_order, loader.collate_fn
        self.is_iterable = loader._is_iterable

    def settings(self) -> Settings:
        """Returns the options of now. Raises TypeError, ValueError."""
        keeps_place = goes_by_state(self.dataset, self.is_iterable)
        return Settings.of(own_values(self.loader), {}, self.is_iterable, keeps_place)

    def option(self, name: str) -> Any:
        """Returns a single option, which is not checked."""
        return Settings.one(name, own_values(self.loader), {})

    def gatherer(self) -> Gatherer | None:
        """Returns what gathers the batches in C, if the dataset is a source and the batches are those of
        default_collate."""
        is_default = self.loader._batched and self.loader.collate_fn is None
        return gatherer_of_source(self.dataset) if is_default else None

    def dealing(self) -> Dealing | None:
        """Returns how a plan deals to several ranks, or None if it deals to none."""
        plan = self.loader.batch_sampler
        if not isinstance(plan, Plan) or plan.num_replicas < 2:
            return None
        return Dealing(plan.place.rank, plan.num_replicas, plan.place.source, f"Loader {plan.settings.tail}")

    # ---- what its position asks ----

    def indices(self) -> tuple[EpochIndices, int]:
        """Returns the indices of the next epoch. No sampler here leaves steps out."""
        return _indices.indices_of(self.loader), 0

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to an epoch, if they have set_epoch."""
        parts: list[Any] = [self.loader.sampler, self.loader.batch_sampler, self.dataset]
        for one in parts:
            if callable(lookup.attribute(one, "set_epoch")):
                one.set_epoch(epoch)

    def state_to_begin(self, start: NextStart) -> State:
        """Returns the state before the next iterator."""
        return _state.state_to_begin(self, start)

    def go_on_from_state(self) -> None:
        """Loads the state of now."""
        self.loader.load_state_dict(self.loader.state_dict())

    # ---- its state ----

    def fresh_state(self, indices: EpochIndices) -> State:
        """Returns the state before an epoch that continues nothing."""
        number = self.kept.position.number
        return State(number, 0, 0, indices.order, [indices.segment], seeds=indices.start_seeds())

    def goes_on(self, progress: Progress | None) -> bool:
        """Returns False: after skip() a state is that of the epoch that begins next."""
        return False

    def state_in(self, progress: Progress, held_back: int) -> State:
        """Returns the state in an epoch that has begun."""
        return progress.state(held_back)

    def add_seeds(self, state: State) -> State:
        """Returns a state with the seed of the loader."""
        state.seeds = {**state.seeds, "loader": self.loader.seed}
        return state

    def take_seeds(self, state: State) -> None:
        """Does nothing: seeds are drawn from the loader's own."""

    def go_to(self, state: State) -> None:
        """Sets the loader and its samplers to the epoch that a state begins."""
        self.kept.position.number = state.epoch
        self._set_epoch_of(state, self.loader.sampler, self.loader.batch_sampler)

    @staticmethod
    def _set_epoch_of(state: State, *parts: Any) -> None:
        for one in parts if "epoch" in state.order else ():
            if lookup.has_attribute(one, "set_epoch"):
                one.set_epoch(state.order["epoch"])

    def was_left(self) -> bool:
        """Returns False: no framework leaves the epochs of this loader."""
        return False

    @contextlib.contextmanager
    def as_in_state(self, state: State) -> Iterator[None]:
        """Takes over the seed and the epoch of a state while the block checks the rest: if that raises, the loader is
        as before. Raises StateError for another seed than the one that was given."""
        loader, position = self.loader, self.kept.position
        seed = state.seeds.get("loader")
        if type(seed) is not int or (loader._is_seed_given and seed != loader.seed):
            raise StateError(
                f"headrace: this state was taken with seed={seed!r}, and this loader has seed={loader.seed!r}"
            )
        before = loader.seed, position.number
        loader.seed, position.number = seed, state.epoch
        try:
            yield
        except BaseException:
            loader.seed, position.number = before
            raise

    def was_loaded(self, state: State) -> None:
        """Sets samplers and the dataset to the epoch of a state, and ends workers that persist."""
        if self.is_iterable:
            self._set_epoch_of(state, self.dataset)
        else:
            self._set_epoch_of(state, self.loader.sampler, self.loader.batch_sampler)
        self.loader._end_workers()

    # ---- its iterators ----

    def check_counted(self, iterator: Any) -> None:
        """Does nothing: all batches are counted."""

    @staticmethod
    def has_lost_workers(iterator: Any) -> bool:
        """Returns True if the workers of an iterator have been ended, or if one has died and was not replaced."""
        return bool(getattr(iterator, "has_lost_workers", False))
