# SPDX-License-Identifier: Apache-2.0
"""headrace.Plan as the batch sampler of torch's loaders: with workers, without headrace's engine, and with a state."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import pytest
import torch.utils.data
from headrace import Loader, Plan
from headrace.torch import DataLoader, collate_packed
from loaders import only_headrace
from planned import lognormal, texts_and_images
from resumed import Numbers

LENGTHS = lognormal(400)


def plan_of(rank: int = 1, **changes: Any) -> Plan:
    return Plan(LENGTHS, **{"max_sum": 8192, "world_size": 2, "rank": rank, "tail": "exact", **changes})


def loader_of(plan: Plan, kind: Any = DataLoader, **options: Any) -> Any:
    return kind(Numbers(len(LENGTHS)), batch_sampler=plan, **options)


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_batches_of_a_plan(kind: Any, workers: int) -> None:
    plan = plan_of()
    loader = loader_of(plan, kind, num_workers=workers)
    assert len(loader) == len(plan)
    for epoch in range(2):
        plan.set_epoch(epoch)
        assert batches(loader) == list(plan_of(epoch=epoch))


def test_epoch_may_be_set_after_the_iterator_was_made() -> None:
    plan = plan_of()
    iterator = iter(loader_of(plan))
    plan.set_epoch(3)
    assert [batch.tolist() for batch in iterator] == list(plan_of(epoch=3))


@pytest.mark.parametrize("workers", [0, 2])
def test_state_of_a_plan_is_continued_with_other_settings(workers: int) -> None:
    seen: list[int] = []
    state = None
    for settings, world_size, steps in (
        ({}, 2, 3),
        ({"pack": 9000, "max_sum": None}, 3, 2),
        ({"max_sum": 30000}, 1, 999),
    ):
        states = []
        for rank in range(world_size):
            loader = loader_of(plan_of(rank, world_size=world_size, **settings), num_workers=workers)
            if state is not None:
                loader.load_state_dict(state)
            for step, batch in enumerate(loader):
                weights = loader.last.weights.tolist()
                seen += [index for index, weight in zip(batch.tolist(), weights, strict=True) if weight]
                if step + 1 == steps:
                    break
            states.append(loader.state_dict())
        state = states[-1]
    assert sorted(seen) == list(range(len(LENGTHS)))


@only_headrace
def test_batches_that_came_out_of_order_are_continued() -> None:
    loader = loader_of(plan_of(), num_workers=2, in_order=False)
    iterator = iter(loader)
    first = [next(iterator).tolist() for _ in range(4)]
    other = loader_of(plan_of(), num_workers=2, in_order=False)
    other.load_state_dict(loader.state_dict())
    assert sorted(first + batches(other)) == sorted(plan_of())


@only_headrace
def test_frameworks_see_a_sampler_that_is_dealt_already() -> None:
    plan = plan_of()
    sampler = loader_of(plan).sampler
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (2, 1, len(list(sampler)))
    sampler.set_epoch(2)
    assert plan.epoch == sampler.epoch == 2 and plan.sampler is plan


@pytest.mark.parametrize("kind", [pytest.param(DataLoader, marks=only_headrace), Loader])
def test_plan_that_does_not_fit_the_loader_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="a Plan gives batches; pass it as batch_sampler"):
        kind(Numbers(len(LENGTHS)), sampler=plan_of())
    with pytest.raises(ValueError, match="lengths of 400 samples, but the dataset has 399"):
        kind(Numbers(399), batch_sampler=plan_of())
    with pytest.warns(UserWarning, match="the dataset has 401; the others are never read"):
        kind(Numbers(401), batch_sampler=plan_of())


class Posts:
    """Texts whose tokens, and images whose patches, are the number of the sample."""

    def __init__(self, lengths: dict[str, Any]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths["text"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text, patches = (int(self.lengths[name][index]) for name in ("text", "patches"))
        return {"input_ids": torch.full((text,), index), "pixel_values": torch.full((patches, 2), float(index))}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("balance", ["micro_batch", "optimizer_step"])
def test_texts_with_images_are_packed_and_continued(workers: int, balance: str) -> None:
    """On two ranks, and after a few steps on one with other budgets. Each sample has its own tokens and patches."""
    lengths = {name: array // 16 for name, array in texts_and_images(300).items()}
    collate = functools.partial(collate_packed, names=("pixel_values",))

    def loader_of(rank: int, world_size: int, **own: Any) -> Any:
        own = {"cost": {"text": (1, 0), "patches": (64, 1)}, "accumulate": 2, "tail": "exact", **own}
        plan = Plan(lengths, world_size=world_size, rank=rank, balance=balance, **own)
        return DataLoader(Posts(lengths), batch_sampler=plan, collate_fn=collate, num_workers=workers)

    seen: list[int] = []

    def note(loader: Any, batch: dict[str, Any], budget: int) -> None:
        text, patches = batch["cu_seq_lens_q"].diff(), batch["cu_seq_lens_pixel_values"].diff()
        indices = torch.tensor(loader.last.indices)
        assert torch.equal(batch["input_ids"][0], indices.repeat_interleave(text))
        assert torch.equal(batch["pixel_values"][:, 0], indices.repeat_interleave(patches).float())
        assert batch["input_ids"].shape[1] <= budget and len(batch["pixel_values"]) <= budget
        seen.extend(index for index, weight in zip(loader.last.indices, loader.last.weights, strict=True) if weight)

    state = None
    for rank in range(2):
        loader = loader_of(rank, 2, pack={"text": 512, "patches": 512})
        for step, batch in enumerate(loader):
            note(loader, batch, 512)
            if step == 9:
                state = loader.state_dict()
                break
    loader = loader_of(0, 1, pack={"text": 1024, "patches": 1024})
    loader.load_state_dict(state)
    for batch in loader:
        note(loader, batch, 1024)
    assert sorted(seen) == list(range(300))


def test_plan_made_before_the_ranks_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(LENGTHS, max_batch=8)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="made when nothing said that there are several ranks"):
        next(iter(plan))
    with pytest.raises(RuntimeError, match="now this is rank 0 of 2"):
        batches(loader_of(plan))
    assert Plan(LENGTHS, max_batch=8).place.world_size == 2


def _steps(rank: int) -> int:
    return len(list(plan_of(rank)))


def test_plan_is_the_same_in_another_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_steps, [0, 1]) == [len(plan_of())] * 2
