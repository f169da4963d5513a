# SPDX-License-Identifier: Apache-2.0
"""A recording in memory: the loaders of a folder, as columns of numbers, for the rules, the figures and the trace."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace import _core

NS = 1e9  # in a second

Column = Sequence[int]
Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Rows:
    """Seconds or minutes, the oldest first: columns of the loader, and for each worker its own. They are the fields of
    struct hr_record_row and struct hr_record_worker (headrace/record.h)."""

    of_loader: Columns
    of_workers: Sequence[Columns] = ()

    def __len__(self) -> int:
        return len(self.of_loader["at_ns"])

    def __getitem__(self, name: str) -> Column:
        return self.of_loader[name]

    def chosen(self, is_chosen: Sequence[bool]) -> Rows:
        """Returns some of the rows."""

        def choose(columns: Columns) -> Columns:
            return {name: list(itertools.compress(column, is_chosen)) for name, column in columns.items()}

        return Rows(choose(self.of_loader), [choose(worker) for worker in self.of_workers])

    def then(self, other: Rows) -> Rows:
        """Returns these rows and then others, of the same loader."""

        def join(one: Columns, two: Columns) -> Columns:
            return {name: [*column, *two[name]] for name, column in one.items()}

        workers = [join(one, two) for one, two in zip(self.of_workers, other.of_workers, strict=True)]
        return Rows(join(self.of_loader, other.of_loader), workers)

    def sum_s(self, name: str) -> float:
        """Sums a column of times, in seconds."""
        return sum(self.of_loader[name]) / NS

    def sum_of_workers_s(self, name: str) -> float:
        return sum(sum(worker[name]) for worker in self.of_workers) / NS


@dataclass(frozen=True)
class Slow:
    """One of the slowest samples."""

    ns: int
    index: int
    worker: int
    began_ns: int


@dataclass(frozen=True)
class Hour:
    """Histograms of an hour."""

    at_ns: int
    samples: Sequence[int]
    collates: Sequence[int]


@dataclass(frozen=True)
class Recorded:
    """A loader of one process, as its file has it."""

    path: str
    name: str  # the line that made it
    pid: int
    loader: int  # its number in the process
    rank: int  # -1: not known
    world_size: int
    workers: int
    queue_room: int
    opened_real_ns: int  # when it was made, on CLOCK_REALTIME, which ranks of several machines share
    host: str
    command: str
    cores: int
    version: str
    ended: str  # why the recording ends; "": its recorder still runs, or was killed
    seconds: Rows
    minutes: Rows
    hours: Sequence[Hour] = ()
    slowest: Sequence[Slow] = ()  # the slowest one first
    batches: Columns = field(default_factory=dict)
    steps: Columns = field(default_factory=dict)
    clock_ns: int = 0  # CLOCK_REALTIME minus CLOCK_MONOTONIC when the recording began
    torn: int = 0  # entries that were left out because they are damaged

    @functools.cached_property
    def rows(self) -> Rows:
        """Minutes, and from where they begin on, the seconds."""
        if not len(self.seconds) or not len(self.minutes):
            return self.seconds if len(self.seconds) else self.minutes
        first_ns = self.seconds["at_ns"][0] - self.seconds["length_ns"][0]
        return self.minutes.chosen([at_ns <= first_ns for at_ns in self.minutes["at_ns"]]).then(self.seconds)

    @property
    def last_real_ns(self) -> int:
        """Returns when the recording ends."""
        if len(self.rows):
            return self.rows["real_ns"][-1]
        return self.real_ns(self.steps["at_ns"][-1]) if len(self.steps["at_ns"]) else self.opened_real_ns

    def real_ns(self, at_ns: int) -> int:
        """Returns a time of CLOCK_MONOTONIC on CLOCK_REALTIME, by the newest row that is not later, or the first."""
        at, real = self.rows["at_ns"], self.rows["real_ns"]
        if not len(at):  # the recorder was killed in its first second, or the file was cut
            return at_ns + self.clock_ns
        row = max(0, bisect.bisect_right(at, at_ns) - 1)
        return at_ns + (real[row] - at[row])


def sum_histograms(histograms: Iterable[Sequence[int]]) -> list[int]:
    total = [0] * _core.LOOK_BUCKETS
    for one in histograms:
        total = [before + more for before, more in zip(total, one, strict=True)]
    return total
