# SPDX-License-Identifier: Apache-2.0
"""One epoch of a loader: where it began, how far it is, and the state that continues it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._samples.names import samples_of
from headrace.sampling._draws import DrawCounts
from headrace.sampling._epoch_indices import REPLAY, Drawn, EpochIndices, describe_change, hash_of
from headrace.sampling._part import Part
from headrace.sampling._sampler_state import CHANGED
from headrace.sampling._state import Segment, State, StateError

try:
    from headrace import _core
except ImportError:
    _core = None  # type: ignore[assignment]


_AHEAD = "ahead"  # in the seeds of a state


class Last(NamedTuple):
    """The batch that a loader delivered last.

    epoch: the loader's number of the epoch. step: the batch's number in the epoch, from 0. indices: as the sampler gave
    them. weights: for each sample 1, or 0 if it repeats another one to fill up the step. global_count: samples that all
    ranks get in this step, without repeats; None if the order is not known.
    """

    epoch: int
    step: int
    indices: Any
    weights: Any
    global_count: int | None


class Progress(Protocol):
    """How far a loader is in an epoch: an Epoch, or one over an iterable dataset."""

    @property
    def has_changed(self) -> bool:
        """Returns True if the epoch was divided in another way before."""

    def has_delivered(self) -> bool:
        """Returns True if the consumer has a batch of it from this process, or if no more come."""

    def steps_done(self) -> int:
        """Returns how many batches the consumer has, those before a resume too."""

    def steps_left(self) -> int | None:
        """Returns how many are left, or None if that is not known."""

    def last(self) -> Last | None:
        """Returns the batch that was delivered last, or None."""

    def state(self, held_back: int) -> State:
        """Returns the state after the batches that were delivered, without the last `held_back` of them."""


def core_tasks(drawn: Drawn) -> _core.Tasks:
    """Returns the tasks for a loader of headrace, which counts what the consumer has."""
    tasks = _core.Tasks(drawn.items, drawn.batch_size, drawn.drop_last, drawn.has_lists, drawn.is_iterator)
    tasks.keeps_sent = True
    return tasks


class _Delivered(NamedTuple):
    """How far the consumer is. steps: of the segment of `part`, with those before that were not delivered (`holes`).
    has_other_holes: some are in an earlier part."""

    part: Part
    steps: int
    holes: list[int]
    has_other_holes: bool

    @property
    def done(self) -> int:
        """Returns the steps of the segment that were delivered."""
        return self.steps - len(self.holes)


class Epoch:
    """One epoch. `tasks` gives its batches, in the order in which they are made.

    number: the loader's number of the epoch. state: what it continues. new_tasks: makes the tasks, which count how many
    of them the consumer has.
    """

    tasks: Any
    has_ended = False  # the iterator has raised StopIteration
    is_counted = True  # False: it is not known which tasks the consumer has
    order_before: dict[str, Any] | None = None  # of the epoch before, if that came to its end

    def __init__(
        self,
        indices: EpochIndices,
        number: int,
        state: State | None = None,
        new_tasks: Callable[[Drawn], Any] = core_tasks,
    ) -> None:
        self.indices = indices
        self.number = number
        self._new_tasks = new_tasks
        self._earlier: list[Segment] = []  # the fields of the first Part
        self._position = 0
        self._begun = 0
        self._holes: list[int] = []
        self._sized: Any = None  # tasks that follow those of the holes, and whose batch size may change; None: `tasks`
        self._changed_parts: list[Part] = []  # those that are known, if the batch size has changed
        self._last_hash = 0
        self._counts = DrawCounts()
        self._lists: Any = None  # of the sampler, if it can tell which entries it has skipped
        self._hole_draws: list[Sequence[int]] = []
        # The task whose draws were counted last: its number, its indices, and the draws. They are set in one step, and
        # counted in the next call, so that they fit together if the handler of a signal raises an exception.
        self._counted: tuple[int, Any, Any] = (-1, (), ())
        self.is_continued = state is not None and "base" in state.seeds  # its random numbers were drawn before
        self._begin_seeds = None if state is None or not state.seeds else state.seeds
        if state is None or state.steps == 0:
            self.tasks = new_tasks(self._drawn_at_begin())
        else:
            self._continue(state)

    # ---- the beginning ----

    def _drawn_at_begin(self) -> Drawn:
        return self.indices.draw(0, 0, self._begin_seeds)[0]

    @property
    def is_new(self) -> bool:
        """Returns True if it began at its beginning, and continues nothing."""
        return not self._begun and not self._earlier and self._begin_seeds is None

    def begin_with(self, indices: EpochIndices) -> Drawn:
        """Begins to draw: the sampler is `indices` now, which may be other ones than when the epoch was made."""
        noted = {name: one for name, one in self.indices.seeds.items() if name == "base"}
        self.indices = self.indices.at_begin(indices)
        drawn = self._drawn_at_begin()
        self.indices.seeds.update(noted)
        return drawn

    def _continue(self, state: State) -> None:
        *earlier, last = state.segments
        if not last.divides_as(self.indices.segment):
            self._check_last(state)
            self._earlier, self._position = state.segments, self.indices.position_after(state.segments)
            drawn, _ = self.indices.draw(self._position, 0, state.seeds or None)
            self._lists = drawn.items if drawn.has_lists else None
            self.tasks = self._new_tasks(drawn)
            return
        self.indices.continues(last)
        self._earlier, self._begun, self._holes = earlier, last.steps, state.holes
        self._position = self.indices.position_after(earlier)
        self._last_hash = state.last
        self._redraw(state)

    def _check_last(self, state: State) -> None:
        """Raises StateError if the batch that was delivered last is not that of the order, as it was divided then."""
        task = self.indices.last_task(state.segments, state.by, state.seeds) if state.last and state.seeds else None
        if task is not None and hash_of(task) != state.last:
            raise StateError(self._describe_change(state, is_short=False))

    def _redraw(self, state: State) -> None:
        """Draws the tasks again from the first one that is needed: the last delivered one, to see that the order is the
        same, or the first hole."""
        back = min([self._begun - 1, *self._holes]) if self._begun else 0
        drawn, count = self.indices.draw(self._position, back, state.seeds or None)
        self._lists = drawn.items if drawn.has_lists else None
        tasks = self._new_tasks(drawn)
        last, is_short = None, False
        kept = []
        for number in range(back - count, self._begun):
            found, last = tasks.skip(1)
            if found < 1:
                is_short = True
                break
            draws = self._count(last)
            if number in self._holes:
                kept.append(last)
                self._hole_draws.append(draws)
        is_other = state.last and state.by == self.indices.rank and hash_of(last) != state.last
        if is_short or is_other or self._is_other_ahead(tasks, state):
            raise StateError(self._describe_change(state, is_short))
        self.tasks = self._new_tasks(Drawn(itertools.chain(kept, tasks), 0, False)) if kept else tasks
        self._sized = tasks

    def _is_other_ahead(self, tasks: Any, state: State) -> bool:
        """Returns True if the batches that a framework held back are not drawn again as they were."""
        held = state.seeds.get(_AHEAD)
        if not isinstance(held, list) or state.by != self.indices.rank or self._holes:
            return False
        count, expected = held
        ahead = tasks.look(count)
        return bool(len(ahead) < count or hash_of(ahead[count - 1]) != expected)

    def _describe_change(self, state: State, is_short: bool) -> str:
        what = "has fewer batches" if is_short else "gives other indices"
        return describe_change(state.order["kind"], f"{what} than before in its first {state.steps} batches")

    # ---- how often an index was drawn ----

    def count_draws(self, indices: Any) -> Sequence[int]:
        """Returns for each sample of the next task how often its index was drawn before in this epoch. May be called
        again for the same task."""
        number, samples, draws = self._counted
        task = self.tasks.handed_count
        if number != task:
            self._counts_now().put(samples, draws)
            samples = samples_of(indices, self.indices.is_batched)
            draws = self._draws_of(task, samples)
            self._counted = (task, samples, draws)
        found: Sequence[int] = draws
        return found

    def _draws_of(self, task: int, samples: Sequence[Any]) -> Sequence[int]:
        if task < len(self._hole_draws):
            return self._hole_draws[task]
        part = self._part_of(task)
        known = part.indices.draw_numbers(part.position, part.number_of(task))
        return self._counts_now().look(samples) if known is None else known

    def _counts_now(self) -> DrawCounts:
        """Returns the counts, with those of the entries that a list of the sampler has skipped."""
        if self._lists is not None and self._lists.skipped:
            counts, skipped = DrawCounts(), self._lists.skipped
            counts.put(skipped, counts.look(skipped))
            self._counts, self._lists = counts, None
        return self._counts

    def _count(self, task: Any) -> Sequence[int]:
        """Counts a task that was drawn before this process, and is drawn again."""
        if not self.indices.counts_draws:
            return ()
        samples = samples_of(task, self.indices.is_batched)
        draws = self._counts_now().look(samples)
        self._counts.put(samples, draws)
        return draws

    # ---- the progress ----

    def _parts(self) -> list[Part]:
        first = Part(0, self.indices, self._earlier, self._position, self._begun, self._holes)
        sized = self.tasks if self._sized is None else self._sized
        if not sized.changes:
            return [first]
        before = 0 if sized is self.tasks else len(self._holes)
        parts = self._changed_parts or [first]
        for task, size in sized.changes[len(parts) - 1 :]:
            parts = [*parts, parts[-1].followed(before + task, size)]
        self._changed_parts = parts
        return parts

    def _part_of(self, task: int) -> Part:
        """Returns the part of the epoch that has a task of this process."""
        parts = self._parts()
        return next((one for one in reversed(parts) if one.first <= task), parts[0])

    def _delivered(self, held_back: int = 0) -> _Delivered:
        """Returns how far the consumer is, up to the batch that was delivered last, without the last `held_back`."""
        tasks, holes = self.tasks, self._holes
        open_tasks = set(tasks.sent)
        end = tasks.handed_count - tasks.lost_count
        while end and end - 1 in open_tasks:
            end -= 1
        missing = sorted(one for one in open_tasks if one < end)
        lost = tasks.lost_count if end > len(holes) else 0
        if missing or (holes and end <= len(holes)):
            held_back = 0
        here = min(held_back, max(0, end - len(holes)))
        end -= here
        part = self._part_of(end - 1)
        is_before = part.first == 0 and end <= len(holes)
        steps = part.begun - (held_back - here) if is_before else part.number_of(end - 1) + 1
        own = [part.number_of(one) for one in missing if one >= part.first]
        own += [one for one in holes[tasks.handed_count :] if part.first == 0 and one not in own]
        return _Delivered(part, max(0, steps + lost), sorted(own), len(missing) > 0 and missing[0] < part.first)

    @property
    def has_changed(self) -> bool:
        """Returns True if the epoch was divided in another way before."""
        return bool(self._earlier)

    def steps_done(self) -> int:
        """Returns how many batches of the epoch the consumer has, those before a resume too."""
        found = self._delivered()
        return found.part.steps_before() + found.done

    def has_delivered(self) -> bool:
        """Returns True if the consumer has a batch of it from this process, or if it has no batches left."""
        tasks = self.tasks  # those that are drawn and not delivered are lost if the iterator is not used
        has_none = tasks.is_over and (not self.is_counted or tasks.handed_count == tasks.lost_count)
        return bool(tasks.answered_count or has_none)

    def position(self) -> int:
        """Returns how many entries of the order, of all ranks, were consumed when this division began."""
        return self._position

    def steps_left(self) -> int | None:
        """Returns how many batches are left, or None if that is not known."""
        found = self._delivered()
        count = found.part.indices.count_steps(found.part.position)
        return None if count is None else max(0, count - found.done)

    def last(self) -> Last | None:
        """Returns the batch that was delivered last, or None before the first one."""
        task = self.tasks.last
        if task is None:
            return None
        part = self._part_of(self.tasks.last_number)
        number = part.number_of(self.tasks.last_number)
        return Last(
            epoch=self.number,
            step=part.steps_before() + number,
            indices=list(task) if isinstance(task, (list, tuple)) else task,
            weights=part.indices.weights(part.position, number, task),
            global_count=part.indices.count_global(part.position, number),
        )

    # ---- the state ----

    def state(self, held_back: int) -> State:
        """Returns the state after the batches that were delivered, without the last `held_back` of them."""
        found = self._delivered(0 if self.has_ended else held_back)
        part, indices = found.part, self.indices
        if found.has_other_holes:
            raise StateError(
                "headrace: no state can be taken between these batches: they arrived out of order, and the batch size "
                "of the batch sampler has changed among them; take it after the next batches, or use in_order=True"
            )
        if not found.done and not part.earlier:
            return self._at_start(indices.start_seeds())
        if (self.has_ended or not held_back) and self._is_over(found):
            return self._at_next_epoch(self._end_seeds(found))
        indices.check_continuable()
        segment = part.segment(found.steps)
        return State(
            epoch=self.number,
            steps=part.steps_before() + found.done,
            samples=-1 if indices.n is None else indices.position_after([*part.earlier, segment]),
            order=dict(indices.order),
            segments=[*part.earlier, segment],
            holes=found.holes,
            last=self._hash_of_last(found),
            seeds={**{name: one for name, one in indices.seeds.items() if name != _AHEAD}, **self._ahead(found)},
            rank=indices.rank if found.holes or self._has_own_seeds(indices.seeds) else -1,
            by=indices.rank,
        )

    def _at_start(self, seeds: dict[str, Any]) -> State:
        """Returns the state before the first batch of this epoch."""
        rank = self.indices.rank if self._has_own_seeds(seeds) else -1
        segments = [self.indices.segment.at_start()]
        return State(self.number, 0, 0, dict(self.indices.order), segments, seeds=seeds, rank=rank)

    def _has_own_seeds(self, seeds: dict[str, Any]) -> bool:
        """Returns True if the random numbers are those of a sampler that may give each rank other ones."""
        return not self.indices.is_known and bool(seeds.keys() - {"base", CHANGED})

    def state_after_leaving(self) -> State:
        """Returns the state if the consumer takes no more batches, because it has ended the epoch itself."""
        return self._at_next_epoch(self.indices.left_seeds())

    def _at_next_epoch(self, seeds: dict[str, Any]) -> State:
        """Returns the state before the first batch of the next epoch."""
        indices = self.indices
        segments = [indices.segment.at_start()]
        return State(self.number + 1, 0, 0, indices.next_order(), segments, seeds=seeds, is_end=True)

    def _end_seeds(self, found: _Delivered) -> dict[str, Any]:
        """Returns the random numbers of the next epoch after the last batch. A sampler that has not come to its end
        would be changed if it was iterated to it now: that is done if the state is loaded."""
        if self.indices.is_known or self.tasks.is_over:
            return self.indices.end_seeds()
        last = {"steps": found.steps, "last": self._hash_of_last(found), "by": self.indices.rank}
        if found.part.first:  # batches of several sizes
            entries = self.indices.position_after([*found.part.earlier, found.part.segment(found.steps)])
            last = {"entries": entries, "last": 0, "by": self.indices.rank}
        return {REPLAY: {**self.indices.seeds, **last}}

    def _is_over(self, found: _Delivered) -> bool:
        """Returns True if the consumer has all batches. The sampler may not have come to its end yet, and is left as it
        is: by its length, there is nothing left."""
        tasks = self.tasks
        if tasks.answered_count != tasks.handed_count - tasks.lost_count:
            return False
        return bool(tasks.is_over) or found.part.indices.count_steps(found.part.position) == found.done

    def _ahead(self, found: _Delivered) -> dict[str, Any]:
        """Returns how many batches are held back, and the hash of the last one of them, as part of the seeds."""
        if self.tasks.last is None or self._part_of(self.tasks.last_number).first != found.part.first:
            return {}
        held = found.part.number_of(self.tasks.last_number) + 1 - found.steps
        return {_AHEAD: [held, hash_of(self.tasks.last)]} if held > 0 else {}

    def _hash_of_last(self, found: _Delivered) -> int:
        """Returns the hash of the task before the steps that are left; 0: it is not known."""
        task = self.tasks.last
        if task is None:
            return self._last_hash
        part = self._part_of(self.tasks.last_number)
        is_last = part.first == found.part.first and part.number_of(self.tasks.last_number) == found.steps - 1
        return hash_of(task) if is_last else 0


def warn_of_same_order(epoch: Epoch) -> bool:
    """Warns if a shuffled epoch of several ranks has the order of the one before, because nothing has called set_epoch.
    Called after the first indices were drawn, because frameworks call it after iter(). Returns True if it warned."""
    order, indices = epoch.indices.order, epoch.indices
    is_shuffled = "epoch" in order and order.get("shuffle", True) and not indices.counts_epochs
    if not is_shuffled or indices.segment.world < 2 or order != epoch.order_before or indices.warns_of_epochs:
        return False
    warn_user(
        f"headrace: this epoch has the order of the one before, because the {order['kind']} is still in epoch "
        f"{order['epoch']}; call its set_epoch(epoch) before each epoch" + help_on("set-epoch")
    )
    return True
