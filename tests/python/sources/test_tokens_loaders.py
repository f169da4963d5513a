# SPDX-License-Identifier: Apache-2.0
"""sources.Tokens with headrace.Loader, headrace.torch.DataLoader and torch's own loader, with workers of each kind."""

from __future__ import annotations

import pathlib
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from headrace import sources
from token_files import write_headless, write_megatron

METHODS = ["fork", "spawn", "forkserver"]


def open_tokens(folder: pathlib.Path) -> sources.Tokens:
    for number in range(3):
        write_headless(folder / f"{number}.bin", np.arange(1000 * number, 1000 * number + 200))
    return sources.Tokens(f"{folder}/{{0..2}}.bin", length=8, stride=4, labels=True)


def wanted(source: sources.Tokens) -> list[Any]:
    return [[x.tolist(), y.tolist()] for x, y in source]


def samples_of(batches: Any) -> list[Any]:
    return [[x.tolist(), y.tolist()] for xs, ys in batches for x, y in zip(xs, ys, strict=True)]


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_each_kind_read_the_same_samples(tmp_path: pathlib.Path, method: str) -> None:
    found = open_tokens(tmp_path)
    loader = headrace.Loader(found, 16, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert samples_of(batches) == wanted(found)
    assert batches[0][0].dtype == np.int64 and batches[0][0].shape == (16, 8)


@pytest.mark.parametrize("loader", [headrace.torch.DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loaders_give_tensors(tmp_path: pathlib.Path, loader: Any, workers: int) -> None:
    found = open_tokens(tmp_path)
    torch.manual_seed(1)
    batches = list(loader(found, 16, shuffle=True, num_workers=workers))
    assert all(part.dtype == torch.int64 for batch in batches for part in batch)
    assert sorted(samples_of(batches)) == sorted(wanted(found))
    torch.manual_seed(1)
    assert samples_of(batches) == samples_of(torch.utils.data.DataLoader(found, 16, shuffle=True))


def test_torch_datasets_over_tokens(tmp_path: pathlib.Path) -> None:
    found: Any = open_tokens(tmp_path)
    subset = torch.utils.data.Subset(found, [5, -1, 5])
    joined = torch.utils.data.ConcatDataset([subset, found])
    batches = list(headrace.torch.DataLoader(joined, 7, num_workers=1))
    every = wanted(found)
    assert samples_of(batches) == [every[5], every[-1], every[5], *every]


def test_lengths_plan_packed_rows(tmp_path: pathlib.Path) -> None:
    """Documents of Megatron's files and of separators, by ds.lengths."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 100, rng.integers(1, 60)).tolist() for _ in range(100)]
    prefix = write_megatron(tmp_path / "a", [[one[: len(one) // 2], one[len(one) // 2 :]] for one in documents])
    headless = write_headless(tmp_path / "b.bin", [token for one in documents for token in [*one[:-1], 0]])
    for found in (sources.Tokens(prefix, documents=True), sources.Tokens(headless, separator=0)):
        plan = headrace.Plan(found.lengths, pack=128, seed=3)
        collate = headrace.torch.collate_packed
        rows = list(headrace.torch.DataLoader(found, batch_sampler=plan, collate_fn=collate, num_workers=1))
        total = sum(row["input_ids"].numel() for row in rows)
        assert total == sum(map(len, documents)) and all(row["input_ids"].numel() <= 128 for row in rows)


def test_state_goes_on_in_the_middle(tmp_path: pathlib.Path) -> None:
    found = open_tokens(tmp_path)
    loader = headrace.torch.DataLoader(found, 16, shuffle=True, seed=3, num_workers=1)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    rest = list(batches)
    again = headrace.torch.DataLoader(found, 16, shuffle=True, seed=3, num_workers=0)
    again.load_state_dict(state)
    assert samples_of(again) == samples_of(rest)
    assert sorted(samples_of([*first, *rest])) == sorted(wanted(found))


def test_bad_token_is_skipped_and_named(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", [*range(30), 999, *range(9)])
    found = sources.Tokens(path, length=8, vocab_size=100)
    loader = headrace.Loader(found, 2, num_workers=1, on_bad_sample="skip")
    with pytest.warns(UserWarning, match=r"a\.bin has token 999 at byte 60"):
        batches = list(loader)
    assert [row.tolist() for batch in batches for row in batch] == [found[i].tolist() for i in (0, 1, 2, 4)][
        : len(found)
    ]


def test_frozen_attributes_and_rng_leave_tokens_alone(tmp_path: pathlib.Path) -> None:
    found = open_tokens(tmp_path)
    loader = headrace.Loader(found, 16, num_workers=1, freeze=True, rng="sample", seed=1)
    assert samples_of(loader) == wanted(found)
