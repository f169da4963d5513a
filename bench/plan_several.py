# SPDX-License-Identifier: Apache-2.0
"""Measures plans of samples with two lengths, texts and images, next to transformers' sampler by cost and greedy ways.
bench_plan.py runs the cases."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import plan_rivals as rivals
from headrace import Plan
from measure import QUICK, ROUNDS, Goal, Key, Row

Lengths = dict[str, np.ndarray[Any, Any]]
WORLD_SIZE = 8
COUNT = 20_000 if QUICK else 60_000
COST = {"text": (1, 0), "patches": (64, 1)}


@cache
def texts_and_images() -> Lengths:
    """Lognormal texts, and up to eight images of 256 to 1,024 patches with each."""
    drawn = np.random.default_rng(0)
    text = np.clip(drawn.lognormal(5.5, 1, COUNT), 16, 8192).astype(np.int32)
    images, sizes = drawn.integers(0, 9, COUNT), drawn.integers(256, 1025, (COUNT, 8))
    return {"text": text, "patches": (sizes * (np.arange(8) < images[:, None])).sum(1).astype(np.int32)}


def with_placeholders() -> Lengths:
    """The same, where each image also takes a quarter as many tokens as patches."""
    found = texts_and_images()
    return {**found, "text": np.minimum(found["text"] + found["patches"] // 4, 8192).astype(np.int32)}


def short_texts() -> Lengths:
    found = texts_and_images()
    return {**found, "text": np.minimum(found["text"], 2048)}


def costs_of(lengths: Lengths) -> np.ndarray[Any, Any]:
    """Returns what each sample costs with COST."""
    patches = lengths["patches"].astype(float)
    found: np.ndarray[Any, Any] = lengths["text"] + 64 * patches + patches**2
    return found


@dataclass(frozen=True)
class Two:
    """Samples with two lengths and their limits. room, p99: the goals of the room that is left, and of the 99th
    percentile of the most expensive rank, in per cent."""

    name: str
    lengths: Callable[[], Lengths]
    text: int
    patches: int
    room: float
    p99: float

    @property
    def limits(self) -> dict[str, int]:
        return {"text": self.text, "patches": self.patches}


CASES = [
    Two("text and images, 8,192 and 8,192", texts_and_images, 8192, 8192, 1, 105),
    Two("text with a quarter of the patches, 8,192 and 16,384", with_placeholders, 8192, 16384, 3, 105),
    Two("both scarce, 2,048 and 16,384", short_texts, 2048, 16384, 5, 112),
    Two("both scarce, 2,048 and 8,192", short_texts, 2048, 8192, 5, 112),
]


def plan_with(lengths: Any, **own: Any) -> Callable[[], Any]:
    """Returns a function that plans. Its batches become lists later, and that takes no part in the time."""

    def make() -> Any:
        plan = Plan(lengths, world_size=WORLD_SIZE, rank=0, tail="exact", **own)
        len(plan)
        return plan

    return make


def ways_of(case: Two) -> dict[str, Callable[[], Any]]:
    """Returns functions that form batches. The rivals without limits get as many samples a batch as the plan has."""
    lengths, limits = case.lengths(), case.limits
    costs = costs_of(lengths)
    size = round(COUNT / batch_count(case))
    return {
        "headrace": plan_with(lengths, cost=COST, pack=limits),
        "headrace, max_sum": plan_with(lengths, cost=COST, max_sum=limits),
        "headrace, one length": plan_with(lengths["text"], pack=case.text),
        "first fit decreasing": lambda: rivals.first_fit(lengths, limits),
        "greedy by cost": lambda: rivals.greedy_by_cost(costs, WORLD_SIZE, size),
        "batch_rebalance": lambda: rivals.batch_rebalance(rivals.lengths_of_costs(costs), WORLD_SIZE, size),
    }


def batch_count(case: Two) -> int:
    plan = Plan(case.lengths(), pack=case.limits, world_size=WORLD_SIZE, rank=0)
    return len(plan) * WORLD_SIZE


def as_lists(made: Any) -> rivals.Batches:
    if not isinstance(made, Plan):
        return made  # type: ignore[no-any-return]
    table = made._whole().table
    return np.split(table.samples.order[table.positions], table.starts[1:-1])


def measures(case: Two, batches: rivals.Batches) -> dict[str, float]:
    """Returns what batches cost, in per cent. Ranks take them in turn; what is left at the end is not counted."""
    lengths = case.lengths()
    own = [np.asarray(batch) for batch in batches[: len(batches) // WORLD_SIZE * WORLD_SIZE]]
    shares = np.array([[lengths[name][batch].sum() / limit for name, limit in case.limits.items()] for batch in own])
    costs = costs_of(lengths)
    steps = np.array([costs[batch].sum() for batch in own]).reshape(-1, WORLD_SIZE)
    ratios = steps.max(1) / steps.mean(1)
    needed = max(1.0, float(shares.max()))  # a budget that is as large as the largest batch
    return {
        "room that is left": 100 * (1 - float(shares.mean(0).max()) / needed),
        "largest batch, of its limit": 100 * float(shares.max()),
        "most expensive rank": 100 * float(ratios.mean()),
        "most expensive rank, 99th percentile": 100 * float(np.quantile(ratios, 0.99)),
        "most expensive rank, worst step": 100 * float(ratios.max()),
        "time that steps lose": 100 * float(steps.max(1).sum() / steps.mean(1).sum() - 1),
    }


def compare(case: Two) -> list[Row]:
    rows, ways = [], ways_of(case)
    for rival, way in ways.items():
        for what, value in measures(case, as_lists(way())).items():
            rows.append(Row(f"{case.name}: {what}", rival, 0, value, "%"))
    times: dict[str, list[float]] = {rival: [] for rival in ways}
    for _ in range(ROUNDS):
        for rival, way in ways.items():
            if rival.startswith("headrace") or len(times[rival]) < 1:  # the others take seconds
                start = time.process_time()
                way()
                times[rival].append(1e3 * (time.process_time() - start))
    found = [Row(f"{case.name}: time", rival, 0, statistics.median(values), "ms") for rival, values in times.items()]
    return rows + found


def goals() -> list[Goal]:
    found = []
    for case in CASES:
        for what, bound, unit in (
            ("room that is left", case.room, "%"),
            ("most expensive rank", 101, "%"),
            ("most expensive rank, 99th percentile", case.p99, "%"),
            ("most expensive rank, worst step", 125, "%"),
            ("time", 500, "ms"),
        ):
            work = f"{case.name}: {what}"
            found.append(Goal(work, Key(work, "headrace"), bound, unit=unit))
    return found
