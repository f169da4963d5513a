# SPDX-License-Identifier: Apache-2.0
"""The batches of an epoch, as hr_plan_new makes them, and what earlier divisions of the epoch have left of it."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace._base.help_key import help_on
from headrace.sampling._plan_settings import PlanSettings
from headrace.sampling._state import StateError

if TYPE_CHECKING:
    import numpy as np

    from headrace.sampling._plan_lengths import SampleLengths


@dataclass(frozen=True)
class Division:
    """A part of an epoch: so many steps of `world` ranks with these settings. digest: of the plan that they are of, or
    0 if it is not known."""

    world: int
    settings: PlanSettings
    steps: int = 0
    digest: int = 0

    @property
    def width(self) -> int:
        """Batches of a step of the plan: those of all ranks and micro-batches."""
        return self.world * self.settings.accumulate

    def plans_as(self, other: Division) -> bool:
        """Returns True if both have the same plan: the same settings, and as many batches a step, although ranks and
        micro-batches may be divided in another way."""
        mine, theirs = ({**vars(one.settings), "accumulate": one.width} for one in (self, other))
        return mine == theirs

    def deals_as(self, other: Division) -> bool:
        """Returns True if both, which have the same plan, deal the batches of a step to the ranks in the same way."""
        return self.settings.balance != "optimizer_step" or self.world == other.world


@dataclass(frozen=True)
class Samples:
    """The samples of an epoch in order, int64, and their lengths. seed, epoch: what steps are shuffled by."""

    order: np.ndarray[Any, Any]
    lengths: SampleLengths
    seed: int
    epoch: int


class Table:
    """The batches of all ranks. Batch b has the positions positions[starts[b]:starts[b + 1]] of the order. `repeats`:
    which of these are in another batch already, as rising indices. They are fewer than a step has batches."""

    def __init__(self, samples: Samples, division: Division, left: np.ndarray[Any, Any] | None) -> None:
        import numpy as np

        self.samples, self.width, self._left = samples, division.width, left
        samples.lengths.check_for(division.settings)
        left = samples.lengths.fitting(division.settings, left)
        lengths = samples.lengths if left is None else samples.lengths.of(left)
        numbers = samples.seed & (2**64 - 1), samples.epoch & (2**64 - 1)
        made, starts, repeats = division.settings.plan(lengths, division.world, *numbers)
        entries = np.frombuffer(made, np.int32)
        self.starts = np.frombuffer(starts, np.int64)
        self.repeats: list[int] = np.flatnonzero(entries < 0).tolist() if repeats else []
        entries = np.where(entries < 0, -1 - entries, entries) if repeats else entries
        self.positions = entries if left is None else left[entries]

    def dealt_as(self, division: Division) -> Table:
        """Returns the same plan, whose steps are dealt to the ranks of a division."""
        return Table(self.samples, division, self._left)

    @property
    def batch_count(self) -> int:
        """The number of batches of all ranks."""
        return len(self.starts) - 1

    def batch(self, number: int) -> list[int]:
        """Returns the samples of a batch."""
        found = self.samples.order[self.positions[self.starts[number] : self.starts[number + 1]]]
        return found.tolist()  # type: ignore[no-any-return]

    def weights(self, number: int) -> list[float]:
        """Returns for each sample of a batch 1, or 0 if it is a repeat."""
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        found = [1.0] * (stop - start)
        for place in self.repeats[bisect_left(self.repeats, start) : bisect_left(self.repeats, stop)]:
            found[place - start] = 0.0
        return found

    def count_entries(self, first: int, end: int) -> int:
        """Returns how many entries of the order some batches have, without repeats."""
        start, stop = int(self.starts[first]), int(self.starts[end])
        return stop - start - (bisect_left(self.repeats, stop) - bisect_left(self.repeats, start))

    def consumed(self, end: int) -> np.ndarray[Any, Any]:
        """Returns the positions that the batches before `end` have."""
        import numpy as np

        stop = int(self.starts[end])
        return np.delete(self.positions[:stop], self.repeats[: bisect_left(self.repeats, stop)])

    @cached_property
    def digest(self) -> int:
        """A hash of all batches, the same on every machine; never 0."""
        starts = self.starts.astype("<i8", copy=False).tobytes()
        found = self.samples.order[self.positions].astype("<i8", copy=False).tobytes()
        return zlib.crc32(found, zlib.crc32(starts)) or 1


@dataclass(frozen=True)
class Rest:
    """The rest of an epoch for a division: batch `offset` of the table is the first one. done: entries of the order
    that were consumed before."""

    table: Table
    offset: int
    world: int
    done: int

    def count_steps(self) -> int:
        """Returns the number of steps that are left."""
        return (self.table.batch_count - self.offset) // self.world

    def number(self, step: int, rank: int) -> int:
        """Returns which batch of the table a rank gets in a step."""
        return self.offset + step * self.world + rank

    def position(self, steps: int) -> int:
        """Returns how many entries of the order are consumed after some more steps."""
        end = min(self.offset + steps * self.world, self.table.batch_count)
        return self.done + self.table.count_entries(self.offset, end)

    def samples_in(self, step: int) -> int:
        """Returns how many samples all ranks get in a step, without repeats."""
        first = self.number(step, 0)
        return self.table.count_entries(first, first + self.world)


def rest_of(samples: Samples, earlier: list[Division], division: Division) -> Rest:
    """Returns what earlier divisions of an epoch have left for another one, planned again if it has other settings or
    another number of batches a step. Raises StateError if the plans are not those that the earlier divisions had."""
    import numpy as np

    if not earlier:
        return Rest(Table(samples, division, None), 0, division.world, 0)
    taken = np.zeros(len(samples.order), bool)
    table, offset, done, before = Table(samples, earlier[0], None), 0, 0, earlier[0]
    for one in [*earlier, division]:
        if not one.plans_as(before) or offset % table.width:
            taken[table.consumed(offset)] = True
            table, offset = Table(samples, one, np.flatnonzero(~taken)), 0
        elif not one.deals_as(before):
            table = table.dealt_as(one)
        check_digest(one, table)
        end = offset + one.world * one.steps
        if end > table.batch_count:
            raise StateError(
                f"headrace: this state is damaged: it has {one.steps} steps of {one.world} ranks of a plan with "
                f"{(table.batch_count - offset) // one.world} steps"
            )
        done += table.count_entries(offset, end)
        offset, before = end, one
    return Rest(table, offset, division.world, done)


def check_digest(division: Division, table: Table) -> None:
    """Raises StateError if a table is not the plan that a division of an epoch had."""
    if division.digest and division.digest != table.digest:
        raise StateError(
            "headrace: the plan has changed since this state was taken: from the same settings, its batches are other "
            "ones; give it the same lengths, order and seed, or use on_changed='next_epoch' to leave the rest of the "
            "epoch out" + help_on("order-changed")
        )
