# SPDX-License-Identifier: Apache-2.0
"""How far a headrace.Loader is in its epoch, and what its next iterator continues."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._ranks import callers, where
from headrace._ranks.agreement import Agreement
from headrace.sampling import _exact, _iterable, _pending, _sampler_state, _state, _windows
from headrace.sampling._epoch import Epoch, Last, Progress, warn_of_same_order
from headrace.sampling._known import ShuffledSource, order_source, range_source
from headrace.sampling._order import Order
from headrace.sampling._pending import Pending
from headrace.sampling._plan import Plan
from headrace.sampling._plan_source import PlanSource
from headrace.sampling._sampler_parts import SamplerParts, describe_lawless
from headrace.sampling._source import (
    REPLAY,
    Drawn,
    Source,
    begun,
    check_division,
    describe_other_length,
    hash_of,
    warn_of_other_epoch,
)
from headrace.sampling._state import State, StateError
from headrace.sampling._watch import Watch
from headrace.sampling._windows import Windows

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class SamplerSource(Source):
    """A sampler of the user's. It is put back to the epoch's beginning by the states of its generators, and by its own
    state_dict and load_state_dict, if it has them."""

    _parts: SamplerParts | None = None  # at the beginning of the epoch
    _parts_before: SamplerParts | None = None  # at that of the epoch before

    def follows(self, before: Source) -> None:
        if isinstance(before, SamplerSource):
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


def source_of(loader: Loader) -> Source:
    """Returns the source of a loader's indices for its next epoch. Raises ValueError for the part of one rank in which
    a repeat cannot be told from other samples."""
    source = _source_of(loader)
    source.is_batched = loader._batched
    source.counts_draws = loader.rng == "sample"
    return source


def _source_of(loader: Loader) -> Source:
    sampler, batch_size = loader.sampler, loader.batch_size or 0
    if type(loader.batch_sampler) is Plan:
        return PlanSource(loader.batch_sampler)
    for one in (sampler, loader.batch_sampler):
        _exact.check(loader, [one, lookup.attribute(one, "sampler")], "use headrace.torch.DataLoader")
    if loader.batch_sampler is not None:
        return SamplerSource(loader.batch_sampler, type(loader.batch_sampler).__name__, _size_of(loader.dataset))
    if sampler is None:
        n = len(loader.dataset)
        if loader.shuffle:
            return ShuffledSource(n, loader.seed, loader.epoch, batch_size, loader.drop_last)
        return range_source("shuffle=False", n, batch_size, loader.drop_last)
    if type(sampler) is Order:
        return order_source(sampler, batch_size, loader.drop_last)
    if type(sampler) is range and sampler == range(len(sampler)):
        return range_source("range", len(sampler), batch_size, loader.drop_last)
    return SamplerSource(sampler, type(sampler).__name__, _size_of(loader.dataset), batch_size, loader.drop_last)


def _size_of(dataset: Any) -> int | None:
    return len(dataset) if lookup.has_special(dataset, "__len__") else None


class EpochPosition:
    """The place of a loader in its epochs."""

    def __init__(self) -> None:
        self._pending: Pending | None = None
        self._epoch: Progress | None = None
        self._initial: bytes | None = None  # state of an iterable dataset before another one was loaded, pickled
        self._agreement: Agreement | None = None  # of the ranks of a plan
        self._has_warned = False  # of a set_epoch that was forgotten
        self.windows: Windows | None = None  # the epochs with steps_per_epoch

    # ---- taking it ----

    def copy(self) -> EpochPosition:
        """Returns the place of a copy of the loader, which continues the same state, and has begun no epoch."""
        other, pending = EpochPosition(), self._pending_now()
        if pending is not None:
            other._pending = Pending(pending.state, pending.skipped)
        if self.windows is not None:
            other.windows = self.windows.copied(pending)
        return other

    def _pending_now(self) -> Pending | None:
        """Returns what the next iterator continues, or None."""
        if self._pending is not None and self._pending.is_used:
            self._pending = None
        return self._pending

    def state(self, loader: Loader) -> State:
        """Returns the state after the batches that were delivered."""
        if self._pending_now() is None and self._epoch is not None:
            state = self._epoch.state(self._held_back(loader))
        else:
            state = self._state_to_begin(loader)
        state.seeds = {**state.seeds, "loader": loader.seed}
        return state if self.windows is None else self.windows.add_to(state, is_left=False)

    def _held_back(self, loader: Loader) -> int:
        return loader.held_back if self.windows is None else self.windows.held_back(loader.held_back)

    def progress(self) -> Progress:
        """Returns the newest pass, which has begun."""
        assert self._epoch is not None
        return self._epoch

    def _state_to_begin(self, loader: Loader) -> State:
        pending = self._pending or Pending(None)
        if loader._is_iterable:
            order = _iterable.order_of(loader.dataset, loader.num_workers)
            return pending.state or _iterable.state_at_start(loader.epoch, order, where.rank_or_zero())
        source = source_of(loader)
        state = pending.state or self._fresh(loader, source)
        return _pending.skipped(state, pending.skipped, source) if pending.skipped else state

    def _fresh(self, loader: Loader, source: Source) -> State:
        return State(loader.epoch, 0, 0, source.order, [source.segment], seeds=source.start_seeds())

    def last(self) -> Last | None:
        """Returns the batch that was delivered last."""
        import numpy as np

        found = None if self._epoch is None else self._epoch.last()
        if self.windows is not None:
            found = self.windows.last(found)
        return None if found is None else found._replace(weights=np.array(found.weights, np.float32))

    def steps_left(self, loader: Loader) -> int | None:
        """Returns how many batches the epoch has left."""
        if self.windows is not None:
            return self.windows.steps_left()
        pending = self._pending_now()
        if pending is None and self._epoch is not None:
            return self._epoch.steps_left()
        if loader._is_iterable:
            return None
        source = source_of(loader)
        return _pending.count_left(source, None if pending is None else self.state(loader), 0)

    def length(self, loader: Loader, count: int) -> int:
        """Returns the number of batches of the epoch that runs or is continued; `count`: of any other one."""
        if loader._is_iterable:
            return count
        pending = self._pending_now()
        if pending is None or pending.state is None:
            return _pending.length_of(None if pending is not None else self._epoch, count)
        return _pending.length_to_be(pending.state, source_of(loader), count)

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
        before = loader.seed, loader.epoch
        loader.seed, loader.epoch = seed, state.epoch
        try:
            state = self._fitting(loader, state)
        except BaseException:
            loader.seed, loader.epoch = before
            raise
        loader.epoch = state.epoch
        for sampler in (loader.sampler, loader.batch_sampler) if "epoch" in state.order else ():
            if lookup.has_attribute(sampler, "set_epoch"):
                sampler.set_epoch(state.order["epoch"])  # type: ignore[union-attr]
        self._pending, self._epoch = Pending(state), None
        if self.windows is not None:
            self.windows.load(window, state.epoch)

    def _fitting(self, loader: Loader, state: State) -> State:
        if not loader._is_iterable:
            return _pending.fitting(state, source_of(loader), loader.on_changed)
        state = _iterable.fitting(state, loader.dataset, loader.num_workers, where.rank_or_zero())
        if "epoch" in state.order:
            loader.dataset.set_epoch(state.order["epoch"])
        return state

    def skip(self, loader: Loader, steps: int) -> None:
        """Lets the next iterator begin some steps later."""
        if self.windows is not None:
            self._skip_in(self.windows, loader, steps)
            return
        pending = self._pending_now() or Pending(None)
        if loader._is_iterable:
            self._pending = Pending(pending.state, pending.skipped + steps)
        else:
            self._pending = _pending.with_skip(pending, steps, source_of(loader))

    def _skip_in(self, windows: Windows, loader: Loader, steps: int) -> None:
        windows.check_skip(steps, loader._is_iterable)
        windows.finish_epoch()
        if windows.is_running():  # the pass goes on from a state, as in another process
            loader.load_state_dict(loader.state_dict())
        pending = self._pending_now() or Pending(None)
        later, rest = _windows.after_skip(source_of(loader), pending, steps)
        if later:
            self._begin_at(loader, windows.following + later, rest)
        else:
            self._pending = Pending(pending.state, pending.skipped + steps)
        windows.skip(steps, windows.following + later)

    def go_to(self, loader: Loader, windows: Windows, epoch: int) -> None:
        """Goes to the place of an epoch in the stream of passes, if it is not the one that comes next. Raises
        ValueError if that place is not known."""
        if windows.is_next(epoch):
            return
        source = None if loader._is_iterable else source_of(loader)
        number, steps = _windows.pass_of(source, epoch * windows.steps, f"set_epoch({epoch})")
        _windows.warn_of_discarded(self._pending_now(), epoch)
        windows.go_to(epoch, number)
        self._begin_at(loader, number, steps)

    def _begin_at(self, loader: Loader, number: int, steps: int) -> None:
        """Lets the next pass be the one with this number, without its first steps."""
        loader.epoch, self._epoch, self._pending = number, None, Pending(None, steps)

    def epoch_is_set(self, epoch: int) -> None:
        """Discards a state of another epoch, with a warning."""
        if _pending.discards(self._pending_now(), epoch):
            self._pending = None

    def begin_iterable(self, loader: Loader) -> IterableEpoch:
        """Begins the next epoch of a loader with an iterable dataset, or continues one."""
        workers, rank, pending = loader.num_workers, where.rank_or_zero(), self._pending_now()
        if pending is not None and pending.state is not None:
            loader.epoch = pending.state.epoch
        if self._initial is not None:
            loader.dataset.load_state_dict(pickle.loads(self._initial))
        epoch = IterableEpoch(loader.dataset, workers, rank, loader.epoch, pending, loader.held_back)
        self._initial = None if workers else epoch.load_in_process()
        return epoch

    def has_begun(self, epoch: IterableEpoch) -> None:
        """Keeps an epoch whose iterator is ready."""
        if self._pending is not None:
            self._pending.begun = epoch
        self._epoch = epoch

    def begin(self, loader: Loader) -> Epoch:
        """Begins the loader's next epoch, or continues one. Raises StateError if the order has changed."""
        pending = self._pending_now()
        state = None if pending is None else pending.state
        if state is not None:
            loader.epoch = state.epoch
        source = source_of(loader)
        if state is not None and state.steps:
            source.check_order(state)
            if state.order["n"] != source.order["n"]:
                source = source.with_size(state.order["n"])
            check_division(state, source)
        if pending is not None and pending.skipped:
            state = _pending.skipped(state or self._fresh(loader, source), pending.skipped, source)
        before = self._epoch
        if isinstance(before, Epoch):
            source.follows(before.source)
        epoch = self._begun(loader, source, state)
        if isinstance(before, Epoch) and before.steps_left() == 0:
            epoch.order_before = dict(before.source.order)
        if pending is not None:
            pending.begun = epoch
        self._epoch = epoch
        return epoch

    # ---- the ranks of a plan ----

    def watch_of(self, loader: Loader, epoch: Epoch) -> Watch | None:
        """Returns what compares this epoch with that of the other ranks, or None if no plan deals it to several
        ranks."""
        plan = loader.batch_sampler
        if not isinstance(plan, Plan) or plan.num_replicas < 2 or not loader.compare_ranks:
            return None
        if self._agreement is None:
            settings = f"Loader {plan.settings.tail}"
            made_by = loader._made_by or callers.place_of_caller(f"{plan.n} {settings}")
            self._agreement = Agreement(made_by, plan.place.rank, plan.num_replicas, settings)
        return Watch(self._agreement, epoch, lambda: None)

    def describe_ranks(self, plan: Any) -> str:
        """Returns which rank a plan is for, what says so, and how it is compared with the others; "": there are no
        others."""
        if not isinstance(plan, Plan) or plan.num_replicas < 2:
            return ""
        compared = "not compared yet" if self._agreement is None else self._agreement.describe()
        return f"rank {plan.place.rank} of {plan.num_replicas} ({plan.place.source}); {compared}"

    def was_drawn(self, epoch: Epoch, watch: Watch | None) -> None:
        """Called after the first indices of an epoch were drawn. Raises RanksDisagree."""
        if not self._has_warned:
            self._has_warned = warn_of_same_order(epoch)
        if watch is not None:
            watch.begin()

    def _begun(self, loader: Loader, source: Source, state: State | None) -> Epoch:
        try:
            return Epoch(source, loader.epoch, state)
        except StateError:
            if loader.on_changed != "next_epoch":
                raise
        loader.epoch += 1
        return Epoch(source_of(loader), loader.epoch)
