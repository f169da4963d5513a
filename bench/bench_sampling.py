# SPDX-License-Identifier: Apache-2.0
"""Measures orders and mixtures: the first index of a shuffled epoch, the memory that it takes, and the time of each
index. Measures also what a step costs a rank that shows it to another one.

The samplers are run in new processes by sampling_script.py, because an allocator keeps memory that was freed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from headrace import Mixture, Order
from headrace._ranks.agreement import Agreement, Facts
from headrace._ranks.loader_identity import LoaderIdentity
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, show_against

SCRIPT = Path(__file__).resolve().parent / "sampling_script.py"
SAMPLER_COUNT, WORLD_SIZE = 1_000_000 if QUICK else 10_000_000, 8
STREAM_COUNT, TABLE_COUNT = 1_000_000_000, 10_000_000
READ = 1_000_000  # indices
STEPS = 1_000_000
FACTS = Facts(length=-1, steps=STEPS, seed=-1, epoch=0, digest=-1, samples=-1)

SAMPLER = f"DistributedSampler, {SAMPLER_COUNT:.0e} samples, {WORLD_SIZE} ranks"
FIRST, PEAK, KEPT = f"{SAMPLER}: first index", f"{SAMPLER}: memory until then", f"{SAMPLER}: memory that is kept"
STREAM_FIRST = f"Order, stream, {STREAM_COUNT:.0e} samples: first index"
BULK = f"an index, {READ:.0e} at a time"
ITERATED = "an index, iterated"
STEP = "a step of a rank, shown to another rank"
AT_POSITION = "an index, at one position after another"
MIXED_BULK, MIXED_MANY = "mixture of 2 sources: an index, in bulk", "mixture of 20 sources: an index, in bulk"
MIXED_SMALL = "mixture of 2 sources of 4,000 samples, 250 passes: an index, in bulk"
MIXED_MADE = "mixture of 20 sources, a period of 65,536: made"
MIXED_ITERATED = "mixture of 2 sources: an index, iterated"
MIXED_AT = "mixture of 2 sources: an index, at one position after another"
GRAINS_ROUNDS = 4  # Grain's own samplers use as many

try:
    import absl.logging

    absl.logging.set_verbosity(absl.logging.ERROR)  # otherwise Grain warns that jax is missing
    from grain import MapDataset
    from grain.experimental import index_shuffle
except ImportError:
    index_shuffle = MapDataset = None


def goals() -> list[Goal]:
    bytes_a_sample = 40e6 / 10e6
    return [
        Goal(FIRST, Key(FIRST, "headrace"), 350 * SAMPLER_COUNT / 10e6, unit="ms"),
        Goal(PEAK, Key(PEAK, "headrace"), bytes_a_sample * SAMPLER_COUNT * 1.02, unit="bytes"),
        Goal(STREAM_FIRST, Key(STREAM_FIRST, "headrace"), 1000, unit="us"),
        Goal(f"stream: {BULK}", Key(BULK, "headrace"), 20, unit="ns"),
        Goal(MIXED_BULK, Key(MIXED_BULK, "headrace"), 60, unit="ns"),
        Goal(MIXED_MANY, Key(MIXED_MANY, "headrace"), 60, unit="ns"),
        Goal(STEP, Key(STEP, "headrace"), 100, unit="ns"),
    ]


def of_sampler() -> list[Row]:
    found: dict[str, list[dict[str, float]]] = {"torch": [], "headrace": []}
    for _ in range(ROUNDS):
        for library, runs in found.items():
            command = [sys.executable, str(SCRIPT), library, str(SAMPLER_COUNT), str(WORLD_SIZE)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(done.stdout))
    return [
        Row(work, library, 0, scale * statistics.median(run[field] for run in runs), unit)
        for work, field, scale, unit in (
            (FIRST, "first", 1e3, "ms"),
            (PEAK, "peak", 1, "bytes"),
            (KEPT, "kept", 1, "bytes"),
        )
        for library, runs in found.items()
    ]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def take_first() -> float:
    return 1e6 * seconds(lambda: next(iter(Order(STREAM_COUNT, seed=1))))


def read_bulk() -> float:
    order = Order(STREAM_COUNT, seed=1)
    return 1e9 * seconds(lambda: np.asarray(order[5 : 5 + 8 * READ : 8])) / READ


def permute_with_torch() -> float:
    return 1e9 * seconds(lambda: torch.randperm(TABLE_COUNT)) / TABLE_COUNT


def iterate() -> float:
    indices = iter(Order(STREAM_COUNT, seed=1)[: 8 * READ : 8])
    return 1e9 * seconds(lambda: deque(indices, maxlen=0)) / READ


def iterate_list() -> float:
    return 1e9 * seconds(lambda: deque(iter(torch.randperm(READ).tolist()), maxlen=0)) / READ


def read_positions() -> float:
    order = Order(STREAM_COUNT, seed=1)
    return 1e9 * seconds(lambda: deque((order[position] for position in range(READ)), maxlen=0)) / READ


def read_grains_positions() -> float:
    last = STREAM_COUNT - 1
    indices = (index_shuffle(position, last, 1, GRAINS_ROUNDS) for position in range(READ))
    return 1e9 * seconds(lambda: deque(indices, maxlen=0)) / READ


def of_stream() -> list[Row]:
    """Compares with torch's whole permutation, divided by its indices: it has no other way to the first one. Grain's
    shuffle gives one index at a time."""
    grains = {"Grain": read_grains_positions} if index_shuffle else {}
    return [
        *in_turn(STREAM_FIRST, {"headrace": take_first}, "us"),
        *in_turn(BULK, {"torch": permute_with_torch, "headrace": read_bulk}),
        *in_turn(ITERATED, {"torch": iterate_list, **grains, "headrace": iterate}),
        *in_turn(AT_POSITION, {**grains, "headrace": read_positions}),
    ]


def mixture_of(count: int, size: int, **options: int) -> Mixture:
    weights = {"a": 7, "b": 3} if count == 2 else {f"s{number}": 1 + 331 * number for number in range(count)}
    return Mixture(dict.fromkeys(weights, range(size)), weights, seed=1, **options)


def read_mixed(count: int, size: int, **options: int) -> Callable[[], float]:
    mix = mixture_of(count, size, **options)
    part = mix[5 : 5 + 8 * READ : 8] if len(mix) > 9 * READ else mix[:READ]
    return lambda: 1e9 * seconds(lambda: np.asarray(part)) / len(part)


def make_mixed() -> float:
    weights = {f"s{number}": 0.1234567 + number for number in range(20)}
    sources = dict.fromkeys(weights, range(STREAM_COUNT))
    return 1e6 * seconds(lambda: Mixture(sources, weights))


def iterate_mixed() -> float:
    indices = iter(mixture_of(2, STREAM_COUNT)[: 8 * READ : 8])
    return 1e9 * seconds(lambda: deque(indices, maxlen=0)) / READ


def read_mixed_positions() -> float:
    mix = mixture_of(2, STREAM_COUNT)
    return 1e9 * seconds(lambda: deque((mix[position] for position in range(READ // 10)), maxlen=0)) / (READ // 10)


def read_grains_mix() -> float:
    parts = [MapDataset.range(STREAM_COUNT).shuffle(seed=seed) for seed in (1, 2)]
    mixed = MapDataset.mix(parts, weights=[0.7, 0.3])
    return 1e9 * seconds(lambda: deque((mixed[position] for position in range(READ // 10)), maxlen=0)) / (READ // 10)


def of_mixtures() -> list[Row]:
    """Grain's mix gives one sample at a time. Its samples are their numbers, so that nothing is read."""
    grains = {"Grain": read_grains_mix} if MapDataset else {}
    return [
        *in_turn(MIXED_BULK, {"headrace": read_mixed(2, STREAM_COUNT)}),
        *in_turn(MIXED_MANY, {"headrace": read_mixed(20, STREAM_COUNT)}),
        *in_turn(MIXED_SMALL, {"headrace": read_mixed(2, 4000, length=READ)}),
        *in_turn(MIXED_MADE, {"headrace": make_mixed}, "us"),
        *in_turn(MIXED_ITERATED, {"headrace": iterate_mixed}),
        *in_turn(MIXED_AT, {**grains, "headrace": read_mixed_positions}),
    ]


PEER = f"""
import sys
from headrace._ranks.agreement import Agreement, Facts
from headrace._ranks.loader_identity import LoaderIdentity
Agreement(LoaderIdentity(["bench"]), 1, 2).begin_epoch(Facts(*{tuple(FACTS)}))
sys.stdin.read()
"""


def of_steps() -> list[Row]:
    """Measures with another process on the board, which ends when its stdin is closed."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=f"bench {os.getpid()}")
    agreement = Agreement(LoaderIdentity(["bench"]), 0, 2)
    with subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE):
        agreement.begin_epoch(FACTS)
        if "with 1 other" not in agreement.describe():
            raise RuntimeError(f"the ranks did not meet: {agreement.describe()}")

        show_step = agreement.show_step
        assert show_step is not None

        def show() -> float:
            return 1e9 * seconds(lambda: deque(map(show_step, range(STEPS)), maxlen=0)) / STEPS

        return in_turn(STEP, {"headrace": show})


CASES = [Case("sampler", of_sampler), Case("stream", of_stream), Case("mixtures", of_mixtures), Case("steps", of_steps)]


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against("torch"), goals)


if __name__ == "__main__":
    main()
