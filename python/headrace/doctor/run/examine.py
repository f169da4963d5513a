# SPDX-License-Identifier: Apache-2.0
"""Runs a loader several times, and says how it spends its time, what grows, and how many workers are enough."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from headrace import _core
from headrace._base import growth
from headrace._base.cores import usable_cores
from headrace._base.units import count_workers, in_duration, in_units
from headrace._ranks import worker_count
from headrace.doctor.machine import fork, limits
from headrace.doctor.observations import Observation
from headrace.doctor.run import caching, device, generators, images, measure, order, padding, rows, threads
from headrace.doctor.run.measure import Run, method_of

_TRY_S = 3.0  # for each number of workers
_TRY_BATCHES = 200
_LEAST_S = 0.5  # of a run that is compared with others; a fast loader gives more than _TRY_BATCHES in that time
_GOOD_ENOUGH = 0.93  # of the best rate: fewer workers are then as good
_TOO_SLOW = 0.8  # of the best rate: too few workers, or too many
_SLOW_SAMPLE, _SLOW_SAMPLE_S = 20, 0.1  # times the median, and seconds, from which a sample is named
_FAR_TOO_SLOW = 1 / 3  # of the best rate, also if the runs with more workers were short
_STILL_HELPS = 1.15  # of the rate with half as many workers
_MAX_WORKERS = 32
_LONG_IMPORT_S = 0.1  # in each worker of each epoch
_LONG_START_S = 5.0  # to the first batch; with more spawned workers than cores, twice as many take twice as long


def _time(one: Run) -> list[Observation]:
    """Says where the workers spent their time."""
    workers = one.report.get("per_worker", [])
    parts = {name: sum(worker[f"{name}_s"] for worker in workers) for name in ("fetching", "collating", "waiting")}
    total = sum(parts.values())
    if not total or not one.rate:
        return [
            Observation(
                "time", "note", "not measured", f"{one.batches} batches", "The loader gave too few batches to measure."
            )
        ]
    shares = {name: seconds / total for name, seconds in parts.items()}
    busiest = max(("fetching", "collating"), key=lambda name: shares[name])
    text = f"The workers spent {shares['fetching']:.0%} of their time in the dataset, "
    text += f"{shares['collating']:.0%} collating and {shares['waiting']:.0%} waiting. "
    if shares["waiting"] > 0.5:
        text += "They wait for the trainer, so more workers do not make it faster."
    else:
        where = "the dataset's __getitem__" if busiest == "fetching" else "the collate function"
        text += f"Make {where} faster first."
    return [
        Observation(
            "time",
            "ok",
            f"{one.rate:.1f} batches/s with {count_workers(one.workers)}, {one.first_s:.1f} s to the first",
            f"{one.batches} batches",
            text,
        )
    ]


def _slow_sample_of(runs: list[Run]) -> list[Observation]:
    """Names the slowest sample, if it is far slower than the others."""
    index, seconds, median_s = max((one.slow_sample for one in runs), key=lambda one: one[1])
    if index is None or seconds < max(_SLOW_SAMPLE_S, _SLOW_SAMPLE * median_s):
        return []
    text = f"The median is {1e3 * median_s:.2g} ms. Batches that come after it in the order wait for it. The first "
    text += "samples of a worker may be slow because they open files or import modules; headrace replay makes this one "
    text += "alone."
    value = f"{index:,} took {in_duration(seconds)}"
    return [Observation("slow sample", "note", value, f"of {sum(one.batches for one in runs)} batches", text)]


def _imports_of(one: Run) -> list[Observation]:
    """Says which modules each worker imports, because the fork server cannot keep them."""
    server = one.report.get("fork_server") or {}
    if server.get("error"):
        text = f"Each worker imports the script itself, because the fork server could not: {server['error']}"
        return [Observation("imports", "warning", "in each worker", "fork server", text)]
    if not server.get("hazards"):
        return []
    modules, is_part = server["unkept"], server["kept"] == "part"
    seconds = sum(modules.values()) if is_part and modules else server["seconds"]
    what = "it and the modules that need it" if is_part and modules else "the script"
    text = f"{server['hazards'][0]}. So each worker of each epoch imports {what}. Do that in a function that is called "
    text += (
        "later, or import the module in the function that needs it, or use persistent_workers=True, which keeps the "
    )
    text += "workers."
    value = f"{'' if is_part and modules else 'up to '}{seconds:.1f} s in each worker"
    severity = "warning" if seconds >= _LONG_IMPORT_S else "note"
    return [Observation("imports", severity, value, "fork server", text)]


def _growth_of(one: Run) -> list[Observation]:
    """Says which attributes of the dataset grew."""
    grown = [
        growth.Growth(**{name: entry[name] for name in growth.Growth.__dataclass_fields__})
        for entry in one.report.get("growth", [])
    ]
    private = one.report.get("private_grown_bytes", 0)
    if not one.report:
        return []
    spare = float(_core.machine()["spare_bytes"])
    found = [_observe_growth(each, spare, one.batches) for each in grown if each.grown_bytes >= growth.LEAST_BYTES]
    named = sum(each.grown_bytes for each in grown)
    if not found:
        value = f"by {in_units(private)} in {count_workers(one.workers)}" if private else "not seen"
        text = "No attribute of the dataset was copied into the workers' own memory."
        return [Observation("growth", "ok", value, f"{one.batches} batches", text)]
    if private > named + 64 * growth.MIB:
        text = (
            "The growth is not in the dataset's attributes. It is in the memory allocator, in a library, or in other "
        )
        text += "objects of the worker."
        found.append(Observation("growth", "note", f"elsewhere {in_units(private - named)}", "in all workers", text))
    return found


def _observe_growth(one: growth.Growth, spare: float, batches: int) -> Observation:
    severity = "warning" if growth.matters([one], spare) else "note"
    if spare < one.rest_bytes < float("inf"):
        severity = "error"
    value = (
        f"{one.path} by {in_units(one.grown_bytes / max(1, one.workers))} in each of "
        f"{count_workers(one.workers)}, "
        f"{in_units(1000 * one.per_sample)} per 1,000 samples"
    )
    line = f"{one.path} = headrace.freeze({one.path}), or DataLoader(..., freeze=True)"
    if one.is_added_to:
        line = f"bound {one.path}, or fill it before the workers start"
    text = f"{growth.in_words(one)}: {growth.when_full(one, spare, batches)}."
    return Observation("growth", severity, value, f"{one.samples:,} samples", text, line)


def _candidates(now: int, cores: int, runs: list[Run]) -> Iterator[int]:
    """Yields the numbers of workers to try: doubled, until two in a row did not help, because other programs may have
    disturbed one of them; more than the cores too, because workers may wait for a disk; and the loader's own number."""
    for count in sorted({*(1 << power for power in range(6)), min(cores, _MAX_WORKERS), now}):
        rates = [one.rate for one in runs if one.workers]
        still_helps = len(rates) < 3 or max(rates[-2:]) >= _GOOD_ENOUGH * max(rates)
        hardly_helps = len(rates) > 2 and max(rates[-2:]) < _STILL_HELPS * max(rates[:-2])
        is_beyond = count > cores and (hardly_helps or (len(runs) > 0 and runs[-1].first_s > _LONG_START_S))
        if count == now or (still_helps and not is_beyond):
            yield count


def _number_of(loader: Any) -> int:
    """Returns the number of workers of a loader; with num_workers="auto", the one that it begins with."""
    count: int = worker_count.by_rule() if worker_count.is_auto(loader.num_workers) else loader.num_workers
    return count


def _better_number(now: Run, enough: Run, best: float, is_judged: bool) -> str:
    """Returns what to set num_workers to, or "" if these runs do not show that another number is better."""
    if is_judged:
        return str(enough.workers) if now.rate < _TOO_SLOW * best else ""
    return '"auto"' if now.seconds >= _LEAST_S and now.rate < _FAR_TOO_SLOW * best else ""


def _suggestion(loader: Any, batches: int) -> tuple[list[Run], list[Observation]]:
    """Tries numbers of workers until more workers do not help."""
    cores = usable_cores(_core.machine())
    runs: list[Run] = []
    now_count, is_auto = _number_of(loader), worker_count.is_auto(loader.num_workers)
    for count in _candidates(now_count, cores, runs):
        runs.append(measure.run(loader, count, min(batches, _TRY_BATCHES), _LEAST_S, _TRY_S))
    best = max(one.rate for one in runs)
    if best <= 0:
        return runs, []
    enough = next(one for one in runs if one.rate >= _GOOD_ENOUGH * best)
    table = ", ".join(f"{one.workers}: {one.rate:.1f}" for one in runs)
    now = next(one for one in runs if one.workers == now_count)
    is_judged = all(one.rate and one.seconds >= _LEAST_S for one in runs)
    better = _better_number(now, enough, best, is_judged)
    text = f"Batches/s by number of workers, tried one after the other: {table}."
    if not is_judged:
        text += f" These runs are too short to find the best number: less than {_LEAST_S} s after each worker's first"
        text += " batch, in one epoch."
        text += " But more workers are much faster." if better else ""
    elif now.workers > enough.workers and not better:
        text += f" {enough.workers} would be as fast."
    if is_auto:
        text += f' num_workers="auto" begins with {now_count}, and tries others while the loop runs.'
    return runs, [
        Observation(
            "num_workers",
            "warning" if better and not is_auto else "ok",
            "auto" if is_auto else f"{now_count}",
            f"{cores} cores",
            text,
            f"num_workers={better}" if better and not is_auto else "",
        )
    ]


def _hazards(loader: Any) -> list[Observation]:
    return fork.hazards() + fork.open_files(loader) if method_of(loader) == "fork" else []


def examine(
    loader: Any, batches: int, found: list[Observation], engine: contextlib.AbstractContextManager[None]
) -> list[Run]:
    """Adds all observations of a loader to `found`, and returns its runs: first the one in which growth was measured,
    then those with several numbers of workers. `engine`: while it is entered, the loader runs on headrace's engine.
    Passes on what the loader raises; `found` then has the observations up to there."""
    found += _hazards(loader)
    found += order.check_order(loader)
    workers = max(1, _number_of(loader))
    with engine, warnings.catch_warnings():
        for message in ("headrace: ", "This DataLoader will create"):
            warnings.filterwarnings("ignore", message=message)
        growth.look_s = 0.0
        try:
            close = measure.run(loader, workers, batches)
        finally:
            growth.look_s = None
        found += _imports_of(close)
        found += _growth_of(close) + device.check_device(close.report)
        runs, suggestion = _suggestion(loader, batches)
    asked = next((one for one in runs if one.workers == workers), close)
    found += _time(asked) + _slow_sample_of([close, *runs]) + suggestion
    found.append(limits.cores(_core.machine(), workers, None))
    found += padding.check_padding(loader)
    found += images.check_images(loader)
    found += rows.check_rows(loader) or caching.check_caching(loader)  # rows that are gathered need no cache
    found += threads.check_threads(loader)
    found += generators.check_generators(loader)
    return [close, *runs]
