# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --run: runs a loader for some batches, and says how it spends its time and what grows."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from headrace import _core, _options
from headrace._commands import target
from headrace._errors.units import in_units
from headrace._inspect import growth, lookup
from headrace.doctor import _batches, _findings, _machine
from headrace.doctor._findings import Finding

_TRY_S = 3.0  # for each number of workers
_TRY_BATCHES = 200
_LEAST_S = 0.5  # of a run by which numbers of workers are judged: a quick loader gives more batches than that
_GOOD_ENOUGH = 0.93  # of the best rate: fewer workers are then as good
_TOO_SLOW = 0.8  # of the best rate: too few workers, or too many
_STILL_HELPS = 1.15  # of the rate with half as many workers
_MOST_WORKERS = 32
_LONG_START_S = 5.0  # to the first batch: twice as many spawned workers beyond the cores would take twice as long


class NoLoader(Exception):
    """What was named gives no loader."""


# ---- the loader ----


def _is_loader(value: Any) -> bool:
    has_parts = all(lookup.has_attribute(value, name) for name in ("dataset", "num_workers"))
    return _options.is_torchs_loader(value) or (has_parts and lookup.has_special(value, "__iter__"))


def load(source: str) -> Any:
    """The loader that `source` is or makes. NoLoader."""
    value = target.load(source)
    if not _is_loader(value) and callable(value):
        with target.blaming(f"{source} was called without arguments, to make the loader"):
            value = value()
    if not _is_loader(value):
        raise NoLoader(
            f"{source} gives no loader: {type(value).__name__} has not all of dataset, num_workers and __iter__"
        )
    return value


@contextlib.contextmanager
def _under_headrace() -> Iterator[None]:
    """torch's own loaders get headrace's engine, where torch is used at all."""
    if "torch.utils.data" not in sys.modules:
        yield
        return
    from headrace.torch import installed

    with installed(on_stall="raise"):
        yield


@contextlib.contextmanager
def _with_workers(loader: Any, count: int) -> Iterator[None]:
    """The loader with another number of workers, and none that persist from before."""
    names = ["num_workers", "prefetch_factor", *(["on_stall"] if lookup.has_attribute(loader, "on_stall") else [])]
    kept = {name: getattr(loader, name) for name in names}
    loader._iterator = None
    loader.num_workers = count
    if loader.prefetch_factor is None:
        loader.prefetch_factor = 2
    if "on_stall" in kept:
        loader.on_stall = "raise"
    try:
        yield
    finally:
        loader._iterator = None
        for name, value in kept.items():
            setattr(loader, name, value)


def _method_of(loader: Any) -> str:
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return str(context.get_start_method())


# ---- running it ----


@dataclass
class Run:
    """What one pass over a loader took; times of the workers are sums over all of them."""

    workers: int
    batches: int
    counted: int  # of them, in whole rounds of all workers, whose batches may come at once; the first round aside
    seconds: float  # that these took
    first_s: float
    report: dict[str, Any]

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.counted / self.seconds if self.seconds > 0 else 0.0


def _engine_report(iterator: Any) -> dict[str, Any]:
    report = lookup.attribute(iterator, "report")
    return dict(report()) if callable(report) else {}


def run(loader: Any, workers: int, batches: int, least_s: float = 0.0, most_s: float = float("inf")) -> Run:
    """One pass: of so many batches, and of so many seconds, `most_s` at most, after the first round of all workers.
    Where seconds count, it ends with a whole round."""
    round_count = max(1, workers)
    with _with_workers(loader, workers):
        start = time.monotonic()
        iterator = iter(loader)
        first = begun = counted_until = start
        count = 0
        for _ in iterator:
            now = time.monotonic()
            count += 1
            first = now if count == 1 else first
            begun = now if count <= round_count else begun
            counted_until = now if count % round_count == 0 else counted_until
            is_enough = now - begun > most_s or (count >= batches and now - begun >= least_s)
            if is_enough and (not least_s or counted_until == now):
                break
        report = _engine_report(iterator)
        close = lookup.attribute(iterator, "close") or lookup.attribute(iterator, "_shutdown_workers")
        if callable(close):
            close()
    counted = max(0, count // round_count - 1) * round_count
    return Run(workers, count, counted, counted_until - begun, first - start, report)


# ---- what is said of it ----


def _time(one: Run) -> list[Finding]:
    """Where the time went."""
    workers = one.report.get("per_worker", [])
    parts = {name: sum(worker[f"{name}_s"] for worker in workers) for name in ("fetching", "collating", "waiting")}
    total = sum(parts.values())
    if not total or not one.rate:
        return [Finding("time", "note", "not measured", f"{one.batches} batches", "That is too few to tell.")]
    shares = {name: seconds / total for name, seconds in parts.items()}
    busiest = max(("fetching", "collating"), key=lambda name: shares[name])
    text = f"The workers were in the data set for {shares['fetching']:.0%} of their time, collating for "
    text += f"{shares['collating']:.0%}, waiting for {shares['waiting']:.0%}. "
    if shares["waiting"] > 0.5:
        text += "They wait for the trainer's side: more of them make nothing faster."
    else:
        where = "the data set's __getitem__" if busiest == "fetching" else "the collate function"
        text += f"What to make faster first is {where}."
    return [
        Finding(
            "time",
            "ok",
            f"{one.rate:.1f} batches/s with {growth.count_workers(one.workers)}, {one.first_s:.1f} s to the first",
            f"{one.batches} batches",
            text,
        )
    ]


def _growth_of(one: Run) -> list[Finding]:
    """What grew, attribute by attribute."""
    grown = [
        growth.Growth(**{name: entry[name] for name in growth.Growth.__dataclass_fields__})
        for entry in one.report.get("growth", [])
    ]
    private = one.report.get("private_grown_bytes", 0)
    if not one.report:
        return []
    spare = float(_core.machine()["spare_bytes"])
    found = [_of_growth(each, spare, one.batches) for each in grown if each.grown_bytes >= growth.LEAST_BYTES]
    named = sum(each.grown_bytes for each in grown)
    if not found:
        value = f"by {in_units(private)} in {growth.count_workers(one.workers)}" if private else "not seen"
        text = "No attribute of the data set has become the workers' own."
        return [Finding("growth", "ok", value, f"{one.batches} batches", text)]
    if private > named + 64 * growth.MIB:
        text = "Not in the data set's attributes: the allocator's, a library's, the worker's own."
        found.append(Finding("growth", "note", f"elsewhere {in_units(private - named)}", "in all workers", text))
    return found


def _of_growth(one: growth.Growth, spare: float, batches: int) -> Finding:
    severity = "warning" if growth.matters([one], spare) else "note"
    if spare < one.rest_bytes < float("inf"):
        severity = "error"
    value = (
        f"{one.path} by {in_units(one.grown_bytes / max(1, one.workers))} in each of "
        f"{growth.count_workers(one.workers)}, "
        f"{in_units(1000 * one.per_sample)} per 1,000 samples"
    )
    line = f"{one.path} = headrace.freeze({one.path}), or DataLoader(..., freeze=True)"
    if one.is_added_to:
        line = f"bound {one.path}, or fill it before the workers start"
    text = f"{growth.in_words(one)}: {growth.when_full(one, spare, batches)}."
    return Finding("growth", severity, value, f"{one.samples:,} samples", text, line)


def _candidates(now: int, cores: int, runs: list[Run]) -> Iterator[int]:
    """Doubling, until two in a row did not help: one may have met other work on the machine. Beyond the cores too, for
    workers may wait for a disk. And what the loader has."""
    for count in sorted({*(1 << power for power in range(6)), min(cores, _MOST_WORKERS), now}):
        rates = [one.rate for one in runs if one.workers]
        still_helps = len(rates) < 3 or max(rates[-2:]) >= _GOOD_ENOUGH * max(rates)
        hardly_helps = len(rates) > 2 and max(rates[-2:]) < _STILL_HELPS * max(rates[:-2])
        is_beyond = count > cores and (hardly_helps or (len(runs) > 0 and runs[-1].first_s > _LONG_START_S))
        if count == now or (still_helps and not is_beyond):
            yield count


def _suggestion(loader: Any, batches: int) -> tuple[list[Run], list[Finding]]:
    """Tries numbers of workers, until more bring nothing."""
    cores = _machine.usable_cores(_core.machine())
    runs: list[Run] = []
    for count in _candidates(loader.num_workers, cores, runs):
        runs.append(run(loader, count, min(batches, _TRY_BATCHES), _LEAST_S, _TRY_S))
    best = max(one.rate for one in runs)
    if best <= 0:
        return runs, []
    enough = next(one for one in runs if one.rate >= _GOOD_ENOUGH * best)
    table = ", ".join(f"{one.workers}: {one.rate:.1f}" for one in runs)
    now = next(one for one in runs if one.workers == loader.num_workers)
    is_judged = all(one.rate and one.seconds >= _LEAST_S for one in runs)
    is_slow = is_judged and now.rate < _TOO_SLOW * best
    text = f"Batches/s by number of workers, tried one after the other: {table}."
    if not is_judged:
        text += f" That is too short to judge by: less than {_LEAST_S} s after each worker's first batch."
    elif now.workers > enough.workers and not is_slow:
        text += f" {enough.workers} would do as well."
    return runs, [
        Finding(
            "num_workers",
            "warning" if is_slow else "ok",
            f"{loader.num_workers}",
            f"{cores} cores",
            text,
            f"num_workers={enough.workers}" if is_slow else "",
        )
    ]


def _hazards(loader: Any) -> list[Finding]:
    return _machine.hazards() if _method_of(loader) == "fork" else []


def examine(loader: Any, batches: int, findings: list[Finding]) -> list[Run]:
    """Adds all findings of a loader, and returns its runs: the one in which growth was looked at, and those with other
    numbers of workers. What running it raises is raised, after the findings until then."""
    findings += _hazards(loader)
    findings += _batches.order(loader)
    workers = max(1, loader.num_workers)
    with _under_headrace(), warnings.catch_warnings():
        for said_here in ("headrace: ", "This DataLoader will create"):
            warnings.filterwarnings("ignore", message=said_here)
        growth.look_s = 0.0
        try:
            close = run(loader, workers, batches)
        finally:
            growth.look_s = None
        findings += _growth_of(close)
        runs, suggestion = _suggestion(loader, batches)
    asked = next((one for one in runs if one.workers == workers), close)
    findings += _time(asked) + suggestion
    findings.append(_machine.cores(_core.machine(), workers, None))
    findings += _batches.padding(loader)
    return [close, *runs]


def _as_numbers(one: Run) -> dict[str, Any]:
    """For JSON. The rate of the first run suffers from the close looks."""
    numbers: dict[str, Any] = {"workers": one.workers, "batches": one.batches, "batches_per_s": round(one.rate, 3)}
    numbers["first_batch_s"] = round(one.first_s, 3)
    for name in ("waited_s", "growth", "private_grown_bytes", "per_worker"):
        if name in one.report:
            numbers[name] = one.report[name]
    return numbers


def _of_failure(error: BaseException) -> Finding:
    try:
        text = str(error).strip()
    except Exception:  # of its own
        text = ""
    first = text.splitlines()[0] if text else "it says nothing"
    fix = "headrace replay makes a sample in the foreground"
    if first.startswith("headrace: no batch for"):
        return Finding("run", "error", "stalled", "no batch came", text, fix)
    return Finding("run", "error", type(error).__name__, "raised by the loader", first, fix)


def _fail(source: str, error: BaseException) -> None:
    target.show(error)
    print(f"headrace doctor: {source}: its loader cannot be run", file=sys.stderr)


def main(source: str, batches: int, is_json: bool) -> int:
    """Runs the command; returns its exit code."""
    with target.alone(is_json) as stdout:
        return _main(source, batches, is_json, stdout)


def _main(source: str, batches: int, is_json: bool, stdout: TextIO) -> int:
    findings: list[Finding] = []
    runs: list[Run] = []
    try:
        runs = examine(load(source), batches, findings)
    except (NoLoader, target.Failed) as error:
        if error.__cause__ is not None:
            target.show(error.__cause__)
        print(f"headrace doctor: {error}", file=sys.stderr)
        return _findings.ERRORS
    except Exception as error:
        findings.append(_of_failure(error))
        _fail(source, error)
    if is_json:
        text = _findings.as_json(findings, runs=[_as_numbers(one) for one in runs])
    else:
        text = _findings.as_text(findings)
    return target.say(text, stdout, _findings.exit_code(findings))
