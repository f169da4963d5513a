# SPDX-License-Identifier: Apache-2.0
"""Sources with what loaders have for all datasets: states, ranks, plans, random numbers, cache, bad samples, replay."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import subprocess
import sysconfig
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import sources
from headrace.torch import DataLoader, per_rank
from loaders import only_headrace
from rank_scripts import run_ranks
from token_files import write_headless
from torch.utils.data import RandomSampler

pytestmark = only_headrace
COUNT, LENGTH = 60, 4
BOTH = pytest.mark.parametrize("kind", ["tokens", "arrays"])
HERE_AND_WORKER = pytest.mark.parametrize("workers", [0, 1])


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Callable[[str], Any]:
    """Makes a source of COUNT samples, of which indices_of() knows the indices."""

    def source(kind: str) -> Any:
        if kind == "arrays":
            return sources.Arrays(np.arange(COUNT) * LENGTH, np.random.default_rng(0).random((COUNT, 3)))
        path = write_headless(tmp_path / "train.bin", np.arange(COUNT * LENGTH + 1))
        return sources.Tokens(path, length=LENGTH, labels=True)

    return source


def indices_of(batches: Any) -> list[int]:
    """Returns the indices of the samples of batches."""
    found = []
    for x, _ in batches:
        first = x if x.ndim == 1 else x[:, 0]
        found += [int(one) // LENGTH for one in first]
    return found


def values(batches: Any) -> Any:
    return [[np.asarray(part).tolist() for part in batch] for batch in batches]


# ---- states and ranks ----


@BOTH
@HERE_AND_WORKER
def test_a_state_goes_on_with_other_ranks(make: Any, kind: str, workers: int) -> None:
    """Two ranks take 3 batches each, and three ranks read the rest."""
    source = make(kind)

    def rank_of(rank: int, world_size: int) -> Any:
        part = per_rank(RandomSampler(source), seed=1, rank=rank, num_replicas=world_size)
        return DataLoader(source, 5, sampler=part, num_workers=workers)

    first = [rank_of(rank, 2) for rank in range(2)]
    iterators = [iter(loader) for loader in first]
    seen = indices_of([next(one) for one in iterators for _ in range(3)])
    states = [loader.state_dict() for loader in first]
    rest = []
    for rank in range(3):
        loader = rank_of(rank, 3)
        loader.load_state_dict(states[0])
        assert loader.report()["rows"] == type(source).__name__
        rest += indices_of(loader)
    assert len(seen) == 30 and sorted(seen + rest) == list(range(COUNT))


@BOTH
def test_per_rank_gives_each_rank_its_part(make: Any, kind: str) -> None:
    source = make(kind)
    parts = [per_rank(RandomSampler(source), seed=1, rank=rank, num_replicas=4) for rank in range(4)]
    found = [indices_of(DataLoader(source, 4, sampler=part)) for part in parts]
    assert [len(part) for part in found] == [15] * 4 and sorted(itertools.chain(*found)) == list(range(COUNT))


def test_ranks_compare_their_sources(tmp_path: pathlib.Path) -> None:
    """They have the same file; then rank 1 has a shorter one, which is named; then another seed."""
    for name, count in (("0.bin", 81), ("1.bin", 65)):
        write_headless(tmp_path / name, np.arange(count))
    code = f"""
import torch, warnings
from headrace import sources
from headrace.torch import DataLoader, per_rank
from torch.utils.data import RandomSampler
store = torch.distributed.FileStore(str(SHARED / "store"), WORLD_SIZE)
torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD_SIZE)

def loader(number, seed):
    source = sources.Tokens(f"{tmp_path}/{{number}}.bin", length=4, labels=True)
    return DataLoader(source, 2, sampler=per_rank(RandomSampler(source), seed=seed))

attempt(list, loader(0, 1))
torch.distributed.barrier()
with warnings.catch_warnings(record=True) as caught:
    next(iter(loader(RANK, 1)))
torch.distributed.barrier()
print(*(str(one.message) for one in caught))
attempt(list, loader(0, 1 + RANK))
meet("end")
os._exit(0)
"""
    for printed in run_ranks(tmp_path, 2, code):
        fine, warned, raised = printed.splitlines()
        assert fine == "fine"
        assert not warned or "rank 0 has a dataset of 20 samples, rank 1 has 16" in warned
        assert "rank 0 has the seed 1, rank 1 has 2" in raised


# ---- plans ----


@HERE_AND_WORKER
def test_a_plan_of_lengths_goes_on_with_other_ranks(tmp_path: pathlib.Path, workers: int) -> None:
    """Documents are packed for two ranks, then what is left for three."""
    lengths = [5 + number % 20 for number in range(COUNT)]
    tokens = [[number + 1] * (length - 1) + [0] for number, length in enumerate(lengths)]
    path = write_headless(tmp_path / "documents.bin", np.concatenate(tokens))
    source = sources.Tokens(path, separator=0)
    assert source.lengths is not None and source.lengths.tolist() == lengths

    def rank_of(rank: int, world_size: int) -> Any:
        plan = headrace.Plan(source.lengths, pack=64, seed=1, rank=rank, world_size=world_size, tail="exact")
        collate = headrace.torch.collate_packed
        return DataLoader(source, batch_sampler=plan, collate_fn=collate, num_workers=workers)

    def documents(loader: Any, batch: Any) -> list[int]:
        assert batch["input_ids"].numel() <= 64
        weights = loader.last.weights.tolist()
        ids = (batch["input_ids"][0][start].item() - 1 for start in batch["cu_seq_lens_q"][:-1])
        return [number for number, weight in zip(ids, weights, strict=True) if weight]

    first = [rank_of(rank, 2) for rank in range(2)]
    seen = []
    for loader in first:
        batches = iter(loader)
        seen += [number for _ in range(3) for number in documents(loader, next(batches))]
    state = first[0].state_dict()
    for rank in range(3):
        loader = rank_of(rank, 3)
        loader.load_state_dict(state)
        seen += [number for batch in loader for number in documents(loader, batch)]
    assert sorted(seen) == list(range(COUNT))


# ---- options of loaders ----


@BOTH
@HERE_AND_WORKER
def test_seeds_for_each_sample_change_nothing(make: Any, kind: str, workers: int) -> None:
    """They leave the random numbers of this process as they are, too, and batches are gathered as without them."""
    source = make(kind)
    plain = values(DataLoader(source, 8))
    state = random.getstate()
    for loader in (
        DataLoader(source, 8, rng="sample", seed=3, num_workers=workers),
        headrace.Loader(source, 8, rng="sample", seed=3, num_workers=workers),
    ):
        assert values(loader) == plain
        assert loader.report()["rows"] == type(source).__name__
    assert random.getstate() == state


@BOTH
@pytest.mark.parametrize("loader", [DataLoader, headrace.Loader])
def test_the_cache_is_left_out_with_a_word(make: Any, kind: str, loader: Any) -> None:
    source = make(kind)
    with pytest.warns(UserWarning, match=rf"option cache is left out for a {type(source).__name__}, because"):
        made = loader(source, 8, cache="auto", num_workers=1)
        assert indices_of(made) == list(range(COUNT))


@HERE_AND_WORKER
@pytest.mark.parametrize("loader", [DataLoader, headrace.Loader])
def test_samples_of_a_truncated_file_are_skipped(tmp_path: pathlib.Path, loader: Any, workers: int) -> None:
    """The second of two files is truncated in the middle of the epoch. Batches have samples of both."""
    half = COUNT // 2
    for name, first in (("0.bin", 0), ("1.bin", half * LENGTH)):
        write_headless(tmp_path / name, np.arange(first, first + half * LENGTH + 1))
    source = sources.Tokens(f"{tmp_path}/{{0,1}}.bin", length=LENGTH, labels=True)
    order = [half * (number % 2) + number // 2 for number in range(COUNT)]
    made = loader(source, 4, sampler=order, on_bad_sample="skip", num_workers=workers)
    batches = iter(made)
    seen = [next(batches)]
    os.truncate(tmp_path / "1.bin", half * LENGTH)
    with pytest.warns(UserWarning, match=r"1\.bin was changed"):
        seen += list(batches)
    bad = [one.index for one in made.report()["bad_samples"]]
    found = indices_of(seen)
    assert found == [index for index in order if index not in bad] and found[:4] == order[:4]
    assert bad and all(index >= half for index in bad)


@HERE_AND_WORKER
def test_a_truncated_file_ends_the_epoch_with_its_name(make: Any, workers: int) -> None:
    source = make("tokens")
    batches = iter(DataLoader(source, 4, num_workers=workers))
    next(batches)
    os.truncate(source.report()["files"][0]["path"], 2 * (COUNT // 2 * LENGTH + 1))
    with pytest.raises(OSError, match=r"train\.bin"):
        list(batches)


# ---- replay ----


def test_replay_makes_a_sample_of_a_source(make: Any, tmp_path: pathlib.Path) -> None:
    make("tokens")
    (tmp_path / "train.py").write_text(
        "import numpy as np\n"
        "from headrace import sources\n"
        "tokens = sources.Tokens('train.bin', length=4, vocab_size=100)\n"
        "arrays = sources.Arrays(np.arange(5), np.zeros((5, 2)))\n"
    )
    program = os.path.join(sysconfig.get_path("scripts"), "headrace")

    def replay(*words: str) -> Any:
        return subprocess.run([program, "replay", *words], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    fine = replay("train.py:arrays", "3")
    assert fine.returncode == 0 and "3" in fine.stdout, fine
    bad = replay("train.py:tokens", "40")
    assert bad.returncode != 0 and "train.bin has token 160 at byte 320" in bad.stderr + bad.stdout, bad
