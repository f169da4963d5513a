# SPDX-License-Identifier: Apache-2.0
"""AnyLoader: a loader of torch or headrace.Loader, as the code that both share sees it.

torch/_loader/as_any.py and _numpy/as_any.py have one each. It is made where it is needed and never kept, because it
holds the loader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace._loader.both.per_loader import PerLoader
from headrace._options import Settings
from headrace._ranks.remainder import Remainder
from headrace.sampling._epoch import Progress
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._position import PositionOwner
from headrace.sampling._state import State

if TYPE_CHECKING:
    from headrace._samples.rows import Gatherer  # it needs the extension


class Dealing(NamedTuple):
    """How the sampler of a loader deals an order to ranks.

    source: what says which rank this is. settings: a text that is equal in all ranks if the loader is the same one.
    length: returns the number of samples of this rank, or None. seed: of the sampler, if its EpochIndices know none.
    remainder: returns whether the ranks may differ by the rest of a division; None: they may not. own_seeds: each rank
    may have a seed of its own.
    """

    rank: int
    ranks: int
    source: str
    settings: str
    length: Callable[[], int | None] = lambda: None
    seed: Any = None
    remainder: Callable[[], Remainder | None] = lambda: None
    own_seeds: bool = False


class AnyLoader(PositionOwner, Protocol):
    """See above."""

    @property
    def loader(self) -> Any:
        """The loader itself."""

    @property
    def kept(self) -> PerLoader:
        """The record of this loader."""

    @property
    def dataset(self) -> Any:
        """Its dataset."""

    @property
    def collate_fn(self) -> Any:
        """The function of the user's that makes batches, or torch's; None: that of headrace.Loader."""

    @property
    def num_workers(self) -> int:
        """The number of worker processes, or the most that "auto" may try."""

    @property
    def prefetch_factor(self) -> int:
        """Batches in flight for each worker."""

    @property
    def in_order(self) -> bool:
        """False: batches are delivered as they arrive."""

    @property
    def context(self) -> Any:
        """The multiprocessing context that was given, or None."""

    @property
    def processes(self) -> Any:
        """The maker of processes: the context, or a module."""

    def settings(self) -> Settings:
        """Returns the options of now. Raises TypeError, ValueError."""

    def option(self, name: str) -> Any:
        """Returns a single option, which is not checked."""

    def gatherer(self) -> Gatherer | None:
        """Returns what gathers the batches in C, if the dataset and the collate function are known."""

    def dealing(self) -> Dealing | None:
        """Returns how the sampler deals to several ranks, or None if it deals to none."""

    # ---- its state ----

    def fresh_state(self, indices: EpochIndices) -> State:
        """Returns the state before an epoch of a map-style dataset that continues nothing."""

    def goes_on(self, progress: Progress | None) -> bool:
        """Returns True if a state is that of the running epoch although skip() was called in it."""

    def state_in(self, progress: Progress, held_back: int) -> State:
        """Returns the state in an epoch that has begun."""

    def add_seeds(self, state: State) -> State:
        """Returns a state with what this loader adds to each."""

    def take_seeds(self, state: State) -> None:
        """Sets generators of the loader to what a state has, before an iterable dataset is iterated."""

    def go_to(self, state: State) -> None:
        """Sets the loader and its samplers to the epoch that a state begins."""

    def was_left(self) -> bool:
        """Returns True if the framework that asks for a state has left the epoch, whose steps are not all done."""

    def as_in_state(self, state: State) -> contextlib.AbstractContextManager[None]:
        """Takes over what a state says of the loader itself, while the block checks the rest: if that raises, the
        loader is as before. Raises StateError."""

    def was_loaded(self, state: State) -> None:
        """Called when a state was loaded: sets samplers and the dataset to its epoch, and ends workers that persist."""

    # ---- its iterators ----

    def check_counted(self, iterator: Any) -> None:
        """Raises RuntimeError if the batches of an iterator are not counted."""

    @staticmethod
    def has_lost_workers(iterator: Any) -> bool:
        """Returns True if the workers of an iterator have been ended, or if one has died and was not replaced."""
