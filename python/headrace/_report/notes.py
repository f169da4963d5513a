# SPDX-License-Identifier: Apache-2.0
"""Notes that a user should read next to the verdict: growing memory, workers that died, samples that were left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace._report.numbers import seconds_of
from headrace._report.ranks import Job
from headrace._report.recorded import NS, Column, Recorded
from headrace._report.words import counted, duration, size

_HOUR_S, _DAY_S = 3600.0, 86400.0
_SOON_S = 14 * _DAY_S
_LEAST_S = 60.0  # growth of a shorter time is that of the start
_PARTS = 2  # of the time that is looked at: an epoch that is shorter than one of them is not taken for growth
_LEAST_SHARE = 0.02  # of the private memory, that has to be added in the time that is looked at


@dataclass(frozen=True)
class Growth:
    """How the private memory of all workers of a job grows."""

    per_s: float
    now_bytes: int
    available_bytes: int

    @property
    def seconds_left(self) -> float:
        return self.available_bytes / self.per_s


def growth_of(one: Recorded) -> Growth | None:
    """Looks at the second half of the recording: the first half may only fill caches. None: it hardly grows."""
    rows = one.rows
    half = len(rows) // 2
    if len(rows) - half < _PARTS or seconds_of(rows) / 2 < _LEAST_S:
        return None
    length_s = (rows["at_ns"][-1] - rows["at_ns"][half]) / NS
    per_s = sum(_grown(worker["private_bytes"][half:]) for worker in rows.of_workers) / length_s
    now_bytes = sum(_last(worker["private_bytes"]) for worker in rows.of_workers)
    if per_s * length_s < _LEAST_SHARE * now_bytes or per_s <= 0:
        return None
    return Growth(per_s, now_bytes, rows["memory_available"][-1])


def _grown(private: Column) -> float:
    """Returns how many bytes were added. The smallest value of each part counts, so that a worker that ends with each
    epoch and begins small again does not grow."""
    wide = len(private) // _PARTS
    least = [min((size_bytes for size_bytes in private[part * wide : (part + 1) * wide] if size_bytes), default=0)
             for part in range(_PARTS)]  # fmt: skip
    if 0 in least or least != sorted(least):
        return 0.0
    return (least[-1] - least[0]) * _PARTS / (_PARTS - 1)


def _last(private: Column) -> int:
    return next((size_bytes for size_bytes in reversed(private) if size_bytes), 0)


def _growth_note(job: Job) -> Iterator[str]:
    """Those of all ranks of one machine fill the same memory."""
    hosts: dict[str, list[Growth]] = {}
    for one in job.loaders:
        if growth := growth_of(one):
            hosts.setdefault(one.host, []).append(growth)
    for host, found in hosts.items():
        per_s = sum(one.per_s for one in found)
        left_s = min(one.available_bytes for one in found) / per_s
        if left_s > _SOON_S:
            continue
        place = f" on {host}" if len({one.host for one in job.loaders}) > 1 else ""
        yield (
            f"The private memory of the workers{place} grows by {size(per_s * _HOUR_S)} per hour and is "
            f"{size(sum(one.now_bytes for one in found))} now: memory is full in about {duration(left_s)}. "
            "`headrace help memory-growth` says what to do."
        )


def notes_on(job: Job) -> list[str]:
    """Returns the notes on a job, as sentences."""
    sums = {
        name: sum(sum(one.rows[name]) for one in job.loaders) for name in ("restarts", "bad_samples", "errors")
    }  # fmt: skip
    notes = list(_growth_note(job))
    if sums["restarts"]:
        notes.append(f"Workers died and were replaced {counted(sums['restarts'], 'time')}.")
    if sums["bad_samples"]:
        notes.append(f"{counted(sums['bad_samples'], 'bad sample')} had to be left out or replaced.")
    if sums["errors"]:
        notes.append(f"{counted(sums['errors'], 'batch', 'batches')} came as an exception.")
    missing = job.loaders[0].world_size - len(job.loaders)
    if missing > 0 and job.loaders[0].rank >= 0:
        notes.append(
            f"The recording has {len(job.loaders)} of {job.loaders[0].world_size} ranks: a rank that it does not have "
            "may be the slowest one."
        )
    torn = sum(one.torn for one in job.loaders)
    if torn:
        notes.append(f"{counted(torn, 'damaged part')} of the recording had to be left out.")
    notes += sorted({f"The recording ends early: {one.ended}." for one in job.loaders if one.ended == "disk full"})
    return notes
