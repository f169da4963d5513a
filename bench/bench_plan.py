# SPDX-License-Identifier: Apache-2.0
"""Measures plans of batches: padding, fill, the balance of the ranks, and processor time, of headrace.Plan and of
others (plan_rivals.py), for the same lengths on 8 ranks: one, or two of them (plan_several.py). Measures also the
packing of a batch, and the states of a plan."""

from __future__ import annotations

import ast
import statistics
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plan_rivals as rivals
import plan_several
import torch
from headrace import Loader, Plan
from headrace.torch import DataLoader, collate_packed
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, show_against

Lengths = np.ndarray[Any, Any]
WORLD_SIZE = 8
MANY = 100_000 if QUICK else 1_000_000
WINDOW = 20_000
ROW = 8192  # tokens of a packed row, and of a padded batch for each rank
SIZE = 16  # samples of a batch where their number is fixed
BUCKETS = [(100, 32), (220, 24), (None, 16)]
PACKED = "a packed batch of 64 documents, 16,384 tokens"
TAKEN = f"in mid-epoch, {MANY:,} packed samples"
TAKES = ("state_dict", "last")
RESUMED = f"first batch after a state in mid-epoch, {MANY:,} samples"


# ---- lengths ----


@cache
def lognormal(count: int) -> Lengths:
    """Texts: many short ones, a few very long ones."""
    return np.clip(np.random.default_rng(0).lognormal(5.5, 1, count), 16, 8192).astype(np.int32)


@cache
def conversations() -> Lengths:
    """Lengths like those of multipack's testdata.json: 6,144 conversations, of which half are cut off at 2,048."""
    return np.clip(np.random.default_rng(0).lognormal(np.log(2050), 0.95, 6144), 24, 2048).astype(np.int32)


@cache
def functions() -> Lengths:
    """The functions of the standard library, in words and signs."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(errors="replace")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(len((ast.get_source_segment(text, node) or "").split()))
    return np.clip(np.array(found), 1, ROW).astype(np.int32)


# ---- ways to form batches ----


def planned(settings: dict[str, Any]) -> Callable[..., Any]:
    """Returns a function that makes a plan. Its batches are lists when they are asked for."""

    def make(lengths: Lengths, world_size: int) -> Plan:
        plan = Plan(lengths, world_size=world_size, rank=0, tail="exact", **settings)
        len(plan)
        return plan

    return make


def batches_of(made: Any) -> rivals.Batches:
    if not isinstance(made, Plan):
        return made  # type: ignore[no-any-return]
    table = made._whole().table
    return np.split(table.samples.order[table.positions], table.starts[1:-1])


def of(rival: Callable[..., rivals.Batches], limit: int) -> Callable[..., rivals.Batches]:
    return lambda lengths, world_size: rival(lengths, world_size, limit)


@dataclass(frozen=True)
class Comparison:
    """Ways to form batches of some lengths. Their results are compared by `name`."""

    name: str
    lengths: Callable[[], Lengths]
    capacity: int  # of a row; 0: batches are padded
    ways: dict[str, Callable[..., rivals.Batches]]


PACKING = [
    Comparison(
        "conversations, rows of 32,768",
        conversations,
        16 * 2048,
        {"headrace": planned({"pack": 16 * 2048, "cost_quadratic": 1}), "multipack": of(rivals.multipack, 16 * 2048)},
    ),
    *(
        Comparison(
            f"{name}, rows of {ROW:,}",
            lengths,
            ROW,
            {
                "headrace": planned({"pack": ROW, "cost_quadratic": 1}),
                "multipack": of(rivals.multipack, ROW),
                "axolotl": of(rivals.axolotl, ROW),
            },
        )
        for name, lengths in (("functions", functions), (f"{MANY:,} lognormal", lambda: lognormal(MANY)))
    ),
]
PADDING = [
    Comparison(
        f"{name}, padded",
        lengths,
        0,
        {
            "headrace": planned({"max_padded": 2 * ROW, "window": WINDOW, "cost_quadratic": 1}),
            "headrace, whole": planned({"max_padded": 2 * ROW, "window": 10**9, "cost_quadratic": 1}),
            "fairseq": of(rivals.fairseq, 2 * ROW),
            "group_by_length": of(rivals.length_grouped, SIZE),
            "batch_rebalance": of(rivals.batch_rebalance, SIZE),
        },
    )
    for name, lengths in (
        ("conversations", conversations),
        ("functions", functions),
        ("100,000 lognormal", lambda: lognormal(100_000)),
    )
]
PADDING.append(
    Comparison(
        "100,000 lognormal, buckets",
        lambda: lognormal(100_000),
        0,
        {
            "headrace": planned({"buckets": BUCKETS}),
            "headrace, unsorted buckets": planned({"buckets": BUCKETS, "window": 1}),
        },
    )
)


def measures(comparison: Comparison, lengths: Lengths, batches: rivals.Batches) -> dict[str, float]:
    """Returns what batches cost, in per cent. Ranks take them in turn; what is left at the end is not counted."""
    count = len(batches) // WORLD_SIZE * WORLD_SIZE
    own = [lengths[batch].astype(float) for batch in batches[:count]]
    sums, padded = np.array([one.sum() for one in own]), np.array([one.max() * len(one) for one in own])
    squares = np.array([(one**2).sum() if comparison.capacity else len(one) * one.max() ** 2 for one in own])
    # The cost of transformers' batch_rebalance: padded tokens, and a thousandth of their squares.
    costs = squares if comparison.capacity else padded + 0.001 * squares
    steps = costs.reshape(-1, WORLD_SIZE)
    found = {"most expensive rank": 100 * float((steps.max(1) / steps.mean(1)).mean())}
    if not comparison.capacity:
        return {"padding": 100 * float(1 - sums.sum() / padded.sum()), **found}
    empty = 100 * float(1 - sums.sum() / (len(own) * comparison.capacity))
    lag = np.sqrt(steps.max(1) - steps.min(1))
    return {"room that is left": empty, **found, "L2 lag, mean": float(lag.mean()), "L2 lag, most": float(lag.max())}


def compare(comparison: Comparison) -> list[Row]:
    lengths = comparison.lengths()
    rows, ways = [], {}
    for rival, way in comparison.ways.items():
        if rival in ("multipack", "axolotl", "fairseq") and not rivals.HAS_NUMBA:
            continue
        batches = batches_of(way(lengths, WORLD_SIZE))  # numba compiles it now
        for what, value in measures(comparison, lengths, batches).items():
            unit = "" if what.startswith("L2") else "%"
            rows.append(Row(f"{comparison.name}: {what}", rival, 0, value, unit))

        def run(way: Callable[..., Any] = way) -> float:
            start = time.process_time()  # all of them use one thread
            way(lengths, WORLD_SIZE)
            return 1e3 * (time.process_time() - start)

        ways[rival] = run
    return rows + in_turn(f"{comparison.name}: time", ways, "ms", 3 if len(lengths) > 200_000 else ROUNDS)


# ---- packing a batch ----


class Documents(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.samples = [{"input_ids": np.full(256, i, np.int32)} for i in range(64)]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % 64]


def pack(collate: Callable[[list[Any]], Any]) -> float:
    """Returns the time of a batch of one worker, in us."""
    kind = DataLoader if collate is collate_packed else torch.utils.data.DataLoader
    batches = iter(kind(Documents(), batch_size=64, num_workers=1, collate_fn=collate))
    for _ in range(20):
        next(batches)
    start, count = time.perf_counter(), 100 if QUICK else 400
    for _ in range(count):
        next(batches)
    return 1e6 * (time.perf_counter() - start) / count


def packing() -> list[Row]:
    from transformers import DataCollatorWithFlattening

    flatten = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    return in_turn(PACKED, {"transformers": lambda: pack(flatten), "headrace": lambda: pack(collate_packed)}, "us")


# ---- continuing a plan ----


def resume(settings: dict[str, Any], world_size: int) -> float:
    """Returns the processor time from load_state_dict to the first batch, in ms, of a plan that was made with one
    setting, on 8 ranks, and is continued by another one on `world_size` ranks."""
    data = range(MANY)
    first = Loader(data, batch_sampler=Plan(lognormal(MANY), pack=ROW, world_size=WORLD_SIZE, rank=0), seed=0)
    first.skip(100)
    state = first.state_dict()
    plan = Plan(lognormal(MANY), world_size=world_size, rank=0, **settings)
    loader = Loader(data, batch_sampler=plan, seed=0)
    start = time.process_time()
    loader.load_state_dict(state)
    next(iter(loader))
    return 1e3 * (time.process_time() - start)


def resuming() -> list[Row]:
    same = [resume({"pack": ROW}, WORLD_SIZE) for _ in range(ROUNDS)]
    other = [resume({"pack": 2 * ROW}, 6) for _ in range(ROUNDS)]
    return [
        Row(RESUMED, "headrace", 0, statistics.median(same), "ms"),
        Row(RESUMED, "headrace, 6 ranks and other rows", 0, statistics.median(other), "ms"),
    ]


def take(name: str) -> float:
    """Returns the processor time of taking a state, or what was delivered last, in us."""
    plan = Plan(lognormal(MANY), pack=ROW, world_size=WORLD_SIZE, rank=0)
    loader = Loader(range(MANY), batch_sampler=plan, seed=0)
    iterator = iter(loader)
    for _ in range(100):
        next(iterator)
    start, count = time.process_time(), 2000
    for _ in range(count):
        loader.state_dict() if name == "state_dict" else loader.last
    return 1e6 * (time.process_time() - start) / count


def taking() -> list[Row]:
    return [Row(f"{name} {TAKEN}", "headrace", 0, min(take(name) for _ in range(ROUNDS)), "us") for name in TAKES]


CASES = [
    *(Case(one.name, lambda one=one: compare(one)) for one in (*PACKING, *PADDING)),  # type: ignore[misc]
    *(Case(two.name, lambda two=two: plan_several.compare(two)) for two in plan_several.CASES),  # type: ignore[misc]
    Case("packing", packing),
    Case("resuming", resuming),
    Case("taking", taking),
]


def goals() -> list[Goal]:
    rows, padded = f"{MANY:,} lognormal, rows of {ROW:,}", "100,000 lognormal, padded"
    return [
        Goal(f"{rows}: time", Key(f"{rows}: time", "headrace"), 300 * MANY / 1e6, unit="ms"),
        Goal(f"{rows}: room that is left", Key(f"{rows}: room that is left", "headrace"), 0.3, unit="%"),
        Goal(f"{padded}: padding", Key(f"{padded}: padding", "headrace"), 4, unit="%"),
        Goal(f"{padded}: balance", Key(f"{padded}: most expensive rank", "headrace"), 101, unit="%"),
        Goal(f"state_dict {TAKEN}", Key(f"state_dict {TAKEN}", "headrace"), 20, unit="us"),
        Goal(RESUMED, Key(RESUMED, "headrace"), 300 * MANY / 1e6, unit="ms"),
        *plan_several.goals(),
    ]


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against(), goals)


if __name__ == "__main__":
    main()
