# SPDX-License-Identifier: Apache-2.0
"""Says why the loop waits, and what to change: the words for what _core.judge finds in the numbers of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace import _core
from headrace._report.numbers import SKIPPED_STEPS, Numbers
from headrace._report.ranks import Job, Lag
from headrace._report.words import brief, count, counted, duration, share

LEAST_STEPS = 100
LEAST_S = 10.0
_THROTTLED = 0.1  # of the time: then the quota is named


@dataclass(frozen=True)
class Verdict:
    """Why the loop waits. `kind` is for programs; `cause` is the verdict on the rank that makes the others wait."""

    kind: str
    title: str
    text: str
    advice: str = ""
    cause: Verdict | None = None


@dataclass(frozen=True)
class Case:
    """The numbers of a loader, and what was found in them.

    workers: how many would be enough; 0: no other number helps. room: how many the free cores are enough for. is_cold:
    only the first epoch waits for storage. is_storage: a training process without workers mostly waits for it.
    """

    numbers: Numbers
    workers: int
    room: int
    is_cold: bool
    is_storage: bool


# ---- the words for each kind of verdict: title, text, advice ----

_Words = tuple[str, str, str]


def _too_short(case: Case) -> _Words:
    numbers = case.numbers
    return (
        "Too short to say",
        f"The recording has {counted(numbers.steps, 'step')} in {duration(numbers.seconds)}, apart from the first "
        f"{SKIPPED_STEPS}.",
        f"A verdict needs {LEAST_STEPS} steps and {LEAST_S:.0f} s.",
    )


def _trainer(case: Case) -> _Words:
    numbers = case.numbers
    advice = "Faster loading would save nothing."
    if case.workers:
        advice += (
            f" The {numbers.workers} workers are busy {share(numbers.busy)} of their time: num_workers={case.workers} "
            "would be enough."
        )
    return "The trainer", f"The loop waits for data {share(numbers.waiting)} of its time.", advice


def _starting(case: Case) -> _Words:
    numbers = case.numbers
    each_s = numbers.start_s / max(numbers.starts, 1)
    return (
        "The start of epochs",
        f"{duration(numbers.start_s)} of the {duration(numbers.waiting_s)} that the loop waits go by until the first "
        f"batches of {counted(numbers.starts, 'epoch')}, {duration(each_s)} each.",
        "persistent_workers=True keeps the workers from one epoch to the next. If it is set, what the first batches "
        "need takes that long: the sampler, opening files.",
    )


def _no_workers(case: Case) -> _Words:
    numbers = case.numbers
    text = (
        f"The training process makes its batches itself (num_workers=0), in {share(numbers.waiting)} of its time. It "
        f"uses {numbers.trainer_cpu:.2g} cores, for the training too, and {numbers.free:.1f} of {numbers.cores:.3g} "
        "are free."
    )
    if case.is_storage:
        advice = (
            "It mostly waits for a disk or a network: several workers, or threads (sample_threads=16), wait at the "
        )
        advice += "same time. "
    elif case.workers:
        advice = "Workers make the batches while the loop trains. "
    else:
        advice = (
            "No core is free for workers (num_workers), only cheaper samples help: decode less "
            "(smaller files, `headrace.images`), keep what is made (`headrace.cache`), or give the job more cores."
        )
    return "No workers", text, advice + (f"Try num_workers={case.workers}." if case.workers else "")


def _slow_samples(case: Case) -> _Words:
    slow = case.numbers.slow
    assert slow is not None
    which = ", ".join(f"{count(index)} ({brief(ns)})" for index, ns in slow.indices)
    return (
        "Slow samples",
        f"{share(slow.share)} of the waiting is for {share(slow.batches)} of the batches: they have a sample that "
        f"takes over 10 times the median of {brief(slow.median_ns)}"
        + (f". The slowest ones: {which}." if which else "."),
        "`headrace replay` makes single samples, to see why they are slow. Several workers with a larger "
        "prefetch_factor hide single slow ones.",
    )


def _collate(case: Case) -> _Words:
    numbers = case.numbers
    return (
        "Collating",
        f"{share(numbers.collate)} of the workers' busy time is the collate function: {duration(numbers.collate_s)} "
        "a batch.",
        "Let it do less: move work for each sample into the dataset, return arrays or tensors that torch's "
        "default_collate stacks, and pad to the longest sample of a batch only.",
    )


def _storage(case: Case) -> _Words:
    numbers = case.numbers
    text = (
        f"The workers are busy {share(numbers.busy)} of their time, and use the CPU for {share(numbers.cpu)} of that: "
        "they wait for a disk or a network."
    )
    if case.is_cold:
        return (
            "Storage: a cold disk",
            f"{text} A batch took {numbers.first_pass:.1f} times as long in the first epoch as in the second.",
            "Later epochs read from memory. `headrace cache warm` or a copy on a local disk makes the first faster.",
        )
    return (
        "Storage",
        text,
        f"More samples wait at the same time with sample_threads=16 (raise it, if it is set), or with about "
        f"{case.workers} workers. A copy on a local disk, larger files, or headrace.cache avoid the waits.",
    )


def _no_cores(case: Case) -> _Words:
    numbers = case.numbers
    used = f"{share(1 - numbers.free / numbers.cores)} of the {numbers.cores:.3g} cores are used"
    if numbers.throttled >= _THROTTLED:
        used = f"the quota of {numbers.cores:.3g} cores stops them {share(numbers.throttled)} of the time"
    return (
        "No cores are left",
        f"{_busy_words(numbers)}, and {used}.",
        "More workers would not help, only cheaper samples: decode less (smaller files, `headrace.images`), keep what "
        "is made (`headrace.cache`), or give the job more cores.",
    )


def _too_few(case: Case) -> _Words:
    numbers = case.numbers
    free = f"{numbers.free:.1f} cores are free"
    fit = f" (the free cores are enough for {case.room})" if case.room < case.workers else ""
    return (
        "Too few workers",
        f"{_busy_words(numbers)}, and {free}.",
        f"About {case.workers} workers{fit} would be enough.",
    )


def _unknown(case: Case) -> _Words:
    numbers = case.numbers
    parts = {
        "for workers": numbers.workers_s,
        "for the pinning thread": numbers.pin_s,
        "for the sampler": numbers.draw_s,
        "rebuilding batches": numbers.rebuild_s,
        "for first batches": numbers.start_s,
    }
    listed = ", ".join(
        f"{share(s / numbers.seconds)} {name}" for name, s in parts.items() if s / numbers.seconds > 0.01
    )
    return (
        "The cause is not known",
        f"The loop waits {share(numbers.waiting)} of its time" + (f": {listed}." if listed else ".")
        + f" {_busy_words(numbers)}, with CPU for {share(numbers.cpu)} of that; {numbers.free:.1f} of "
        f"{numbers.cores:.3g} cores are free.",
        "",
    )  # fmt: skip


_WORDS: dict[str, Callable[[Case], _Words]] = {
    "short": _too_short,
    "trainer": _trainer,
    "starting": _starting,
    "no workers": _no_workers,
    "slow samples": _slow_samples,
    "collate": _collate,
    "storage": _storage,
    "no cores": _no_cores,
    "too few": _too_few,
    "unknown": _unknown,
}


def _busy_words(numbers: Numbers) -> str:
    if numbers.workers == 1:
        return f"The worker is busy {share(numbers.busy)} of its time"
    return f"The {numbers.workers} workers are busy {share(numbers.busy)} of their time"


def _one_rank(numbers: Numbers, lag: Lag) -> Verdict:
    cause = judge(lag.numbers, None, is_cause=True)
    return Verdict(
        "rank",
        f"Rank {lag.rank}",
        f"It is the slowest rank in {share(lag.share)} of the steps, by {duration(lag.by_s)} on average "
        f"({share(lag.by_s / numbers.step_s)} of a step), and the others wait for it.",
        f"Its cause: {cause.title[0].lower()}{cause.title[1:]}. {cause.text} {cause.advice}".rstrip(),
        cause,
    )


def judge(numbers: Numbers, lag: Lag | None, is_cause: bool = False) -> Verdict:
    """Returns why a loop waits. is_cause: it is the rank that the others wait for."""
    kind, workers, room, is_cold, is_storage = _core.judge(
        is_short=numbers.steps < LEAST_STEPS or numbers.seconds < LEAST_S,
        is_cause=is_cause,
        wait=numbers.wait,
        start=numbers.start_s / numbers.seconds if numbers.seconds else 0.0,
        workers=numbers.workers,
        busy=numbers.busy,
        collate=numbers.collate,
        cpu=numbers.cpu if numbers.workers else numbers.trainer_cpu,
        delay=numbers.delay if numbers.workers else numbers.trainer_delay if numbers.trainer_cpu else -1.0,
        cores=numbers.cores,
        free=numbers.free,
        throttled=numbers.throttled,
        first_pass=numbers.first_pass,
        slow_samples=numbers.slow.share if numbers.slow else 0.0,
        lag=lag.share if lag else 0.0,
        lag_of_wait=lag.of_wait if lag else 0.0,
    )
    if kind == "rank" and lag is not None:
        return _one_rank(numbers, lag)
    return Verdict(kind, *_WORDS[kind](Case(numbers, workers, room, is_cold, is_storage)))


def verdict_on(job: Job) -> Verdict:
    return judge(job.numbers, job.lag)
