# SPDX-License-Identifier: Apache-2.0
"""Begins and continues the epochs of a headrace.Loader, and takes and loads its state."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._ranks import callers, where
from headrace._ranks.agreement import Agreement
from headrace.sampling import _exact, _iterable, _next_start, _sampler_state, _state, _windows
from headrace.sampling._epoch import Epoch, warn_of_same_order
from headrace.sampling._epoch_indices import (
    REPLAY,
    Drawn,
    EpochIndices,
    begun,
    check_division,
    describe_other_length,
    hash_of,
    warn_of_other_epoch,
)
from headrace.sampling._known import ShuffledIndices, mixture_indices, order_indices, range_indices
from headrace.sampling._mixture import Mixture
from headrace.sampling._next_start import NextStart
from headrace.sampling._order import Order
from headrace.sampling._plan import Plan
from headrace.sampling._plan_indices import PlanIndices
from headrace.sampling._position import EpochPosition
from headrace.sampling._sampler_parts import SamplerParts, describe_lawless
from headrace.sampling._state import State, StateError
from headrace.sampling._watch import Watch

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class SamplerIndices(EpochIndices):
    """A sampler of the user's. It is put back to the epoch's beginning by the states of its generators, and by its own
    state_dict and load_state_dict, if it has them."""

    _parts: SamplerParts | None = None  # at the beginning of the epoch
    _parts_before: SamplerParts | None = None  # at that of the epoch before

    def follows(self, before: EpochIndices) -> None:
        if isinstance(before, SamplerIndices):
            self._parts_before = before._parts

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if seeds and REPLAY in seeds:
            self._replay(seeds[REPLAY])
        elif seeds and "sampler" in seeds:
            _sampler_state.put_back(self._sampler, seeds["sampler"])
        if not steps:  # otherwise the indices are compared
            _sampler_state.warn_of_changed(self._sampler, seeds or {})
        self._parts = _sampler_state.parts_of(self._sampler)
        if (state := _sampler_state.state_of(self._sampler)) is not None:
            self.seeds["sampler"] = state
        return Drawn(begun(iter(self._sampler)), self._batch_size, self._drop_last), steps

    def _replay(self, ended: dict[str, Any]) -> None:
        """Draws the epoch again that the consumer had to its last batch when the state was taken, and lets the sampler
        come to its end. Raises StateError if it has another length."""
        if "sampler" in ended:
            _sampler_state.put_back(self._sampler, ended["sampler"])
        tasks = Drawn(begun(iter(self._sampler)), self._batch_size, self._drop_last).tasks()
        given = list(itertools.islice(tasks, ended["steps"]))
        if len(given) < ended["steps"] or next(tasks, None) is not None:
            raise StateError(describe_other_length(self.order["kind"], ended["steps"]))
        if given and ended["last"] not in (0, hash_of(given[-1])):
            warn_of_other_epoch(self.order["kind"])

    def check_continuable(self) -> None:
        if lawless := SamplerParts(self._sampler).lawless:
            raise StateError(describe_lawless(self._sampler, lawless))

    def end_seeds(self) -> dict[str, Any]:
        return self._seeds_of_now(self._parts)

    def start_seeds(self) -> dict[str, Any]:
        if self._parts is None:
            return self._seeds_of_now(None)
        return {**self.seeds, **_sampler_state.changed_seeds(self._parts, self._parts_before)}

    def _seeds_of_now(self, before: SamplerParts | None) -> dict[str, Any]:
        state = _sampler_state.state_of(self._sampler)
        changed = _sampler_state.changed_seeds(_sampler_state.parts_of(self._sampler), before)
        return {**changed, **({} if state is None else {"sampler": state})}


def indices_of(loader: Loader) -> EpochIndices:
    """Returns the indices of a loader's next epoch. Raises ValueError for the part of one rank in which
    a repeat cannot be told from other samples."""
    indices = _indices_of(loader)
    indices.check_dataset(loader.dataset)
    indices.is_batched = loader._batched
    indices.counts_draws = loader.rng == "sample"
    return indices


def _indices_of(loader: Loader) -> EpochIndices:
    sampler, batch_size = loader.sampler, loader.batch_size or 0
    if type(loader.batch_sampler) is Plan:
        return PlanIndices(loader.batch_sampler)
    for one in (sampler, loader.batch_sampler):
        _exact.check(loader, [one, lookup.attribute(one, "sampler")], "use headrace.torch.DataLoader")
    if loader.batch_sampler is not None:
        return SamplerIndices(loader.batch_sampler, type(loader.batch_sampler).__name__, _size_of(loader.dataset))
    if sampler is None:
        n = len(loader.dataset)
        if loader.shuffle:
            return ShuffledIndices(n, loader.seed, loader._position.number, batch_size, loader.drop_last)
        return range_indices("shuffle=False", n, batch_size, loader.drop_last)
    if type(sampler) is Mixture:
        return mixture_indices(sampler, batch_size, loader.drop_last)
    if type(sampler) is Order:
        return order_indices(sampler, batch_size, loader.drop_last)
    if type(sampler) is range and sampler == range(len(sampler)):
        return range_indices("range", len(sampler), batch_size, loader.drop_last)
    return SamplerIndices(sampler, type(sampler).__name__, _size_of(loader.dataset), batch_size, loader.drop_last)


def _size_of(dataset: Any) -> int | None:
    return len(dataset) if lookup.has_special(dataset, "__len__") else None


class Position(EpochPosition):
    """How far a headrace.Loader is in its epochs."""

    # ---- taking a state ----

    def state(self, loader: Loader) -> State:
        """Returns the state after the batches that were delivered."""
        start = self.next_start
        if start is None and self.progress is not None:
            state = self.progress.state(self.held_back(loader.held_back))
        else:
            state = state_to_begin(loader, start or NextStart(None))
        state.seeds = {**state.seeds, "loader": loader.seed}
        if loader._tuning is not None and self.continued_workers is None:  # else the loaded state has it
            state.seeds.update(loader._tuning.as_seeds(state.steps == 0))
        return state if self.windows is None else self.windows.add_to(state, is_left=False)

    # ---- continuing it ----

    def load(self, loader: Loader, given: Any, is_seed_given: bool) -> None:
        """Checks a state and keeps it for the next iterator. Raises TypeError and StateError."""
        state = _state.decode(given)
        window = state.window
        _windows.check(state, self.windows)
        seed = state.seeds.get("loader")
        if type(seed) is not int or (is_seed_given and seed != loader.seed):
            raise StateError(
                f"headrace: this state was taken with seed={seed!r}, and this loader has seed={loader.seed!r}"
            )
        before = loader.seed, self.number
        loader.seed, self.number = seed, state.epoch
        try:
            state = _fitting(loader, state)
        except BaseException:
            loader.seed, self.number = before
            raise
        for sampler in (loader.sampler, loader.batch_sampler) if "epoch" in state.order else ():
            if lookup.has_attribute(sampler, "set_epoch"):
                sampler.set_epoch(state.order["epoch"])  # type: ignore[union-attr]
        self.will_continue(state, window)

    def begin_iterable(self, loader: Loader) -> IterableEpoch:
        """Begins the next epoch of a loader with an iterable dataset, or continues one."""
        workers, start = loader.num_workers, self.next_start
        if self.initial is not None:
            loader.dataset.load_state_dict(pickle.loads(self.initial))
        number = self.number_of_next(start)
        epoch = IterableEpoch(loader.dataset, workers, where.rank_or_zero(), number, start, loader.held_back)
        self.initial = None if workers else epoch.load_in_process()
        return epoch

    def begin(self, loader: Loader) -> Epoch:
        """Begins the loader's next epoch, or continues one. Raises StateError if the order has changed."""
        start = self.next_start
        state = None if start is None else start.state
        if state is not None:
            self.number = state.epoch
        indices = indices_of(loader)
        if state is not None and state.steps:
            indices.check_order(state)
            if state.order["n"] != indices.order["n"]:
                indices = indices.with_size(state.order["n"])
            check_division(state, indices)
        if start is not None and start.skipped:
            state = _next_start.skipped(state or _fresh(loader, indices), start.skipped, indices)
        before = self.progress
        if isinstance(before, Epoch):
            indices.follows(before.indices)
        epoch = self._begun(loader, indices, state)
        if isinstance(before, Epoch) and before.steps_left() == 0:
            epoch.order_before = dict(before.indices.order)
        if start is not None:
            start.begun = epoch
        self.progress = epoch
        return epoch

    # ---- the ranks of a plan ----

    def watch_of(self, loader: Loader, epoch: Epoch) -> Watch | None:
        """Returns what compares this epoch with that of the other ranks, or None if no plan deals it to several
        ranks."""
        plan = loader.batch_sampler
        if not isinstance(plan, Plan) or plan.num_replicas < 2 or not loader.compare_ranks:
            return None
        if self.agreement is None:
            settings = f"Loader {plan.settings.tail}"
            made_by = self.made_by or callers.place_of_caller(f"{plan.n} {settings}")
            self.agreement = Agreement(made_by, plan.place.rank, plan.num_replicas, settings)
        return Watch(self.agreement, epoch, lambda: None)

    def describe_ranks(self, plan: Any) -> str:
        """Returns which rank a plan is for, what says so, and how it is compared with the others; "": there are no
        others."""
        if not isinstance(plan, Plan) or plan.num_replicas < 2:
            return ""
        compared = "not compared yet" if self.agreement is None else self.agreement.describe()
        return f"rank {plan.place.rank} of {plan.num_replicas} ({plan.place.source}); {compared}"

    def was_drawn(self, epoch: Epoch, watch: Watch | None) -> None:
        """Called after the first indices of an epoch were drawn. Raises RanksDisagree."""
        if not self.has_warned:
            self.has_warned = warn_of_same_order(epoch)
        if watch is not None:
            watch.begin()

    def _begun(self, loader: Loader, indices: EpochIndices, state: State | None) -> Epoch:
        try:
            return Epoch(indices, self.number, state)
        except StateError:
            if loader.on_changed != "next_epoch":
                raise
        self.number += 1
        return Epoch(indices_of(loader), self.number)


class AsPositionOwner:
    """A headrace.Loader as its position sees it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @property
    def is_iterable(self) -> bool:
        """True if the dataset gives no samples by index."""
        return self._loader._is_iterable

    def indices(self) -> tuple[EpochIndices, int]:
        """Returns the indices of the next epoch. No sampler here leaves steps out."""
        return indices_of(self._loader), 0

    def state_to_begin(self, start: NextStart) -> State:
        """Returns the state before the next iterator."""
        return state_to_begin(self._loader, start)

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to an epoch, if they have set_epoch."""
        parts: list[Any] = [self._loader.sampler, self._loader.batch_sampler, self._loader.dataset]
        for one in parts:
            if callable(lookup.attribute(one, "set_epoch")):
                one.set_epoch(epoch)

    def go_on_from_state(self) -> None:
        """Loads the state of now."""
        self._loader.load_state_dict(self._loader.state_dict())


def state_to_begin(loader: Loader, start: NextStart) -> State:
    """Returns the state before the next iterator, which continues `start`."""
    if loader._is_iterable:
        order = _iterable.order_of(loader.dataset, loader.num_workers)
        return start.state or _iterable.state_at_start(loader._position.number, order, where.rank_or_zero())
    indices = indices_of(loader)
    state = start.state or _fresh(loader, indices)
    return _next_start.skipped(state, start.skipped, indices) if start.skipped else state


def _fresh(loader: Loader, indices: EpochIndices) -> State:
    return State(loader._position.number, 0, 0, indices.order, [indices.segment], seeds=indices.start_seeds())


def _fitting(loader: Loader, state: State) -> State:
    if not loader._is_iterable:
        return _next_start.fitting(state, indices_of(loader), loader.on_changed)
    state = _iterable.fitting(state, loader.dataset, loader.num_workers, where.rank_or_zero())
    if "epoch" in state.order:
        loader.dataset.set_epoch(state.order["epoch"])
    return state
