# SPDX-License-Identifier: Apache-2.0
"""EpochIndices, which gives the indices of an epoch: an order that is known, so that it can be continued at any place
and divided among another number of ranks, or a sampler of the user's, whose indices are drawn again.

The loaders choose the class (headrace.torch._samplers.find, headrace._numpy.indices); Epoch (_epoch.py) begins and
continues it.
"""

from __future__ import annotations

import array
import copy
import itertools
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace._base import lookup, signals
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace.sampling import _deal
from headrace.sampling._state import Segment, State, StateError

# In the seeds of a state: those of an epoch of which the consumer has all batches, but which was not drawn to its end.
REPLAY = "replay"


def hash_of(task: Any) -> int:
    """Returns 32 bits of the indices of a task, which is never 0."""
    if hasattr(task, "tolist"):  # an array or a tensor, whose repr may leave entries out
        task = task.tolist()
    try:
        data = array.array("q", task if isinstance(task, (list, tuple)) else [task]).tobytes()
    except (TypeError, ValueError, OverflowError):  # indices of another kind
        data = repr(task).encode()
    return zlib.crc32(data) or 1


def describe_change(kind: str, what: str) -> str:
    """Returns the text of the error for an order that is not that of the state."""
    return (
        f"headrace: the order of the samples has changed since this state was taken: the {kind} {what}; make it with "
        "the same seed, weights and dataset, give it state_dict and load_state_dict if it counts epochs itself, or use "
        "on_changed='next_epoch' to leave the rest of the epoch out" + help_on("order-changed")
    )


def describe_other_length(kind: str, steps: int) -> str:
    """Returns the text of the error for a sampler that was at its end by its __len__, but is not."""
    return (
        f"headrace: this state was taken after {steps} batches, which is all by the __len__ of the {kind}, but now it "
        "has another length when it is drawn again; correct its __len__, or use loader.skip to begin at a place of "
        "your choice"
    )


def warn_of_other_epoch(kind: str) -> None:
    """Warns that a sampler has not given the order of the epoch before when it was drawn again."""
    warn_user(
        f"headrace: the {kind} is not where it was when the state was taken, at an epoch's end: it gives other indices "
        "for that epoch than before, so this epoch has not the order of the run that was never stopped; if it counts "
        "its epochs, give it state_dict and load_state_dict" + help_on("order-changed")
    )


class _Begun:
    """An iterator over one that was begun, for code that calls iter() again: that of a user's class may begin again."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._next = iterator.__next__

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._next()


def begun(iterator: Iterator[Any]) -> Iterator[Any]:
    """Returns an iterator that goes on with one that was begun."""
    is_users = isinstance(lookup.static(type(iterator), "__iter__"), types.FunctionType)
    return _Begun(iterator) if is_users else iterator


class Drawn:
    """The tasks of an epoch from some place on. items: an iterable over what tasks are made of; with `has_lists` an
    object that gives them in lists (_core.Tasks). batch_size: so many items make a task; 0: an item is a task; an
    object with the attribute batch_size, which is read when a batch begins. is_iterator: items is iterated as it is."""

    def __init__(
        self, items: Any, batch_size: Any, drop_last: bool, has_lists: bool = False, is_iterator: bool = False
    ) -> None:
        self.items = items
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.has_lists = has_lists
        self.is_iterator = is_iterator
        self.changes: list[tuple[int, int]] = []  # of the batch size, by `tasks`: see _core.Tasks
        self._newest_size = getattr(batch_size, "batch_size", None)
        self._count = 0

    def tasks(self) -> Iterator[Any]:
        """Returns an iterator over the tasks, without the extension."""
        items = begun(iter(_items_of(self.items) if self.has_lists else self.items))
        size = self.batch_size
        if size == 0:
            yield from items
            return
        while batch := list(itertools.islice(items, size if isinstance(size, int) else self._read_size())):
            if self.drop_last and len(batch) < size:
                return
            self._count += 1
            yield batch

    def _read_size(self) -> Any:
        size = self.batch_size.batch_size
        if size != self._newest_size and self._newest_size is not None:
            self.changes.append((self._count, sys.maxsize if size is None else int(size)))
        self._newest_size = size
        return size


def _items_of(lists: Any) -> Iterator[Any]:
    """Yields what comes in lists, for Drawn."""
    for number in itertools.count():
        made = lists.at(number)
        if made is None:
            return
        yield from made if lists.picks is None else (lists.picks.indices[at] for at in made)


class EpochIndices:
    """A sampler of the user's: its indices are drawn again from the epoch's beginning, and dropped up to the place. It
    is the base of the classes for samplers that are known better.

    order: what the order is made from; a state can only be loaded if it is the same. segment: how this rank divides it.
    size: the number of samples of the dataset, or None.
    """

    warns_of_epochs = False  # True: the sampler itself warns if its epoch was not set
    counts_epochs = False  # True: the next epoch has another number without a call of set_epoch
    is_known = False  # True: another rank, number of ranks and batch size can continue it
    is_numbered = False  # True: an epoch's number and the settings give its order, and all epochs have as many steps
    n: int | None = None  # entries of the order, of all ranks; a state then counts them
    is_batched = True  # False: a task is the index of one sample
    counts_draws = True  # False: nothing asks how often an index was drawn (rng="worker")
    sizes: Any = None  # has the attribute batch_size, which is read for each batch; None: it is fixed

    def __init__(self, sampler: Any, kind: str, size: int | None, batch_size: int = 0, drop_last: bool = False) -> None:
        self.order: dict[str, Any] = {"kind": kind, "n": -1 if size is None else size}
        self.segment = Segment(world=1, batch=batch_size or 1, drop_last=drop_last, tail="pad")
        self.rank = 0
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.seeds: dict[str, Any] = {}  # what the newest draw has used

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        """Returns the tasks, and the number of those at their beginning that have to be dropped to be `steps` tasks
        after `position`. seeds: the random numbers of the epoch that is continued; None: they are drawn."""
        return Drawn(self._sampler, self._sizes(), self._drop_last), steps

    def _sizes(self) -> Any:
        """Returns the batch size, or the object that has it."""
        return self._batch_size if self.sizes is None else self.sizes

    def at_begin(self, now: EpochIndices) -> EpochIndices:
        """Called when the first index of an epoch is drawn: `now` is what the sampler is now. Returns which of both the
        epoch goes on with."""
        same = (self.order, self.segment, self.rank, self.n) == (now.order, now.segment, now.rank, now.n)
        same = same and getattr(self, "_sampler", None) is getattr(now, "_sampler", None)
        if same and type(self) is type(now) and self._batch_size == now._batch_size:
            return self
        now.replaces(self)
        return now

    def replaces(self, before: EpochIndices) -> None:
        """Takes over what was noted about the epoch before its first index was drawn."""
        self.is_batched, self.counts_draws = before.is_batched, before.counts_draws

    def with_batch_size(self, size: int) -> EpochIndices:
        """Returns the same indices for the rest of an epoch in which the batch size has changed."""
        other = copy.copy(self)
        other._batch_size = size
        other.segment = Segment(**{**vars(self.segment), "batch": size, "steps": 0})
        return other

    def check_dataset(self, dataset: Any) -> None:
        """Raises ValueError if the order is known to be that of another dataset."""

    def position_after(self, segments: list[Segment]) -> int:
        """Returns the position after some segments of the epoch: entries of the order that all ranks have consumed, or,
        if the order is not known, that this rank has. The other methods take positions that this one has returned."""
        if self.n is None:
            return sum(one.batch * one.steps for one in segments)
        position = 0
        for one in segments:
            position = _deal.advance(self.n, position, one.world, one.batch, one.steps)
        return position

    def last_task(self, segments: list[Segment], rank: int, seeds: dict[str, Any]) -> Any:
        """Returns the task that a rank got last in some segments, or None if that is not known. It is drawn again."""
        return None

    def count_steps(self, position: int) -> int | None:
        """Returns how many tasks there are from a position on, or None if that is not known."""
        try:
            count = len(self._sampler)
        except Exception as error:  # torch's loader does not ask for it
            if signals.is_from_signal(error):
                raise
            return None
        return count_batches(count, self._batch_size, self._drop_last) if self._batch_size else count

    def draw_numbers(self, position: int, step: int) -> Sequence[int] | None:
        """Returns for each sample of a task how often its index is in the order before, over all ranks. None: that is
        not known, and the indices of this rank are counted."""
        return None

    def weights(self, position: int, step: int, task: Any) -> list[float]:
        """Returns for each sample of a task 1, or 0 if it only repeats another one to fill up the task."""
        return [1.0] * count_samples(task)

    def count_global(self, position: int, step: int) -> int | None:
        """Returns how many samples all ranks get in a step, without repeats, or None if that is not known."""
        if self.n is None:
            return None
        start, end = self.places_of(position, step)
        return end - start

    def places_of(self, position: int, step: int) -> tuple[int, int]:
        """Returns the part of the order that all ranks consume in a step, if the order is known."""
        n, world, batch = self.n or 0, self.segment.world, self.segment.batch
        return (
            _deal.advance(n, position, world, batch, step),
            _deal.advance(n, position, world, batch, step + 1),
        )

    def check_order(self, state: State) -> None:
        """Raises StateError if a state was taken with another order, other than by the number of samples and the
        epoch."""
        check_same_order(state, self.order)

    def follows(self, before: EpochIndices) -> None:
        """Called when an epoch begins after another one in this process, with the object of that one."""

    def was_loaded(self, state: State) -> None:
        """Called when a state was found to fit, which the next epoch continues. Raises StateError."""

    def going_on(self, state: State) -> EpochIndices:
        """Returns the indices with which the epoch of a state goes on after its first steps: with the order that it
        began with, if the sampler would begin another one now."""
        return self

    def continues(self, segment: Segment) -> None:
        """Called when an epoch goes on with a segment of a state that divides the order as this object does."""

    def check_continuable(self) -> None:
        """Called when a state is taken in the middle of an epoch. Raises StateError if that cannot be continued."""

    def was_drawn(self) -> None:
        """Called after the first indices of an epoch were drawn."""

    def next_order(self) -> dict[str, Any]:
        """Returns what the order of the next epoch is made from. A sampler with set_epoch keeps its epoch until the
        user sets it."""
        order = dict(self.order)
        if self.counts_epochs:
            order["epoch"] += 1
        return order

    def start_seeds(self) -> dict[str, Any]:
        """Returns the random numbers of this epoch before its first batch, also if they are not drawn yet."""
        return dict(self.seeds)

    def end_seeds(self) -> dict[str, Any]:
        """Returns the random numbers that the next epoch begins with."""
        return {}

    def left_seeds(self) -> dict[str, Any]:
        """Returns the same if the epoch was left before its end, as it is now."""
        return self.end_seeds()

    def begin_with(self, seeds: dict[str, Any]) -> None:
        """Sets the sampler to what end_seeds has returned at the end of the epoch before. Raises StateError."""

    def with_size(self, n: int) -> EpochIndices:
        """Returns the same indices for a dataset of n samples, to end an epoch that began with these. Raises StateError
        if it cannot."""
        raise StateError(
            f"headrace: on_changed='finish' cannot end an epoch with the old samples of a {self.order['kind']}; use "
            "on_changed='next_epoch'"
        )


def count_batches(count: int, batch_size: int, drop_last: bool) -> int:
    """Returns how many batches are made of so many entries of one rank."""
    return count // batch_size if drop_last else -(-count // batch_size)


def count_samples(task: Any) -> int:
    """Returns how many samples a task has: a list of indices, or one index."""
    return len(task) if isinstance(task, (list, tuple)) else 1


class Dealt(EpochIndices):
    """A known order, of which each rank takes every world-th entry. batch_size: so many entries make a task; 0: an
    entry is a task, and with `has_batches` it is a batch."""

    is_known = True
    has_batches = False

    def __init__(self, order: dict[str, Any], n: int, segment: Segment, rank: int, batch_size: int) -> None:
        self.order = order
        self.n = n
        self.segment = segment
        self.rank = rank
        self._batch_size = batch_size
        self.seeds = {}

    def entries(self) -> Any:
        """Returns the whole order of this epoch, as a sequence or a _core.Order."""
        raise NotImplementedError

    def deal(self, position: int) -> _deal.Deal:
        """Returns the part of this rank from a position on."""
        drops = self.segment.tail == "drop"
        return _deal.deal(self.n or 0, position, self.segment.world, self.rank, drops)

    def _count(self, dealt: _deal.Deal, segment: Segment | None = None) -> int:
        """Returns how many entries a rank gets. With tail "exact" those are the ones that are no repeats, and a repeat
        if the rank would have one batch fewer than the others."""
        segment = segment or self.segment
        if segment.tail == "slice":
            return dealt.once
        if segment.tail != "exact":
            return dealt.size
        is_short = -(-dealt.once // segment.batch) < -(-dealt.size // segment.batch)
        return dealt.once + is_short

    def last_task(self, segments: list[Segment], rank: int, seeds: dict[str, Any]) -> Any:
        *earlier, last = segments
        dealt = _deal.deal(self.n or 0, self.position_after(earlier), last.world, rank, last.tail == "drop")
        entries = part_of(self.entries(), dealt, self._count(dealt, last))
        first = (last.steps - 1) * last.batch
        return next(Drawn(itertools.islice(entries, first, None), self._batch_size and last.batch, False).tasks(), None)

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        place = _deal.advance(self.n or 0, position, self.segment.world, self.segment.batch, steps)
        return Drawn(self.part(place), self._sizes(), self.segment.drop_last), 0

    def part(self, position: int) -> Iterable[Any]:
        """Returns the entries of this rank from a position on."""
        dealt = self.deal(position)
        count = self._count(dealt)
        entries = part_of(self.entries(), dealt, count)
        if self.segment.tail == "exact" and self.has_batches and count > dealt.once:
            return [first_only(one) if i >= dealt.once else one for i, one in enumerate(entries)]
        return entries

    def count_steps(self, position: int) -> int | None:
        return count_batches(self._count(self.deal(position)), self.segment.batch, self.segment.drop_last)

    def weights(self, position: int, step: int, task: Any) -> list[float]:
        first, once = step * self.segment.batch, self.deal(position).once
        if not self._batch_size:
            return [float(first < once)] * count_samples(task)
        return [float(first + i < once) for i in range(len(task))]

    def count_global(self, position: int, step: int) -> int | None:
        if not self.has_batches:
            return super().count_global(position, step)
        entries = self.entries()
        return sum(count_samples(entries[i]) for i in range(*self.places_of(position, step)))


class WholeOrder(Dealt):
    """A known order that is at hand as a sequence or a _core.Order."""

    is_numbered = True

    def __init__(
        self, entries: Any, order: dict[str, Any], n: int, segment: Segment, rank: int, batch_size: int
    ) -> None:
        super().__init__(order, n, segment, rank, batch_size)
        self._entries = entries

    def entries(self) -> Any:
        return self._entries


def first_only(entry: Any) -> Any:
    """Returns a batch with its first sample only."""
    return list(entry[:1]) if isinstance(entry, (list, tuple)) else entry


def part_of(entries: Any, dealt: _deal.Deal, count: int) -> Iterable[Any]:
    """Returns `count` entries of a part, from a sequence or a _core.Order."""
    if hasattr(entries, "iterate"):
        return iter(entries.iterate(dealt.first, dealt.step, count)) if count else ()
    part: Sequence[Any] = entries[dealt.first :: dealt.step][:count]
    n = len(entries)
    rest = range(len(part), count)
    return [*part, *(entries[(dealt.first + i * dealt.step) % n] for i in rest)] if rest else part


def check_same_order(state: State, ours: dict[str, Any]) -> None:
    """Raises StateError if a state was taken with another order, other than by the number of samples and the epoch."""
    theirs = state.order
    if theirs["kind"] != ours["kind"]:
        raise StateError(
            f"headrace: this state was taken with {theirs['kind']}, and this loader has {ours['kind']}; give it the "
            "same kind of sampler or dataset" + help_on("state")
        )
    for name in theirs.keys() - {"n", "kind", "epoch", "workers"}:
        if theirs[name] != ours.get(name):
            raise StateError(
                f"headrace: this state was taken with {name}={theirs[name]!r} of the {ours['kind']}, and here it is "
                f"{ours.get(name)!r}; make the sampler with {name}={theirs[name]!r}" + help_on("state")
            )


def check_division(state: State, indices: EpochIndices) -> None:
    """Raises StateError if a state needs the same division among ranks as it was taken with, and this is another."""
    last = state.segments[-1]
    if not state.is_of_all_ranks and state.rank != indices.rank:
        raise StateError(
            f"headrace: this state is that of rank {state.rank}, and this is rank {indices.rank}: batches arrived out "
            "of order, or the sampler has a state of its own, so each rank has to load its own state" + help_on("state")
        )
    if last.divides_as(indices.segment):
        return
    now = indices.segment
    then = f"it was taken with world_size {last.world} and batch_size {last.batch}"
    change = f"{then}, and now these are {now.world} and {now.batch}"
    if not indices.is_known:
        raise StateError(
            f"headrace: this state can only be continued with the same division among ranks: {change}; the order of a "
            f"{indices.order['kind']} is not known to headrace (headrace.torch.per_rank makes it known)"
            + help_on("state")
        )
    if state.holes:
        raise StateError(f"headrace: this state was taken with in_order=False, and {change}")
