# SPDX-License-Identifier: Apache-2.0
"""Says whether threads would help a loader's samples (`sample_threads`), and whether samples that threads make are the
same."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace._base import exception_text, lookup
from headrace._base.units import in_duration
from headrace._options import Settings
from headrace._samples import prepared, shareable
from headrace._samples.compare import difference
from headrace._samples.random_numbers import generators_kept
from headrace._samples.sample_generators import SampleInWork
from headrace._samples.threaded import InProcess
from headrace._samples.threads import Batch
from headrace.doctor.observations import Observation
from headrace.doctor.run.fixes import with_option

_SAMPLES = 64
_MOST_S = 3.0  # for these, one after the other
_TIMES = 3
_TRIED_THREADS = 16
_LEAST_S = 1e-3  # of a sample: below that, what a thread costs counts
_WAITS = 0.5  # of the time of a sample, from which it is one that waits
_NAMED = 5


class _Alone(NamedTuple):
    """Samples that were made one after the other."""

    samples: list[Any]
    seconds: float  # for each
    waiting: float  # the share of the time in which this thread neither had a CPU nor waited for one


def check_threads(loader: Any) -> list[Observation]:
    """Returns what threads would do to a map-style dataset, or does for a loader that has them."""
    dataset, has_threads = prepared.shown(loader.dataset), _has_threads(loader)
    if not (lookup.has_special(dataset, "__getitem__") and lookup.has_special(dataset, "__len__")):
        return []
    count = loader.sample_threads if has_threads else _TRIED_THREADS
    try:
        with generators_kept():
            alone = _make_alone(dataset)
            if not has_threads and not _is_worth_it(alone):
                return []
            if why := _why_not(dataset, count):
                return [_observe_refusal(alone, why)]
            return [_observe(loader, dataset, alone, count, has_threads)]
    except Exception:  # of a sample: the loader's own run raises it
        return []


def _has_threads(loader: Any) -> bool:
    given = lookup.attribute(loader, "sample_threads", 1)
    return type(given) is int and given > 1


def _is_worth_it(alone: _Alone) -> bool:
    return alone.seconds >= _LEAST_S and alone.waiting >= _WAITS


def _maker(dataset: Any) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        with SampleInWork(0, 0, index):
            return dataset[index]

    return make


def _make_alone(dataset: Any) -> _Alone:
    make, samples = _maker(dataset), []
    make(0)  # which may open files and import modules
    began, busy = time.monotonic(), _busy_s()
    for index in range(min(_SAMPLES, len(dataset))):
        samples.append(make(index))
        if time.monotonic() - began > _MOST_S:
            break
    seconds, busy = time.monotonic() - began, _busy_s() - busy
    return _Alone(samples, seconds / len(samples), max(0.0, 1 - busy / seconds) if seconds > 0 else 0.0)


def _busy_s() -> float:
    """Returns for how long this thread has had a CPU, or waited for one, which it does not do for data."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            had_ns, waited_ns, _ = file.read().split()
            return (int(had_ns) + int(waited_ns)) / 1e9
    except OSError:
        return time.thread_time()


def _why_not(dataset: Any, count: int) -> str:
    """Returns why threads cannot share the dataset, or ""."""
    try:
        shareable.check(dataset, Settings(sample_threads=count))
    except ValueError as error:
        return str(error)
    return ""


def _observe_refusal(alone: _Alone, why: str) -> Observation:
    text = f"It waits for {alone.waiting:.0%} of that time, so threads would help, but they cannot share this dataset. "
    why = why.removeprefix("headrace: ")
    return Observation(
        "threads", "note", f"{in_duration(alone.seconds)} a sample", "", text + why[:1].upper() + why[1:]
    )


def _observe(loader: Any, dataset: Any, alone: _Alone, count: int, has_threads: bool) -> Observation:
    value, limit = f"{in_duration(alone.seconds)} a sample", f"{len(alone.samples)} samples"
    if differing := _differing(dataset, alone, count):
        named = ", ".join(f"{index} ({where})" for index, where in list(differing.items())[:_NAMED])
        text = f"{len(differing)} of {len(alone.samples)} samples differ when {count} threads make them: {named}. The "
        text += "threads share something that the samples change: an open file, a buffer, a cache, random numbers. See "
        text += "`headrace help sample-threads`."
        return Observation(
            "threads", "error" if has_threads else "note", value, limit, text, "leave out sample_threads"
        )
    text = f"A sample waits for {alone.waiting:.0%} of its time. Made by {count} threads, {_TIMES} times, the samples "
    text += "were the same. "
    if has_threads and not _is_worth_it(alone):
        text += "Threads do not help samples that compute: more workers do."
        return Observation("threads", "note", value, limit, text, "leave out sample_threads")
    text += "" if has_threads else "Each worker can make many of them at a time."
    fix = "" if has_threads else with_option(loader, f"sample_threads={count}")
    return Observation("threads", "ok" if has_threads else "note", value, limit, text, fix)


def _differing(dataset: Any, alone: _Alone, count: int) -> dict[int, str]:
    """Returns the indices of samples that threads have made in another way, and what differs."""
    make, numbers = _maker(dataset), list(range(len(alone.samples)))
    threads, differing = InProcess(count), dict[int, str]()
    for _ in range(_TIMES):
        batch = threads.make(None, lambda _: Batch(make, numbers, True, []))
        for index in numbers:
            try:
                where = difference(alone.samples[index], batch.take(index))
            except Exception as error:
                where = exception_text.in_words(error)
            if where is not None:
                differing.setdefault(index, where)
    threads.end(0)
    return differing
