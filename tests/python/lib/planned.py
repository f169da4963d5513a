# SPDX-License-Identifier: Apache-2.0
"""Settings of plans for hypothesis, and checks of what a plan gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import headrace
import numpy as np
from hypothesis import strategies as st

Batches = list[list[list[int]]]  # of each step, the batches of all ranks

LENGTHS = st.one_of(
    st.lists(st.integers(0, 400), max_size=300),
    st.lists(st.sampled_from([0, 1, 99, 100, 101, 220, 400]), max_size=300),
    st.builds(lambda length, count: [length] * count, st.integers(0, 400), st.integers(0, 300)),
)


@st.composite
def ways(draw: st.DrawFn) -> dict[str, Any]:
    """Draws the settings that bound batches."""
    way = draw(st.sampled_from(["limits", "buckets", "pack"]))
    limit = st.integers(1, 3000)
    if way == "buckets":
        ends = sorted(draw(st.sets(st.integers(0, 400), min_size=1, max_size=3)))
        sizes = sorted(draw(st.lists(st.integers(1, 9), min_size=len(ends) + 1, max_size=len(ends) + 1)), reverse=True)
        pairs: list[tuple[int | None, int]] = list(zip(ends, sizes, strict=False))
        return {"buckets": pairs + ([(None, sizes[-1])] if draw(st.booleans()) else [])}
    if way == "pack":
        found = {"pack": draw(limit), "max_batch": draw(st.none() | st.integers(1, 9))}
    else:
        found = {name: draw(st.none() | limit) for name in ("max_sum", "max_padded")}
        found["max_batch"] = draw(
            st.integers(1, 30) if found == dict.fromkeys(found) else st.none() | st.integers(1, 30)
        )
    return {**found, "window": draw(st.none() | st.integers(1, 200))}


@st.composite
def plan_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Draws settings of a plan that are the same on all ranks, except for the number of ranks, seed and epoch."""
    return {
        **draw(ways()),
        "accumulate": draw(st.integers(1, 3)),
        "tail": draw(st.sampled_from(["pad", "drop", "exact"])),
        "oversized": "alone",
        "cost_quadratic": draw(st.integers(0, 1)),
    }


# ---- several lengths ----

NAMES = ("audio", "patches", "text")
Several = dict[str, list[int]]


@st.composite
def several_lengths(draw: st.DrawFn) -> Several:
    """Draws the lengths of samples by two or three names. Every third sample has no patches."""
    names, count = NAMES[draw(st.integers(0, 1)) :], draw(st.integers(0, 250))
    seed, longest = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0, 1, 50, 400]))
    drawn = np.random.default_rng(seed)
    found = {name: (drawn.random(count) * drawn.integers(0, longest + 1, count)).astype(int).tolist() for name in names}
    found["patches"] = [0 if at % 3 == 0 else one for at, one in enumerate(found["patches"])]
    return found


@st.composite
def several_settings(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Any]:
    """Draws settings of a plan with several lengths, as plan_settings does."""

    def limits() -> dict[str, int]:
        some = draw(st.sets(st.sampled_from(names), min_size=1))
        return {name: draw(st.integers(1, 3000)) for name in some}

    way = draw(st.sampled_from(["pack", "max_sum", "max_padded", "both", "max_batch"]))
    found: dict[str, Any] = {
        "max_batch": draw(st.integers(1, 30) if way == "max_batch" else st.none() | st.integers(1, 9))
    }
    if way in ("pack", "max_sum", "max_padded"):
        found[way] = limits()
    if way == "both":
        found |= {"max_sum": limits(), "max_padded": limits()}
    return {
        **found,
        "window": draw(st.none() | st.integers(1, 200)),
        "cost": draw(st.none() | st.just({names[0]: (1, 0), names[-1]: (64, 1)})),
        "accumulate": draw(st.integers(1, 3)),
        "balance": draw(st.sampled_from(["micro_batch", "optimizer_step"])),
        "tail": draw(st.sampled_from(["pad", "drop", "exact"])),
        "oversized": "alone",
    }


def assert_several_limits(lengths: Several, settings: dict[str, Any], batch: Sequence[int]) -> None:
    """Asserts what assert_limits does, for each of several lengths."""
    for name, own in lengths.items():
        limits = {way: (settings.get(way) or {}).get(name) for way in ("max_sum", "max_padded", "pack")}
        assert_limits(own, {**limits, "max_batch": settings.get("max_batch")}, batch)


def texts_and_images(count: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the tokens of lognormal texts, and the patches of up to eight images with each."""
    drawn = np.random.default_rng(seed)
    text = np.clip(drawn.lognormal(5.5, 1, count), 16, 8192).astype(np.int32)
    images, sizes = drawn.integers(0, 9, count), drawn.integers(256, 1025, (count, 8))
    return {"text": text, "patches": (sizes * (np.arange(8) < images[:, None])).sum(1).astype(np.int32)}


def batches_of(plan: headrace.Plan) -> Batches:
    """Returns the batches of all ranks, and asserts that these have equally many."""
    ranks = [list(plan.rank(rank)) for rank in range(plan.place.world_size)]
    assert [len(one) for one in ranks] == [len(plan)] * len(ranks)
    return [list(step) for step in zip(*ranks, strict=True)]


def samples_of(batches: Batches) -> list[int]:
    return [sample for step in batches for batch in step for sample in batch]


def assert_limits(lengths: Sequence[int], settings: dict[str, Any], batch: Sequence[int]) -> None:
    """Asserts that a batch is not empty and keeps the limits, if it is not a single sample."""
    own = [lengths[sample] for sample in batch]
    assert own
    if len(own) == 1:
        return
    assert sum(own) <= (settings.get("max_sum") or settings.get("pack") or sum(own))
    assert max(own) * len(own) <= (settings.get("max_padded") or max(own) * len(own))
    assert len(own) <= (settings.get("max_batch") or len(own))
    if settings.get("buckets"):
        fitting = [size for end, size in settings["buckets"] if end is None or max(own) <= end]
        assert len(own) <= (fitting or [1])[0]


def assert_once(samples: list[int], n: int, tail: str, most_missing: int, most_repeats: int) -> None:
    """Asserts that each sample comes once, apart from what the tail permits."""
    counts = Counter(samples)
    missing, repeats = n - len(counts), len(samples) - len(counts)
    assert all(0 <= sample < n for sample in counts)
    assert missing <= (most_missing if tail == "drop" else 0)
    assert repeats <= (0 if tail == "drop" else most_repeats)


def lognormal(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns lengths as those of texts: many short ones, and a few very long ones."""
    drawn = np.random.default_rng(seed).lognormal(5.5, 1, count)
    return np.clip(drawn, 16, 8192).astype(np.int32)
