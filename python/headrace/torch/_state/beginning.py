# SPDX-License-Identifier: Apache-2.0
"""Begins the epochs of torch's loaders with a map-style dataset, or continues one.

1. `Beginning` is made before torch's iterator class is initialised, and again when persistent workers begin another
   epoch. It finds the EpochIndices of the sampler, and takes the state that is kept, if there is one.
2. `Beginning.epoch` begins the epoch or continues it. The draws of an epoch that is continued take no random numbers
   from the generators that other code uses.
3. `Beginning.has_begun` is the last step of iter(). If iter() is interrupted before, the next one does the same again.
"""

from __future__ import annotations

from typing import Any

from headrace._base.warn import warn_user
from headrace._ranks.callers import called_by_framework
from headrace.sampling import _epoch, _next_start
from headrace.sampling._epoch import Epoch, core_tasks
from headrace.sampling._epoch_indices import REPLAY, check_division
from headrace.sampling._next_start import NextStart
from headrace.sampling._position import EpochPosition
from headrace.sampling._state import State, StateError
from headrace.torch._own import iterators, table
from headrace.torch._samplers import generators
from headrace.torch._samplers.foreign import Before, ForeignIndices
from headrace.torch._state import past_draws
from headrace.torch._state.resume import indices_of, set_sampler_epoch


def set_loaders_generator(loader: Any, seeds: dict[str, Any]) -> None:
    """Sets the generator that the user gave to a loader to the state with which an epoch begins."""
    if "next_loader" in seeds and loader.generator is not None:
        generators.set_state(loader.generator, seeds["next_loader"])


class Beginning:
    """The beginning of an epoch of a loader. Raises StateError if the state that was loaded does not fit any more."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.indices, skipped = indices_of(loader)
        start = table.position_of(loader).next_start
        if start is None and skipped:
            start = NextStart(None, skipped)
        self._next_start = start
        self._state = None if start is None else self._state_to_continue(start)
        self._before: Before | None = None
        # Otherwise the epoch's numbers are drawn now, even if some of its steps are skipped.
        self.is_continued = self._state is not None and "base" in self._state.seeds
        base = None if self._state is None else self._state.seeds.get("base")
        self._base = self._base_of_next(start) if base is None else base
        self._kept = generators.Globals() if self._base is not None else None
        self._loaders = (
            loader.generator.get_state() if self._kept is not None and loader.generator is not None else None
        )

    def _base_of_next(self, start: NextStart | None) -> int | None:
        """Returns the base seed of workers that persist, if the state was taken between two epochs."""
        state = None if start is None else start.state
        return None if state is None or not self._loader.persistent_workers else state.seeds.get("next_base")

    @property
    def base_seed(self) -> int | None:
        """The base seed that torch's iterator gets, or None if it draws one."""
        return self._base

    def sampler_will_be_iterated(self) -> None:
        """Notes what the sampler is before torch's iterator class iterates it."""
        if isinstance(self.indices, ForeignIndices) and not self.is_continued:
            self._before = self.indices.note_before()

    def _state_to_continue(self, start: NextStart) -> State | None:
        """Returns the state that the epoch continues, if its samplers are still in the epoch that they were set to."""
        loader, state = self._loader, start.state
        if state is not None:
            self._check_epoch(state)
            state = self._fit(state)
        if state is not None and not state.steps and "base" not in state.seeds:
            self._begin_with(state)
            state = None
        if not start.skipped:
            return state
        fresh = State(table.position_of(loader).number, 0, 0, self.indices.order, [self.indices.segment])
        return _next_start.skipped(state or fresh, start.skipped, self.indices)

    def _fit(self, state: State) -> State | None:
        """Chooses the EpochIndices for a state. Returns None if the samplers were set to another epoch."""
        epoch = self.indices.order.get("epoch")
        if epoch is not None and epoch != state.order.get("epoch"):
            return self._set_to_other_epoch(state, epoch)
        if state.is_end and epoch is not None and not self.indices.counts_epochs:
            warn_user(
                f"headrace: the state that was loaded was taken after the last batch of epoch {epoch}, and the sampler "
                f"is in epoch {epoch} again, so that epoch is read a second time; begin the loop over epochs at "
                f"{epoch + 1}"
            )
        if state.steps and state.order["n"] != self.indices.order["n"]:
            self.indices = self.indices.with_size(state.order["n"])
        return state

    def _check_epoch(self, state: State) -> None:
        self.indices.check_order(state)
        if state.steps and state.order["n"] == self.indices.order["n"]:
            check_division(state, self.indices)

    def _set_to_other_epoch(self, state: State, epoch: int) -> State | None:
        """Decides what becomes of a state if set_epoch was called on the sampler after it was loaded."""
        then = state.order.get("epoch", 0)
        if state.is_end and epoch > then:
            return state  # the sampler goes on, and may have generators and a state of its own
        if epoch < then and called_by_framework():
            warn_user(
                f"headrace: a framework set the sampler to epoch {epoch} after a state of epoch {then} was loaded; "
                f"epoch {then} goes on"
            )
            set_sampler_epoch(self._loader, state.order)
            self.indices, _ = indices_of(self._loader)
            return state
        if state.steps:
            warn_user(
                f"headrace: set_epoch({epoch}) discards the state that was loaded, of epoch {then} after {state.steps} "
                f"steps; to go on with it, begin the loop over epochs at {then}"
            )
        return None

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
        if isinstance(self.indices, ForeignIndices):
            self.indices.iterator = None if self.is_continued else iterators.iterator_of_sampler(iterator)
            if self._state is None:
                from headrace.torch._ranks import overlap  # it needs the extension, and torch's own iterator has none

                overlap.watch(
                    self._loader, self.indices, table.position_of(self._loader).number_of_next(self._next_start)
                )
        epoch = self.begin(core_tasks)
        epoch.indices.seeds["base"] = iterators.base_seed(iterator)
        return epoch

    def begin(self, new_tasks: Any) -> Epoch:
        """Does the same without torch's iterator. new_tasks: see Epoch."""
        before = table.position_of(self._loader).progress
        number = table.position_of(self._loader).number_of_next(self._next_start)
        if isinstance(before, Epoch):
            self.indices.follows(before.indices)
        epoch = self._begin(number, self._state, new_tasks)
        if isinstance(before, Epoch) and before.steps_left() == 0:
            epoch.order_before = dict(before.indices.order)
        return epoch

    def has_begun(self, epoch: Epoch) -> None:
        """Notes that the epoch has begun. Until then, the next iter() does the same again."""
        table.position_of(self._loader).has_begun(epoch, epoch.number, self._next_start)

    def _begin(self, number: int, state: State | None, new_tasks: Any) -> Epoch:
        try:
            return Epoch(self.indices, number, state, new_tasks)
        except StateError:
            if state is None or table.option(self._loader, "on_changed") != "next_epoch":
                raise
        following = _next_start.next_epoch(state)
        set_sampler_epoch(self._loader, following.order)
        self.indices, _ = indices_of(self._loader)
        return Epoch(self.indices, following.epoch, None, new_tasks)


def warn_of_same_order(position: EpochPosition, epoch: Epoch) -> None:
    """Warns once if nothing has called set_epoch, or if random numbers began again after a resume. Called after the
    first indices were drawn."""
    past_draws.note(position, epoch)
    if not position.has_warned:
        position.has_warned = _epoch.warn_of_same_order(epoch)


class Shown:
    """A loader for torch's iterator class, with other indices than those of its sampler: to begin the sampler would
    draw random numbers, and it may count epochs."""

    def __init__(self, loader: Any, index_sampler: Any = ()) -> None:
        self._loader = loader
        self._index_sampler = index_sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
