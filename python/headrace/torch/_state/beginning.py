# SPDX-License-Identifier: Apache-2.0
"""Begins the epochs of torch's loaders with a map-style dataset, or continues one (headrace._loader.both.beginning).

`Beginning` is made before torch's iterator class is initialised, and again when persistent workers begin another epoch.
The draws of an epoch that is continued take no random numbers from the generators that other code uses.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from headrace._loader.both import beginning as both
from headrace._loader.both.any_loader import AnyLoader
from headrace.sampling._epoch import Epoch, core_tasks
from headrace.sampling._epoch_indices import REPLAY
from headrace.sampling._state import State
from headrace.torch._own import iterators, loaders
from headrace.torch._samplers import find, generators
from headrace.torch._samplers.dealt import DistributedIndices
from headrace.torch._samplers.foreign import Before, ForeignIndices
from headrace.torch._state.seeds import set_sampler_epoch


def set_loaders_generator(loader: Any, seeds: dict[str, Any]) -> None:
    """Sets the generator that the user gave to a loader to the state with which an epoch begins."""
    if "next_loader" in seeds and loader.generator is not None:
        generators.set_state(loader.generator, seeds["next_loader"])


class Beginning(both.Beginning):
    """The beginning of an epoch of one of torch's loaders. Raises StateError if the state that was loaded does not fit
    any more."""

    def __init__(self, loader: AnyLoader) -> None:
        self._loader = loader.loader
        super().__init__(loader)
        self._before: Before | None = None
        # Otherwise the epoch's numbers are drawn now, even if some of its steps are skipped.
        self.is_continued = self._state is not None and "base" in self._state.seeds
        base = None if self._state is None else self._state.seeds.get("base")
        self._base = self._base_of_next() if base is None else base
        self._kept = generators.Globals() if self._base is not None else None
        generator = self._loader.generator
        self._loaders = generator.get_state() if self._kept is not None and generator is not None else None

    def _base_of_next(self) -> int | None:
        """Returns the base seed of workers that persist, if the state was taken between two epochs."""
        state = None if self._next_start is None else self._next_start.state
        return None if state is None or not self._loader.persistent_workers else state.seeds.get("next_base")

    @property
    def base_seed(self) -> int | None:
        """The base seed that torch's iterator gets, or None if it draws one."""
        return self._base

    def sampler_will_be_iterated(self) -> None:
        """Notes what the sampler is before torch's iterator class iterates it."""
        if isinstance(self.indices, ForeignIndices) and not self.is_continued:
            self._before = self.indices.note_before()

    # ---- the state that is continued ----

    def _fresh(self) -> State:
        return State(self._position.number, 0, 0, self.indices.order, [self.indices.segment])

    def _fit(self, state: State) -> State | None:
        """Chooses the EpochIndices for a state. Returns None for that before an epoch, too, which begins with its
        seeds."""
        found = super()._fit(state)
        if found is not None and not found.steps and "base" not in found.seeds:
            self._begin_with(found)
            return None
        return found

    def _begin_with(self, state: State) -> None:
        """Sets the sampler and the generators to what the epoch begins with."""
        set_loaders_generator(self._loader, state.seeds)  # the sampler may have the same one
        epoch = self.indices.order.get("epoch")
        if REPLAY in state.seeds and epoch is not None:  # of the epoch that has ended
            set_sampler_epoch(self._loader, state.order)
        self.indices.begin_with(state.seeds)
        if REPLAY in state.seeds and epoch is not None:
            set_sampler_epoch(self._loader, {"epoch": epoch})

    def shown(self) -> Any:
        """Returns what torch's iterator class is made with: the loader, or one whose sampler it does not begin."""
        return Shown(self._loader) if self.is_continued else self._loader

    def iterator_was_made(self, iterator: Any) -> None:
        """Gives torch's iterator the base seed of the epoch that is continued, and puts back the generators that it has
        drawn another one from."""
        self.put_generators_back()
        if self._base is not None:
            iterators.set_base_seed(iterator, self._base)
        if self.is_continued:
            iterators.show_index_sampler(iterator, self._loader)
        elif self._before is not None:
            self._before.iterator_was_made(self._loader.generator)

    def put_generators_back(self) -> None:
        """If the epoch is continued, sets the generators, once, to what they were before torch's iterator drew."""
        if self._kept is not None:
            self._kept.restore()
        if self._loaders is not None:
            self._loader.generator.set_state(self._loaders)
        self._kept = self._loaders = None

    def epoch(self, iterator: Any) -> Epoch:
        """Returns the epoch. Its tasks are drawn when they are needed, or now if it is continued."""
        if isinstance(self.indices, (ForeignIndices, DistributedIndices)):
            self.indices.iterator = None if self.is_continued else iterators.iterator_of_sampler(iterator)
        if isinstance(self.indices, ForeignIndices):
            if self._state is None:
                from headrace.torch._ranks import overlap  # it needs the extension, and torch's own iterator has none

                overlap.watch(self._loader, self.indices, self._position.number_of_next(self._next_start))
        epoch = self.begin(core_tasks)
        epoch.indices.seeds["base"] = iterators.base_seed(iterator)
        return epoch

    def begin(self, new_tasks: Any) -> Epoch:
        """Returns the epoch. The sampler is looked at again when its first index is drawn. new_tasks: see Epoch."""
        epoch = super().begin(new_tasks)
        sampler = loaders.index_sampler(self._loader)
        if epoch.is_new and find.may_change(sampler, epoch.indices):
            epoch.tasks.begin_by(functools.partial(_begin, weakref.ref(epoch), sampler, self._loader.dataset))
        return epoch


def _begin(epoch_ref: weakref.ref[Epoch], sampler: Any, dataset: Any) -> tuple[Any, ...]:
    """Called when the first index of an epoch is drawn, which is when torch's batch sampler looks at the sampler. It is
    not given the loader, which its own position would keep then. Returns the arguments of _core.Tasks."""
    epoch = epoch_ref()
    if epoch is None:
        raise RuntimeError("headrace: the epoch of these tasks is gone")
    drawn = epoch.begin_with(find.at_begin(sampler, epoch.indices, dataset))
    return drawn.items, drawn.batch_size, drawn.drop_last, drawn.has_lists, drawn.is_iterator


class Shown:
    """A loader for torch's iterator class, with other indices than those of its sampler: to begin the sampler would
    draw random numbers, and it may count epochs."""

    def __init__(self, loader: Any, index_sampler: Any = ()) -> None:
        self._loader = loader
        self._index_sampler = index_sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
