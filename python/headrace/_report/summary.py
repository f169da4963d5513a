# SPDX-License-Identifier: Apache-2.0
"""The verdict and the main numbers as text: what the terminal shows, and the page too."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from headrace import _core
from headrace._report import notes, rules
from headrace._report.numbers import Numbers
from headrace._report.ranks import Job
from headrace._report.recorded import Recorded, sum_histograms
from headrace._report.words import brief, count, counted, duration, printable, rate, share

_COLUMNS = 80
_LABEL = 10
_REPLAYED = 5  # samples
UPPER_BOUND = (
    "WAIT is the share of time that the training loop spends inside next(), first batches of epochs apart. A GPU works "
    "on meanwhile, so it is an upper bound of what faster loading saves."
)


def script_of(one: Recorded) -> str:
    """Returns the script that made a loader, from its name, the line: train.py:88."""
    script, _, line = one.name.rpartition(":")
    return script if script and line.isdecimal() else one.name


def replay_line(one: Recorded) -> str:
    """Returns the command that makes the slowest samples again, or "" if no index is known. The user puts the name of
    the dataset in."""
    slowest = dict.fromkeys(sample.index for sample in one.slowest if sample.index != _core.NO_SAMPLE)
    indices = [str(index) for index in slowest][:_REPLAYED]
    source = shlex.quote(f"{printable(script_of(one))}:DATASET")
    return " ".join(["headrace replay", source, *indices]) if indices else ""


def name_of(job: Job) -> str:
    first = job.loaders[0]
    ranks = f", {counted(len(job.loaders), 'rank')}" if first.world_size > 1 or len(job.loaders) > 1 else ""
    return f"{first.name}{ranks}"


def facts_on(job: Job) -> list[tuple[str, str]]:
    """Returns the main numbers of a job: names and texts. They are those of the rank that waits longest."""
    numbers, one = job.of_ranks[job.worst], job.loaders[job.worst]
    facts = [("WAIT", _wait_text(job)), ("start", _start_text(numbers)), ("rate", _rate_text(numbers))]
    facts += [("workers", _workers_text(numbers)), ("network", _network_text(numbers))]
    facts += [("samples", _samples_text(one)), ("cores", _cores_text(numbers))]
    return [fact for fact in facts if fact[1]]


def _wait_text(job: Job) -> str:
    numbers = job.of_ranks[job.worst]
    if not numbers.seconds:
        return ""
    parts = {"workers": numbers.workers_s, "pinning": numbers.pin_s, "sampler": numbers.draw_s,
             "rebuilding": numbers.rebuild_s}  # fmt: skip
    listed = ", ".join(
        f"{name} {share(s / numbers.seconds)}" for name, s in parts.items() if s / numbers.seconds > 0.001
    )
    text = share(numbers.wait) + (f" ({listed})" if listed else "")
    if job.wait is not None:
        text = f"{share(job.wait)} (slowest rank of each step); rank {job.loaders[job.worst].rank}: {text}"
    return text


def _start_text(numbers: Numbers) -> str:
    if not numbers.starts:
        return ""
    return f"{duration(numbers.start_s)} until first batches, in {counted(numbers.starts, 'epoch')}"


def _rate_text(numbers: Numbers) -> str:
    if not numbers.seconds:
        return ""
    per_s = f"{rate(numbers.steps / numbers.seconds)} batches/s, {rate(numbers.samples / numbers.seconds)} samples/s"
    moved = f", {rate(numbers.size_bytes / numbers.seconds / 1e6)} MB/s" if numbers.size_bytes else ""
    return f"{per_s}{moved}; {count(numbers.steps)} steps in {duration(numbers.seconds)}"


def _workers_text(numbers: Numbers) -> str:
    if not numbers.workers:
        return f"none: the training process makes its batches, and uses {numbers.trainer_cpu:.2g} cores"
    parked = f" on average, and {numbers.parked} parked" if numbers.parked else ""
    return (
        f"{numbers.workers}{parked}, busy {share(numbers.busy)}, with CPU for {share(numbers.cpu)} of that; collating "
        f"{share(numbers.collate)}"
    )


def _network_text(numbers: Numbers) -> str:
    words = rules.fetched_words(numbers)
    if not words:
        return ""
    whose = "of the busy time" if numbers.workers else "of the time"
    return f"waits for remote objects {share(numbers.network)} {whose}. {words}"


def _samples_text(one: Recorded) -> str:
    times = sum_histograms(hour.samples for hour in one.hours)
    if not sum(times):
        return ""
    text = f"p50 {brief(_core.quantile_ns(times, 0.5))}, p99 {brief(_core.quantile_ns(times, 0.99))}"
    if one.slowest:
        worst = one.slowest[0]
        index = "" if worst.index == _core.NO_SAMPLE else f" (index {count(worst.index)})"
        text += f", worst {brief(worst.ns)}{index}"
    return text


def _cores_text(numbers: Numbers) -> str:
    if not numbers.cores:
        return ""
    throttled = f"; a quota stops the job {share(numbers.throttled)} of the time" if numbers.throttled > 0.01 else ""
    return f"{numbers.free:.1f} of {numbers.cores:.3g} free{throttled}"


# ---- the terminal ----


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        printable(text), _COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _labelled(label: str, text: str) -> str:
    return textwrap.fill(
        printable(text), _COLUMNS, initial_indent=f"  {label:{_LABEL}}", subsequent_indent=" " * (_LABEL + 2),
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def describe(job: Job) -> str:
    """Returns what the terminal shows of a job."""
    verdict, one = rules.verdict_on(job), job.loaders[job.worst]
    place = f" on {one.host}" if one.host else ""
    lines = [printable(f"{name_of(job)}, pid {one.pid}{place}: {verdict.title}")]
    lines.append(_wrapped(verdict.text))
    if verdict.advice:
        lines.append(_wrapped(verdict.advice))
    kinds = (verdict.kind, verdict.cause.kind if verdict.cause else "")
    if "slow samples" in kinds and (line := replay_line(one)):
        lines.append(f"  {line}")
    lines += ["", *(_labelled(label, text) for label, text in facts_on(job))]
    lines += [_labelled("note", note) for note in notes.notes_on(job)]
    return "\n".join(lines)


def describe_all(jobs: Sequence[Job], folder: str, has_page: bool) -> str:
    """Returns what `headrace report` prints. Without a page, it says how to get one."""
    parts = [*map(describe, jobs), _wrapped(UPPER_BOUND, "")]
    if not has_page:
        parts.append(f"The page with figures: headrace report {shlex.quote(printable(folder))} -o report.html")
    return "\n\n".join(parts)
