# SPDX-License-Identifier: Apache-2.0
"""sources.Lines and Jsonl with the loaders: workers of each kind, states, ranks, plans, random numbers, the cache."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from typing import Any

import headrace
import headrace.torch
import pytest
import torch
from headrace import sources
from headrace.torch import DataLoader, per_rank
from loaders import only_headrace
from torch.utils.data import RandomSampler

pytestmark = only_headrace
METHODS = ["fork", "spawn", "forkserver"]
HERE_AND_WORKER = pytest.mark.parametrize("workers", [0, 1])
COUNT = 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def open_rows(tmp_path: pathlib.Path) -> Any:
    """Three files; sample i is {"id": i, "text": ...}, and the files have blank lines."""
    for part in range(3):
        rows = (json.dumps({"id": i, "text": "x" * (i % 7)}) for i in range(20 * part, 20 * part + 20))
        (tmp_path / f"{part}.jsonl").write_text("\n\n".join(rows))
    return sources.Jsonl(f"{tmp_path}/*.jsonl")


def ids_of(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in batch["id"]]


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_each_kind_read_the_same_samples(tmp_path: pathlib.Path, method: str) -> None:
    source = open_rows(tmp_path)
    loader = headrace.Loader(source, 16, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert ids_of(batches) == list(range(COUNT))
    assert batches[0]["text"][:8] == ["x" * (i % 7) for i in range(8)]


@pytest.mark.parametrize("loader", [DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loaders_shuffle_lines(tmp_path: pathlib.Path, loader: Any, workers: int) -> None:
    source = open_rows(tmp_path)
    torch.manual_seed(1)
    batches = list(loader(source, 16, shuffle=True, num_workers=workers))
    assert isinstance(batches[0]["id"], torch.Tensor) and sorted(ids_of(batches)) == list(range(COUNT))
    torch.manual_seed(1)
    assert ids_of(batches) == ids_of(torch.utils.data.DataLoader(source, 16, shuffle=True))


@HERE_AND_WORKER
def test_a_state_goes_on_with_other_ranks(tmp_path: pathlib.Path, workers: int) -> None:
    """Two ranks take 3 batches each, and three ranks read the rest."""
    source = open_rows(tmp_path)

    def rank_of(rank: int, world_size: int) -> Any:
        part = per_rank(RandomSampler(source), seed=1, rank=rank, num_replicas=world_size)
        return DataLoader(source, 5, sampler=part, num_workers=workers)

    first = [rank_of(rank, 2) for rank in range(2)]
    iterators = [iter(loader) for loader in first]
    seen = ids_of(next(one) for one in iterators for _ in range(3))
    state = first[0].state_dict()
    rest = []
    for rank in range(3):
        loader = rank_of(rank, 3)
        loader.load_state_dict(state)
        rest += ids_of(loader)
    assert len(seen) == 30 and sorted(seen + rest) == list(range(COUNT))


def test_per_rank_gives_each_rank_its_part(tmp_path: pathlib.Path) -> None:
    source = open_rows(tmp_path)
    parts = [per_rank(RandomSampler(source), seed=1, rank=rank, num_replicas=4) for rank in range(4)]
    found = [ids_of(DataLoader(source, 4, sampler=part)) for part in parts]
    assert [len(part) for part in found] == [15] * 4 and sorted(itertools.chain(*found)) == list(range(COUNT))


def test_lengths_plan_batches_of_bytes(tmp_path: pathlib.Path) -> None:
    source = open_rows(tmp_path)
    plan = headrace.Plan(source.lengths, max_padded=200, seed=3)
    batches = list(DataLoader(source, batch_sampler=plan, num_workers=1))
    assert sorted(ids_of(batches)) == list(range(COUNT))
    for batch in batches:
        longest = max(source.lengths[int(one)] for one in batch["id"])
        assert longest * len(batch["id"]) <= 200


@HERE_AND_WORKER
@pytest.mark.parametrize("loader", [DataLoader, headrace.Loader])
def test_bad_lines_are_skipped_and_replaced(tmp_path: pathlib.Path, loader: Any, workers: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' if i != 7 else '{"id": 7\n' for i in range(12)))
    found = sources.Jsonl(path)
    with pytest.warns(UserWarning, match=r"line 8 of /.*bad\.jsonl is no JSON: Expecting ',' delimiter, at byte 78"):
        assert ids_of(loader(found, 4, on_bad_sample="skip", num_workers=workers)) == [*range(7), *range(8, 12)]
    with pytest.warns(UserWarning, match=r"line 8 of /.*bad\.jsonl"):
        refilled = loader(found, 4, on_bad_sample="refill", num_workers=workers, sampler=range(11))
        assert 7 not in ids_of(refilled)
    with pytest.raises(ValueError, match=r"line 8 of /.*bad\.jsonl"):
        list(loader(found, 4, num_workers=workers))


def add_number(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "drawn": random.random()}


@pytest.mark.parametrize("loader", [DataLoader, headrace.Loader])
def test_seeds_for_each_sample_reach_the_transform(tmp_path: pathlib.Path, loader: Any) -> None:
    """Alike for each number of workers."""
    source = open_rows(tmp_path)
    drawing = sources.Jsonl([file["path"] for file in source.report()["files"]], transform=add_number)

    def drawn(workers: int) -> list[float]:
        made = loader(drawing, 8, rng="sample", seed=3, num_workers=workers)
        return [float(one) for batch in made for one in batch["drawn"]]

    assert drawn(0) == drawn(2) and len(set(drawn(0))) == COUNT


def test_samples_are_kept_in_the_cache(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are shared with other jobs: their name says which files and lines they are made from."""
    source = open_rows(tmp_path)
    loader = DataLoader(source, 8, cache="8M", num_workers=1)
    assert ids_of(loader) == ids_of(loader) == list(range(COUNT))
    cached = headrace.cache_samples(source, "8M")
    assert [cached[i]["id"] for i in range(COUNT)] == list(range(COUNT))
    assert "cannot be compared" not in capfd.readouterr().err


def test_frozen_attributes_leave_lines_alone(tmp_path: pathlib.Path) -> None:
    source = open_rows(tmp_path)
    assert ids_of(headrace.Loader(source, 8, num_workers=1, freeze=True)) == list(range(COUNT))


def test_torch_datasets_over_lines(tmp_path: pathlib.Path) -> None:
    source = open_rows(tmp_path)
    subset = torch.utils.data.Subset(source, [5, -1, 5])
    joined: Any = torch.utils.data.ConcatDataset([subset, source])
    assert ids_of(DataLoader(joined, 7, num_workers=1)) == [5, COUNT - 1, 5, *range(COUNT)]
