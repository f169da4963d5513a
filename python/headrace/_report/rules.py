# SPDX-License-Identifier: Apache-2.0
"""The verdict: why the loop waits, and what to change. The rules are in the order in which a cause rules out the next
one, and the first one that holds is the verdict. Each is a function of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace._report.numbers import SKIPPED_STEPS, Numbers
from headrace._report.ranks import Job, Lag
from headrace._report.words import brief, count, counted, duration, share

LEAST_STEPS = 100
LEAST_S = 10.0
HARDLY_WAITS = 0.03
RESERVE = 1.2  # of the workers that the busy time needs
FEWER = 2  # workers: to need fewer by less is not worth a change
MOST = 0.5  # of a whole, or of all steps
_MANY_STEPS = 0.25  # workers of a slow rank may be late together, so not in each step
COLLATES = 0.4  # of the busy time
BUSY = 0.8
HALF_OF_BUSY = 0.5  # a worker that has less CPU, and waits less for a core, waits for something else
COLD = 1.5  # times as long in the first pass as in the second
FULL = 0.9  # of the cores
THROTTLED = 0.1  # of the time
MOST_WAIT = 0.9  # in a division by 1 - WAIT


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
    """The input of the rules: the numbers of a loader, and the rank that is behind the others, if it has ranks."""

    numbers: Numbers
    lag: Lag | None = None


# ---- the rules ----


def too_short(case: Case) -> Verdict | None:
    numbers = case.numbers
    if numbers.steps >= LEAST_STEPS and numbers.seconds >= LEAST_S:
        return None
    return Verdict(
        "short",
        "Too short to say",
        f"The recording has {counted(numbers.steps, 'step')} in {duration(numbers.seconds)}, apart from the first "
        f"{SKIPPED_STEPS}.",
        f"A verdict needs {LEAST_STEPS} steps and {LEAST_S:.0f} s.",
    )


def trainer(case: Case) -> Verdict | None:
    numbers = case.numbers
    if numbers.waiting >= HARDLY_WAITS:
        return None
    needed = max(1, math.ceil(RESERVE * numbers.busy * numbers.workers - 1e-9))
    advice = "Faster loading would save nothing."
    if needed <= numbers.workers - FEWER:
        advice += (
            f" The {numbers.workers} workers are busy {share(numbers.busy)} of their time: num_workers={needed} would "
            "be enough."
        )
    return Verdict("trainer", "The trainer", f"The loop waits for data {share(numbers.waiting)} of its time.", advice)


def starting(case: Case) -> Verdict | None:
    numbers = case.numbers
    if numbers.start_s <= MOST * numbers.waiting_s:
        return None
    each_s = numbers.start_s / max(numbers.starts, 1)
    return Verdict(
        "starting",
        "The start of epochs",
        f"{duration(numbers.start_s)} of the {duration(numbers.waiting_s)} that the loop waits go by until the first "
        f"batches of {counted(numbers.starts, 'epoch')}, {duration(each_s)} each.",
        "persistent_workers=True keeps the workers from one epoch to the next. If it is set, what the first batches "
        "need takes that long: the sampler, opening files.",
    )


def one_rank(case: Case) -> Verdict | None:
    lag = case.lag
    if lag is None or not (lag.share > MOST or (lag.share > _MANY_STEPS and lag.of_wait > MOST)):
        return None
    part = lag.by_s / case.numbers.step_s
    cause = judge(Case(lag.numbers), (too_short, *RULES[RULES.index(one_rank) + 1 :]))
    return Verdict(
        "rank",
        f"Rank {lag.rank}",
        f"It is the slowest rank in {share(lag.share)} of the steps, by {duration(lag.by_s)} on average "
        f"({share(part)} of a step), and the others wait for it.",
        f"Its cause: {cause.title[0].lower()}{cause.title[1:]}. {cause.text} {cause.advice}".rstrip(),
        cause,
    )


def slow_samples(case: Case) -> Verdict | None:
    slow = case.numbers.slow
    if slow is None or slow.share <= MOST:
        return None
    which = ", ".join(f"{count(index)} ({brief(ns)})" for index, ns in slow.indices)
    return Verdict(
        "slow samples",
        "Slow samples",
        f"{share(slow.share)} of the waiting is for {share(slow.batches)} of the batches: they have a sample that "
        f"takes over 10 times the median of {brief(slow.median_ns)}"
        + (f". The slowest ones: {which}." if which else "."),
        "`headrace replay` makes single samples, to see why they are slow. Several workers with a larger "
        "prefetch_factor hide single slow ones.",
    )


def collate(case: Case) -> Verdict | None:
    numbers = case.numbers
    if numbers.collate <= COLLATES:
        return None
    return Verdict(
        "collate",
        "Collating",
        f"{share(numbers.collate)} of the workers' busy time is the collate function: {duration(numbers.collate_s)} "
        "a batch.",
        "Let it do less: move work for each sample into the dataset, return arrays or tensors that torch's "
        "default_collate stacks, and pad to the longest sample of a batch only.",
    )


def storage(case: Case) -> Verdict | None:
    """Without a free core workers have little CPU, too: the time in which they wait for one does not count."""
    numbers = case.numbers
    if not _are_busy(numbers) or numbers.cpu + numbers.delay >= HALF_OF_BUSY:
        return None
    text = (
        f"The workers are busy {share(numbers.busy)} of their time, and use the CPU for {share(numbers.cpu)} of that: "
        "they wait for a disk or a network."
    )
    if numbers.first_pass >= COLD:
        return Verdict(
            "storage",
            "Storage: a cold disk",
            f"{text} A batch took {numbers.first_pass:.1f} times as long in the first epoch as in the second.",
            "Later epochs read from memory. `headrace cache warm` or a copy on a local disk makes the first faster.",
        )
    return Verdict(
        "storage",
        "Storage",
        text,
        f"More workers wait at the same time: about {_needed(numbers)} workers would be enough. A copy on a local "
        "disk, larger files, or headrace.cache avoid the waits.",
    )


def no_cores(case: Case) -> Verdict | None:
    numbers = case.numbers
    if not (_are_busy(numbers) or not numbers.workers) or not _are_cores_full(numbers):
        return None
    used = f"{share(1 - numbers.free / numbers.cores)} of the {numbers.cores:.3g} cores are used"
    if numbers.throttled >= THROTTLED:
        used = f"the quota of {numbers.cores:.3g} cores stops them {share(numbers.throttled)} of the time"
    return Verdict(
        "no cores",
        "No cores are left",
        f"{_busy_words(numbers)}, and {used}.",
        "More workers would not help, only cheaper samples: decode less (smaller files, `headrace.images`), keep what "
        "is made (`headrace.cache`), or give the job more cores.",
    )


def too_few(case: Case) -> Verdict | None:
    numbers = case.numbers
    if not _is_core_free(numbers):
        return None
    free = f"{numbers.free:.1f} cores are free"
    if not numbers.workers:
        return Verdict(
            "too few",
            "No workers",
            f"The training process makes its batches itself, and {free}.",
            f"Try num_workers={max(1, min(int(numbers.free), 8))}.",
        )
    if not _are_busy(numbers):
        return None
    return Verdict(
        "too few",
        "Too few workers",
        f"{_busy_words(numbers)}, and {free}.",
        f"About {_enough(numbers)} would be enough.",
    )


def unknown(case: Case) -> Verdict:
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
    workers = (
        f" {_busy_words(numbers)}, with CPU for {share(numbers.cpu)} of that" if numbers.workers else " No workers"
    )
    return Verdict(
        "unknown",
        "The cause is not known",
        f"The loop waits {share(numbers.waiting)} of its time" + (f": {listed}." if listed else ".")
        + f"{workers}; {numbers.free:.1f} of {numbers.cores:.3g} cores are free.",
    )  # fmt: skip


# ---- what they share ----


def _are_busy(numbers: Numbers) -> bool:
    return numbers.workers > 0 and numbers.busy > BUSY


def _are_cores_full(numbers: Numbers) -> bool:
    return numbers.free <= (1 - FULL) * numbers.cores or numbers.throttled >= THROTTLED


def _is_core_free(numbers: Numbers) -> bool:
    """Returns True if one more worker has as much of a core as it needs."""
    return numbers.free >= min(1.0, numbers.cpu or 1.0)


def _needed(numbers: Numbers) -> int:
    return max(numbers.workers + 1, round(numbers.workers / (1 - min(numbers.wait, MOST_WAIT))))


def _enough(numbers: Numbers) -> str:
    workers = _needed(numbers)
    room = numbers.workers + int(numbers.free / max(numbers.cpu, 0.01))
    fit = f" (the free cores are enough for {room})" if room < workers else ""
    return f"{workers} workers{fit}"


def _busy_words(numbers: Numbers) -> str:
    if not numbers.workers:
        return "The training process makes its batches itself"
    if numbers.workers == 1:
        return f"The worker is busy {share(numbers.busy)} of its time"
    return f"The {numbers.workers} workers are busy {share(numbers.busy)} of their time"


Rule = Callable[[Case], "Verdict | None"]
RULES: tuple[Rule, ...] = (
    too_short, trainer, starting, one_rank, slow_samples, collate, storage, no_cores, too_few
)  # fmt: skip


def judge(case: Case, rules: tuple[Rule, ...] = RULES) -> Verdict:
    """Returns the verdict of the first rule that holds."""
    return next((verdict for rule in rules if (verdict := rule(case))), None) or unknown(case)


def verdict_on(job: Job) -> Verdict:
    return judge(Case(job.numbers, job.lag))
