# SPDX-License-Identifier: Apache-2.0
"""The ways to form batches by length that bench_plan.py compares with headrace.Plan.

transformers' samplers are its own classes. The algorithms of multipack, axolotl and fairseq, which are not packages
that can be installed for this, are written here from their descriptions, and compiled by numba. Each function returns
batches of indices in the order in which ranks take them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import numba

    compiled: Callable[..., Any] = numba.njit
except ImportError:
    numba = None
    compiled = lambda function: function  # noqa: E731

Batches = list[Any]
HAS_NUMBA = numba is not None


# ---- packing ----


@compiled
def _fill_least(lengths, rows, capacity):  # type: ignore[no-untyped-def]
    """Gives each length, the longest first, to the row with the least tokens. Returns the row of each; the first one is
    -1 if a row has no room."""
    order = np.argsort(lengths)[::-1]
    sums = np.zeros(rows, np.int64)
    row_of = np.empty(len(lengths), np.int64)
    for i in order:
        least = np.argmin(sums)
        sums[least] += lengths[i]
        if sums[least] > capacity:
            row_of[0] = -1
            return row_of
        row_of[i] = least
    return row_of


def multipack(lengths: np.ndarray[Any, Any], world_size: int, capacity: int, seed: int = 0) -> Batches:
    """Multipack V2 (https://github.com/imoneoi/multipack_sampler): a step has as many samples of the shuffled order as
    the longest processing time rule fits into a row for each rank, which a binary search finds."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    shuffled = lengths[order].astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(shuffled)])
    batches: Batches = []
    start = 0
    while True:
        end = int(np.searchsorted(sums, sums[start] + world_size * capacity, "right")) - 1
        low, high = start + 1, end + 1
        while high - low > 1:
            middle = (low + high) // 2
            row_of = _fill_least(shuffled[start:middle], world_size, capacity)
            low, high = (middle, high) if row_of[0] >= 0 else (low, middle)
        if low - start < world_size:
            return batches
        row_of = _fill_least(shuffled[start:low], world_size, capacity)
        batches += [order[start:low][row_of == row] for row in range(world_size)]
        start = low


@compiled
def _first_fit(lengths, capacity, most):  # type: ignore[no-untyped-def]
    """Gives each length, the longest first, to the first row that has room and fewer than `most` samples."""
    order = np.argsort(lengths)[::-1]
    rooms = np.empty(len(lengths), np.int64)
    counts = np.zeros(len(lengths), np.int64)
    row_of = np.empty(len(lengths), np.int64)
    rows = 0
    for i in order:
        row = 0
        while row < rows and (rooms[row] < lengths[i] or counts[row] == most):
            row += 1
        if row == rows:
            rooms[row] = capacity
            rows += 1
        rooms[row] -= lengths[i]
        counts[row] += 1
        row_of[i] = row
    return row_of


def axolotl(lengths: np.ndarray[Any, Any], world_size: int, capacity: int, seed: int = 0) -> Batches:
    """axolotl's sample packing (https://github.com/axolotl-ai-cloud/axolotl): first fit decreasing in groups of 100,000
    samples, with 200 samples a row at most."""
    group, most = 100_000, 200
    order = np.random.default_rng(seed).permutation(len(lengths))
    batches: Batches = []
    for start in range(0, len(order), group):
        part = order[start : start + group]
        row_of = _first_fit(lengths[part].astype(np.int64), capacity, most)
        by_row = part[np.argsort(row_of, kind="stable")]
        batches += np.split(by_row, np.cumsum(np.bincount(row_of))[:-1])
    return batches


# ---- batches with padding ----


@compiled
def _cut(lengths, most):  # type: ignore[no-untyped-def]
    """Returns where batches of sorted lengths begin, so that longest x count is `most` at most."""
    starts = [0]
    longest = 0
    for i in range(len(lengths)):
        longest = max(longest, lengths[i])
        if longest * (i - starts[-1] + 1) > most:
            starts.append(i)
            longest = lengths[i]
    return starts


def fairseq(lengths: np.ndarray[Any, Any], world_size: int, most: int, seed: int = 0) -> Batches:
    """fairseq's batch_by_size (https://github.com/facebookresearch/fairseq) with max_tokens: batches of the sorted
    dataset, which are then shuffled and dealt to the ranks in turn."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    batches = np.split(order, _cut(lengths[order].astype(np.int64), most)[1:])
    return [batches[i] for i in generator.permutation(len(batches))]


def length_grouped(lengths: np.ndarray[Any, Any], world_size: int, size: int, seed: int = 0) -> Batches:
    """transformers' train_sampling_strategy="group_by_length"."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(seed)
    sampler = LengthGroupedSampler(size * world_size, lengths=lengths.tolist(), generator=generator)
    order = np.array(list(sampler))
    return [order[i : i + size] for i in range(0, len(order), size)]


def batch_rebalance(lengths: np.ndarray[Any, Any], world_size: int, size: int, seed: int = 0) -> Batches:
    """transformers' train_sampling_strategy="batch_rebalance". Each rank computes all batches; so does this."""
    import torch
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    sampler = BatchRebalanceSampler(lengths.tolist(), size * world_size, world_size, 1, seed=seed, rank=0)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    batches: Batches = []
    for i in range(sampler.num_global_batches):
        part = order[i * size * world_size : (i + 1) * size * world_size]
        of_ranks = sampler._assign(part, [sampler.lengths[index] for index in part])
        batches += [np.array(rank[0]) for rank in of_ranks]
    return batches


# ---- samples with several lengths ----


def lengths_of_costs(costs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns lengths that cost as much by the formula of batch_rebalance (L + 0.001 L^2) as the samples do, in units
    of a thousand. So that sampler balances what the samples cost, although it knows one length only."""
    found: np.ndarray[Any, Any] = np.maximum((np.sqrt(1 + 4 * 0.001 * costs / 1000) - 1) / 0.002, 1)
    return found.round().astype(np.int64)


def greedy_by_cost(costs: np.ndarray[Any, Any], world_size: int, size: int, seed: int = 0) -> Batches:
    """Sorts the samples of each step by cost, and gives them in turn to the rank that has the least cost so far."""
    order = np.random.default_rng(seed).permutation(len(costs))
    batches: Batches = []
    for start in range(0, len(order) - size * world_size + 1, size * world_size):
        step = order[start : start + size * world_size]
        sums, ranks = np.zeros(world_size), [[] for _ in range(world_size)]
        for sample in step[np.argsort(-costs[step], kind="stable")]:
            least = int(np.argmin(sums))
            sums[least] += costs[sample]
            ranks[least].append(sample)
        batches += ranks
    return batches


def first_fit(lengths: dict[str, np.ndarray[Any, Any]], limits: dict[str, int], seed: int = 0) -> Batches:
    """Sorts groups of 20,000 shuffled samples by their largest share of a limit, and gives each to the first row that
    has room in all limits. Ranks take the rows as they come."""
    shares = np.stack([lengths[name] / limit for name, limit in limits.items()], 1)
    order = np.random.default_rng(seed).permutation(len(shares))
    batches: Batches = []
    for start in range(0, len(order), 20_000):
        part = order[start : start + 20_000]
        part = part[np.argsort(-shares[part].max(1), kind="stable")]
        rooms, rows = np.ones((len(part), shares.shape[1])), []
        for sample in part:
            fits = (rooms[: len(rows) + 1] >= shares[sample] - 1e-12).all(1)
            row = int(np.argmax(fits))
            if row == len(rows):
                rows.append([])
            rooms[row] -= shares[sample]
            rows[row].append(sample)
        batches += rows
    return batches
