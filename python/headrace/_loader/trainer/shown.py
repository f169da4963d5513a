# SPDX-License-Identifier: Apache-2.0
"""Makes what observers see of a loader, and its numbers for the program itself: both loaders have a Show, and give the
numbers of `headrace.torch.stats` and the line at the end of an epoch."""

from __future__ import annotations

import logging
from typing import Any

from headrace import _core
from headrace._base.units import in_duration
from headrace._base.warn import log
from headrace._loader.trainer import recording
from headrace._ranks import callers, where
from headrace._ranks.agreement import Agreement

_LOG = log.getChild("epochs")
_WORTH_S = 1.0  # the end of a shorter epoch is not logged
_MEGABYTE = 1e6
_MILLI = 1e3


def new_show(made_by: str | None, record: Any = None) -> _core.Show:
    """Returns the Show of a loader. made_by: the line that made it; None: the line that iterates over it. record: the
    option."""
    try:
        place = where.find()
        rank, world_size = place.rank, place.world_size
    except (TypeError, ValueError):  # what the launcher says is wrong
        rank, world_size = -1, 1
    name = made_by or callers.line_of_caller()
    return _core.Show(name.encode(errors="backslashreplace"), rank, world_size, recording.number_of(record))


def end_epoch(show: _core.Show) -> None:
    """Notes the end of an epoch, once, and logs a line about it on rank 0."""
    if not show.end() or not _LOG.isEnabledFor(logging.INFO) or where.rank_or_zero() != 0:
        return
    numbers = flat(show)
    if numbers["seconds"] >= _WORTH_S:
        _LOG.info("%s", describe(show.name.decode(errors="replace"), numbers))


def flat(show: _core.Show) -> dict[str, float]:
    """Returns the numbers of the newest epoch of a loader: see headrace.torch.stats."""
    epoch, workers = show.numbers()
    seconds = epoch["seconds"]
    later = max(0, epoch["batches"] - 1) / max(1, epoch["batches"])  # the time begins with the first batch
    busy_s = workers["fetch_s"] + workers["collate_s"]
    alive_s = busy_s + workers["wait_s"]
    return {
        "epoch": epoch["epoch"],
        "step": epoch["step"],
        "batches": epoch["batches"],
        "samples": epoch["samples"],
        "errors": epoch["errors"],
        "seconds": seconds,
        "wait": _ratio(epoch["inside_s"], seconds),
        "wait_s": epoch["inside_s"],
        "start_s": epoch["start_s"],
        "workers_s": epoch["workers_s"],
        "pin_s": epoch["pin_s"],
        "draw_s": epoch["draw_s"],
        "rebuild_s": epoch["rebuild_s"],
        "batches_per_s": _ratio(later * epoch["batches"], seconds),
        "samples_per_s": _ratio(later * epoch["samples"], seconds),
        "mb_per_s": _ratio(later * epoch["bytes"], seconds) / _MEGABYTE,
        "restarts": epoch["restarts"],
        "bad_samples": epoch["bad_samples"],
        "workers": workers["workers"],
        "queue": workers["queue"],
        "busy": _ratio(busy_s, alive_s),
        "sample_p50_ms": _core.quantile_ns(workers["buckets"], 0.5) / 1e6,
        "sample_p99_ms": _core.quantile_ns(workers["buckets"], 0.99) / 1e6,
        "sample_worst_ms": workers["worst_s"] * _MILLI,
    }


def slow_sample(show: _core.Show) -> tuple[int | None, float, float]:
    """Returns the index of the slowest sample since the loader was made, if it is known, its seconds, and the median of
    all samples in seconds."""
    workers = show.numbers()[1]
    return workers["worst_index"], workers["worst_s"], _core.quantile_ns(workers["buckets"], 0.5) / 1e9


def slowest(show: _core.Show, agreement: Agreement | None) -> tuple[int, float]:
    """Returns the rank of this machine whose loop waits the largest share of its time in this epoch, and the share.
    (-1, 0.0): the loader is not compared with other ranks."""
    if agreement is None:
        return -1, 0.0
    agreement.show_wait(*show.waited())
    waits = [(_ratio(inside_ns, elapsed_ns), rank) for rank, inside_ns, elapsed_ns in agreement.waits()]
    share, rank = max(waits, default=(0.0, -1))
    return rank, share


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def describe(name: str, numbers: dict[str, float]) -> str:
    """Describes an epoch in one line."""
    parts = {"workers": "workers_s", "pinning": "pin_s", "drawing": "draw_s", "rebuilding": "rebuild_s"}
    seconds = numbers["seconds"]
    named = [f"{part} {100 * numbers[key] / seconds:.0f} %" for part, key in parts.items() if numbers[key] > 0]
    return (
        f"{name}: epoch {numbers['epoch']:.0f}: {numbers['batches']:,.0f} batches in {in_duration(seconds)}, "
        f"{numbers['samples_per_s']:,.0f} samples/s; the loop waited {100 * numbers['wait']:.0f} % of the time"
        f"{' (' + ', '.join(named) + ')' if named else ''}, and {in_duration(numbers['start_s'])} for the first batch"
    )
