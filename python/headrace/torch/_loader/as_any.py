# SPDX-License-Identifier: Apache-2.0
"""AsAnyLoader: one of torch's loaders as the code that both loaders share sees it (headrace._loader.both.any_loader).

The fallback uses it too: what needs the extension is imported when it is called.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from headrace._loader.both import state as _state
from headrace._loader.both.per_loader import PerLoader
from headrace._options import Settings
from headrace._ranks import callers
from headrace.sampling._epoch import Epoch, Progress
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State
from headrace.torch._own import classes, iterators, loaders, table
from headrace.torch._samplers.foreign import has_set_epoch, samplers_of
from headrace.torch._state import beginning, past_draws, seeds

if TYPE_CHECKING:
    from headrace._loader.both.any_loader import Dealing
    from headrace._samples.rows import Gatherer


class AsAnyLoader:
    """See above. It is made where it is needed and never kept, because it holds the loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    @property
    def kept(self) -> PerLoader:
        """The record of this loader."""
        return table.kept(self.loader)

    @property
    def dataset(self) -> Any:
        """The dataset of the loader."""
        return self.loader.dataset

    @property
    def collate_fn(self) -> Any:
        """The function that makes batches."""
        return self.loader.collate_fn

    @property
    def num_workers(self) -> int:
        """The number of worker processes."""
        return self.loader.num_workers  # type: ignore[no-any-return]

    @property
    def prefetch_factor(self) -> int:
        """The batches in flight for each worker."""
        return self.loader.prefetch_factor  # type: ignore[no-any-return]

    @property
    def context(self) -> Any:
        """The multiprocessing context that starts workers, or None."""
        return self.loader.multiprocessing_context

    @property
    def processes(self) -> Any:
        """The maker of processes: the context, or torch.multiprocessing."""
        return torch.multiprocessing if self.context is None else self.context

    @property
    def in_order(self) -> bool:
        """False: batches are delivered as they arrive."""
        return loaders.is_in_order(self.loader)

    @property
    def is_iterable(self) -> bool:
        """True if the dataset gives no samples by index."""
        return loaders.is_iterable(self.loader)

    def settings(self) -> Settings:
        """Returns the options of now. Raises TypeError, ValueError."""
        return table.settings_of(self.loader, self.is_iterable)

    def option(self, name: str) -> Any:
        """Returns a single option, which is not checked."""
        return table.option(self.loader, name)

    def gatherer(self) -> Gatherer | None:
        """Returns what gathers the batches in C, if the dataset is known and the batches are torch's."""
        from headrace.torch._batches import rows

        loader = self.loader
        return rows.gatherer_of(loader.dataset, loader.collate_fn) if loaders.is_batched(loader) else None

    def dealing(self) -> Dealing | None:
        """Returns how the sampler deals to several ranks, or None if it deals to none."""
        from headrace.torch._ranks import agree

        return agree.dealing_of(self.loader)

    # ---- what its position asks ----

    def indices(self) -> tuple[EpochIndices, int]:
        """Returns the EpochIndices of the loader, and the steps that are skipped."""
        return seeds.indices_of(self.loader)

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to an epoch, if they have set_epoch."""
        for one in (*samplers_of(loaders.index_sampler(self.loader)), self.loader.dataset):
            if has_set_epoch(one):
                one.set_epoch(epoch)

    def state_to_begin(self, start: NextStart) -> State:
        """Returns the state before the next iterator."""
        return _state.state_to_begin(self, start)

    def go_on_from_state(self) -> None:
        """Loads the state of now."""
        _state.load(self, _state.state_dict(self))

    # ---- its state ----

    def fresh_state(self, indices: EpochIndices) -> State:
        """Returns the state before an epoch that continues nothing."""
        return seeds.fresh_state(self.loader, indices)

    def goes_on(self, progress: Progress | None) -> bool:
        """Returns True if a state is that of the running epoch although skip() was called in it."""
        return isinstance(progress, Epoch) and not progress.has_ended

    def state_in(self, progress: Progress, held_back: int) -> State:
        """Returns the state in an epoch that has begun."""
        if isinstance(progress, Epoch):
            return seeds.state_in(self.loader, progress, held_back)
        return progress.state(held_back)

    def add_seeds(self, state: State) -> State:
        """Returns the state. That of an iterable dataset gets the generator of the loader."""
        if self.is_iterable and not state.steps and "base" not in state.seeds:
            state.seeds = seeds.end_seeds(self.loader) | state.seeds
        return state

    def take_seeds(self, state: State) -> None:
        """Sets the generator of the loader to what a state has, before an iterable dataset is iterated."""
        beginning.set_loaders_generator(self.loader, state.seeds)

    def go_to(self, state: State) -> None:
        """Sets the samplers to the epoch that a state begins."""
        seeds.set_sampler_epoch(self.loader, state.order)

    def was_left(self) -> bool:
        """Returns True if the framework that asks for a state has left the epoch."""
        return callers.epoch_was_ended()

    def as_in_state(self, state: State) -> contextlib.AbstractContextManager[None]:
        """Returns a context that changes nothing: torch's loaders have no seed of their own."""
        return contextlib.nullcontext()

    def was_loaded(self, state: State) -> None:
        """Ends workers that persist, because they have the seeds of the old epoch, and sets the epoch of a state."""
        past_draws.load(self.loader, state.seeds)
        loaders.drop_iterator(self.loader)
        if not self.is_iterable:
            seeds.set_sampler_epoch(self.loader, state.order)
        elif "epoch" in state.order:
            self.loader.dataset.set_epoch(state.order["epoch"])

    # ---- its iterators ----

    def check_counted(self, iterator: Any) -> None:
        """Raises RuntimeError if the batches of an iterator are not counted."""
        if self.kept.position.progress is None or not isinstance(iterator, classes.BaseIterator):
            raise RuntimeError(
                f"headrace: another tool makes torch's DataLoader return a {type(iterator).__name__}, whose batches "
                "are not counted; use headrace.torch without that tool, or leave out steps_per_epoch"
            )

    @staticmethod
    def has_lost_workers(iterator: Any) -> bool:
        """Returns True if the workers of an iterator have been ended, or if one has died and was not replaced."""
        return iterators.has_lost_workers(iterator)
