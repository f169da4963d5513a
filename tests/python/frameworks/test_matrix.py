# SPDX-License-Identifier: Apache-2.0
"""Each method of Lightning's Trainer and of transformers' Trainer, and an evaluation with accelerate, with each sampler
of headrace, on two ranks: no sample is lost or counts twice."""

from __future__ import annotations

from collections import Counter

import pytest
from test_epochs import Facts, facts_of

SAMPLES = list(range(13))
METHODS = ("fit", "validate", "test", "predict")
SAMPLERS = ("None", "Order", "DistributedSampler", "per_rank", "per_rank of batches", "Plan")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    found = facts_of("lightning_matrix", tmp_path_factory.mktemp("matrix"))
    return [found["rank0"], found["rank1"]]


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    found = facts_of("trainer_matrix", tmp_path_factory.mktemp("trainers"))
    return [found["trainer0"], found["trainer1"]]


def assert_whole(ranks: list[Facts], name: str, counted: int) -> None:
    one, other = (rank[name] for rank in ranks)
    assert "error" not in one and "error" not in other, (one, other)
    seen = Counter(one["seen"] + other["seen"])
    assert sorted(seen) == SAMPLES and seen.total() <= len(SAMPLES) + 1
    assert one["counted"] + other["counted"] == counted
    assert [one["indices"], other["indices"]] == [one["seen"], other["seen"]]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", METHODS)
def test_lightning_gives_each_sample_once(ranks: list[Facts], method: str, sampler: str) -> None:
    """Lightning's own wrapper around an Order repeats one sample, and nothing says which, except for predict."""
    is_wrapped = sampler == "Order" and method != "predict"
    assert_whole(ranks, f"{method} {sampler}", 14 if is_wrapped else 13)


def test_torchs_loaders_under_lightning_give_each_sample(ranks: list[Facts]) -> None:
    """They have no weights, so a repeat counts."""
    for name, counted in [("fit None", 14), ("fit per_rank", 14), ("predict None", 13), ("predict per_rank", 14)]:
        assert_whole(ranks, f"{name} installed", counted)
    assert_whole(ranks, "predict Plan installed", 13)
    assert "use_distributed_sampler=False" in ranks[0]["fit Plan installed"]["error"]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", ["train", "evaluate", "predict", "accelerate"])
def test_trainer_and_accelerate_give_each_sample_once(trainers: list[Facts], method: str, sampler: str) -> None:
    """accelerate fills the last batches of loaders that it deals itself, and nothing says by which samples."""
    one, other = (rank[f"{method} {sampler}"] for rank in trainers)
    is_filled = sampler in ("None", "Order")
    seen = Counter(one["seen"] + other["seen"])
    assert sorted(seen) == SAMPLES and seen.total() <= len(SAMPLES) + (3 if is_filled else 1)
    assert one["counted"] + other["counted"] == (seen.total() if is_filled else len(SAMPLES))
    if method == "accelerate":
        assert one["gathered"] == other["gathered"] == seen.total()
