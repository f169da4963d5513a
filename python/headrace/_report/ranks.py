# SPDX-License-Identifier: Apache-2.0
"""Puts the loaders of a recording together to jobs, and compares the ranks of a job step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace import _core
from headrace._report.numbers import SKIPPED_STEPS, Numbers, numbers_of
from headrace._report.recorded import Recorded

_BY = 0.1  # of a step: a rank that is slower than the next one by less is not counted


@dataclass(frozen=True)
class Lag:
    """The rank that makes the others wait longest."""

    rank: int
    share: float  # of the steps, in which it is the slowest one
    of_wait: float  # the share of the job's waiting that no other rank has
    by_s: float  # on average in these steps, slower than the next one
    numbers: Numbers  # of this rank


@dataclass(frozen=True)
class Job:
    """The same loader in all ranks of a training."""

    loaders: Sequence[Recorded]  # by rank
    of_ranks: Sequence[Numbers]
    steps: int  # that all ranks have in the recording
    wait: float | None  # the share of time that the slowest rank of each step waits; None: there are no such steps
    slowest: Sequence[float]  # for each rank, the share of steps in which it is the slowest one by 10 % of a step
    lag: Lag | None

    @property
    def worst(self) -> int:
        """Returns the position of the rank that waits longest."""
        return max(range(len(self.loaders)), key=lambda at: self.of_ranks[at].waiting_s)

    @property
    def numbers(self) -> Numbers:
        """Returns the numbers of the rank that waits longest, with the wait of the job."""
        numbers = self.of_ranks[self.worst]
        return replace(numbers, inside_s=max(numbers.inside_s, (self.wait or 0.0) * numbers.seconds))


def jobs_of(recorded: Sequence[Recorded]) -> list[Job]:
    """Groups the loaders by job. The one with the longest waits comes first."""
    groups: list[list[Recorded]] = []
    for one in sorted(recorded, key=lambda one: one.opened_real_ns):
        matching = [group for group in groups if _is_of_job(group, one)]
        if matching:
            min(matching, key=lambda group: group[0].command != one.command).append(one)
        else:
            groups.append([one])
    jobs = [_compare(sorted(group, key=lambda one: one.rank)) for group in groups]
    return sorted(jobs, key=lambda job: -job.numbers.waiting_s)


def _is_of_job(group: Sequence[Recorded], one: Recorded) -> bool:
    """Returns True if a loader, which was made after those of a group, may be that of a further rank. A second run of
    the same script has the same ranks again, and begins when the first one has ended."""
    first = group[0]
    same = (one.name, one.loader, one.world_size) == (first.name, first.loader, first.world_size)
    is_meanwhile = one.opened_real_ns <= max(other.last_real_ns for other in group)
    return same and is_meanwhile and one.rank >= 0 and all(other.rank not in (one.rank, -1) for other in group)


def _inside_by_step(one: Recorded) -> dict[tuple[int, int], int]:
    names = ("epoch", "step", "inside_us")
    rows = zip(*(one.steps[name] for name in names), strict=True)
    return {(epoch, step): us for epoch, step, us in rows if us != _core.NO_STEP and step > SKIPPED_STEPS}


def _compare(loaders: Sequence[Recorded]) -> Job:
    of_ranks = [numbers_of(one) for one in loaders]
    tables = [_inside_by_step(one) for one in loaders]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    step_us = 1e6 * max(numbers.step_s for numbers in of_ranks)
    if len(loaders) < 2 or not common or not step_us:
        return Job(loaders, of_ranks, len(common), None, [0.0] * len(loaders), None)
    slowest, by_us, total_us = Counter[int](), Counter[int](), 0
    for step in common:
        times = [table[step] for table in tables]
        second_us, first_us = sorted(times)[-2:]
        total_us += first_us
        if first_us - second_us >= _BY * step_us:
            slowest[times.index(first_us)] += 1
            by_us[times.index(first_us)] += first_us - second_us
    shares = [slowest[at] / len(common) for at in range(len(loaders))]
    return Job(
        loaders, of_ranks, len(common), min(1.0, total_us / len(common) / step_us), shares,
        _lag(loaders, of_ranks, slowest, by_us, total_us, len(common)),
    )  # fmt: skip


def _lag(
    loaders: Sequence[Recorded],
    of_ranks: Sequence[Numbers],
    slowest: Counter[int],
    by_us: Counter[int],
    total_us: int,
    steps: int,
) -> Lag | None:
    if not slowest:
        return None
    at = max(slowest, key=lambda at: by_us[at])
    by_s = by_us[at] / slowest[at] / 1e6
    return Lag(loaders[at].rank, slowest[at] / steps, by_us[at] / total_us, by_s, of_ranks[at])
