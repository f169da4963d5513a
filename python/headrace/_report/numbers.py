# SPDX-License-Identifier: Apache-2.0
"""Computes the numbers of which verdicts are made, from what was recorded of one loader."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headrace import _core
from headrace._report.recorded import (
    NS,
    Recorded,
    Rows,
    sum_histograms,
)

SKIPPED_STEPS = 20  # at the start: caches are cold then, and workers import
_FAR = 10  # times the median: a slow sample
_SHOWN_INDICES = 5
_THOUSANDTHS = 1000
_US = 1000  # nanoseconds


@dataclass(frozen=True)
class SlowSamples:
    """The waits for batches that have a sample of more than ten times the median."""

    share: float  # of all waiting
    batches: float  # the share of batches
    median_ns: float
    indices: Sequence[tuple[int, int]]  # of the slowest samples, and their times in ns


@dataclass(frozen=True)
class Numbers:
    """The numbers of a loader in its epochs, without the first steps. Times are seconds, shares are 0 to 1."""

    steps: int = 0
    seconds: float = 0.0  # from the begin of each epoch to its last batch
    inside_s: float = 0.0  # inside next(), without first batches of epochs
    start_s: float = 0.0  # until these
    starts: int = 0
    workers_s: float = 0.0  # parts of inside_s: waiting for workers, for the pinning thread, the sampler, rebuilding
    pin_s: float = 0.0
    draw_s: float = 0.0
    rebuild_s: float = 0.0
    samples: int = 0
    size_bytes: int = 0
    workers: int = 0  # that get tasks, on average: num_workers="auto" parks the others
    parked: int = 0
    busy: float = 0.0  # the share of their time in which workers have a batch to make
    collate: float = 0.0  # of the busy time
    collate_s: float = 0.0  # of one batch
    cpu: float = 0.0  # CPU time as a share of the busy time
    delay: float = 0.0  # the time in which they wait for a core, as a share of the busy time
    network: float = 0.0  # waiting for remote objects as a share of the busy time; without workers of all time
    hits: int = 0  # reads of remote objects that found all bytes,
    waits: int = 0  # and those that waited
    fetched_bytes: int = 0  # by the fetcher of remote objects, for all jobs of the user
    requests: int = 0
    retries: int = 0
    trainer_cpu: float = 0.0  # cores that the training process uses
    trainer_delay: float = 0.0  # the share of time in which its main thread waits for one
    cores: float = 0.0  # that the job may use
    free: float = 0.0  # of these
    throttled: float = 0.0  # the share of time in which a quota stops the job
    first_pass: float = 1.0  # how many times as long a batch takes in the first epoch as in the second
    slow: SlowSamples | None = None

    @property
    def waiting_s(self) -> float:
        return self.inside_s + self.start_s

    @property
    def waiting(self) -> float:
        """The share of time in which the loop waits, first batches of epochs included."""
        return self.waiting_s / self.seconds if self.seconds else 0.0

    @property
    def wait(self) -> float:
        """WAIT: the same without first batches."""
        return self.inside_s / self.seconds if self.seconds else 0.0

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0


def is_in_epoch(rows: Rows) -> list[bool]:
    """Returns which rows belong to an epoch: from its begin to its last batch. Between two epochs the loop does other
    things, such as a validation."""
    chosen: list[bool] = []
    moves = [any(one) for one in zip(rows["batches"], rows["inside_ns"], rows["start_ns"], strict=True)]
    for _, epoch in itertools.groupby(zip(rows["epoch"], moves, strict=True), key=lambda row: row[0]):
        of_epoch = [has_moved for _, has_moved in epoch]
        last = max((at for at, has_moved in enumerate(of_epoch) if has_moved), default=-1)
        chosen += [at <= last for at in range(len(of_epoch))]
    return chosen


def without_first_steps(rows: Rows) -> Rows:
    done = itertools.accumulate(rows["batches"], initial=0)
    return rows.chosen([before >= SKIPPED_STEPS for before, _ in zip(done, rows["batches"], strict=False)])


def _mean(rows: Rows, name: str) -> float:
    """Returns the mean of a column over time: rows may be seconds or minutes."""
    lengths = rows["length_ns"]
    total = sum(value * length for value, length in zip(rows[name], lengths, strict=True))
    return total / sum(lengths) if sum(lengths) else 0.0


def _mean_cores(rows: Rows, name: str) -> float:
    return _mean(rows, name) / _THOUSANDTHS


def _free_cores(rows: Rows, cores: int) -> float:
    """Returns the cores that more workers could use: those that are idle, and that the job may use."""
    seconds = rows.sum_s("length_ns")
    own = (rows.sum_of_workers_s("cpu_ns") + rows.sum_s("trainer_cpu_ns")) / seconds if seconds else 0.0
    return max(0.0, min(cores - _mean_cores(rows, "cores_busy"), _mean_cores(rows, "cores_allowed") - own))


def _first_pass(rows: Rows) -> float:
    """Compares the time of a batch in the workers in the first epoch with that in the second."""
    epochs = sorted(set(rows["epoch"]))[:2]
    costs = []
    for epoch in epochs:
        part = rows.chosen([one == epoch for one in rows["epoch"]])
        batches = sum(part["batches"])
        costs.append(part.sum_of_workers_s("fetch_ns") / batches if batches else 0.0)
    return costs[0] / costs[1] if len(costs) == 2 and costs[1] else 1.0


def _network(rows: Rows, busy_s: float) -> float:
    """Returns the share of the busy time of the workers in which they wait for remote objects. Without workers, the
    share of all time in which the training process does."""
    if not rows.of_workers:
        seconds = rows.sum_s("length_ns")
        return min(1.0, rows.sum_s("network_ns") / seconds) if seconds else 0.0
    return min(1.0, rows.sum_of_workers_s("network_ns") / busy_s) if busy_s else 0.0


def numbers_of(one: Recorded) -> Numbers:
    """Computes the numbers of a loader."""
    rows = one.rows
    rows = without_first_steps(rows.chosen(is_in_epoch(rows)))
    fetch_s, collate_s = rows.sum_of_workers_s("fetch_ns"), rows.sum_of_workers_s("collate_ns")
    busy_s = fetch_s + collate_s
    all_s = busy_s + rows.sum_of_workers_s("wait_ns")
    steps, workers = sum(rows["batches"]), round(_mean(rows if len(rows) else one.rows, "used_workers")) or one.workers
    inside_s, start_s = rows.sum_s("inside_ns"), rows.sum_s("start_ns")
    return Numbers(
        steps=steps,
        seconds=max(rows.sum_s("length_ns"), inside_s + start_s),
        inside_s=inside_s,
        start_s=start_s,
        starts=sum(rows["starts"]),
        workers_s=min(rows.sum_s("wait_ns"), inside_s),  # one that began in the first steps ends later
        pin_s=rows.sum_s("pin_ns"),
        draw_s=rows.sum_s("draw_ns"),
        rebuild_s=rows.sum_s("rebuild_ns"),
        samples=sum(rows["samples"]),
        size_bytes=sum(rows["bytes"]),
        workers=workers,
        parked=one.workers - workers,
        busy=busy_s / all_s if all_s else 0.0,
        collate=collate_s / busy_s if busy_s else 0.0,
        collate_s=collate_s / steps if steps else 0.0,
        cpu=rows.sum_of_workers_s("cpu_ns") / busy_s if busy_s else 0.0,
        delay=rows.sum_of_workers_s("delay_ns") / busy_s if busy_s else 0.0,
        network=_network(rows, busy_s),
        hits=sum(rows["hit_count"]),
        waits=sum(rows["wait_count"]),
        fetched_bytes=sum(rows["fetched_bytes"]),
        requests=sum(rows["requests"]),
        retries=sum(rows["retries"]),
        trainer_cpu=rows.sum_s("trainer_cpu_ns") / rows.sum_s("length_ns") if len(rows) else 0.0,
        trainer_delay=rows.sum_s("trainer_delay_ns") / rows.sum_s("length_ns") if len(rows) else 0.0,
        cores=_mean_cores(rows, "cores_allowed"),
        free=_free_cores(rows, one.cores),
        throttled=rows.sum_s("throttled_ns") / rows.sum_s("length_ns") if len(rows) else 0.0,
        first_pass=_first_pass(rows),
        slow=slow_samples(one),
    )


# ---- slow samples ----


def slow_samples(one: Recorded) -> SlowSamples | None:
    """Adds up the waits for batches with a slow sample. None: no batch was timed together with its step."""
    median_ns = _core.quantile_ns(sum_histograms(hour.samples for hour in one.hours), 0.5)
    waits = _waits_by_batch(one)
    if not waits or not median_ns:
        return None
    # A loop does not wait for a sample longer than that takes.
    slow = [min(wait_us, slowest_ns / _US) for slowest_ns, wait_us in waits if slowest_ns > _FAR * median_ns]
    total_us = sum(wait_us for _, wait_us in waits)
    indices = [(sample.index, sample.ns) for sample in one.slowest
               if sample.ns > _FAR * median_ns and sample.index != _core.NO_SAMPLE]  # fmt: skip
    return SlowSamples(
        sum(slow) / total_us if total_us else 0.0, len(slow) / len(waits), median_ns, indices[:_SHOWN_INDICES]
    )


def _waits_by_batch(one: Recorded) -> list[tuple[int, int]]:
    """Returns for each timed batch that is found among the steps the time of its slowest sample, and its wait in us.

    Batch n of an epoch is step n + 1. Steps of several epochs have the same number: a batch belongs to the first one
    that ended after it was made.
    """
    steps: dict[int, list[tuple[int, int]]] = {}
    for at_ns, step, inside_us in zip(one.steps["at_ns"], one.steps["step"], one.steps["inside_us"], strict=True):
        steps.setdefault(step, []).append((at_ns, inside_us))
    waits = []
    names = ("task", "began_ns", "fetch_ns", "collate_ns", "slowest_ns")
    for task, began_ns, fetch_ns, collate_ns, slowest_ns in zip(*(one.batches[name] for name in names), strict=True):
        made_ns = began_ns + fetch_ns + collate_ns
        wait_us = next((us for at_ns, us in steps.get(task + 1, ()) if at_ns >= made_ns), _core.NO_STEP)
        if wait_us != _core.NO_STEP:
            waits.append((slowest_ns, wait_us))
    return waits


def wait_by_length(rows: Rows) -> list[float]:
    """Returns the share of each row in which the loop waits."""
    return [
        min(1.0, (inside + start) / length) if length else 0.0
        for inside, start, length in zip(rows["inside_ns"], rows["start_ns"], rows["length_ns"], strict=True)
    ]


def seconds_of(rows: Rows) -> float:
    return (rows["at_ns"][-1] - rows["at_ns"][0] + rows["length_ns"][0]) / NS if len(rows) else 0.0
