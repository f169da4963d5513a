# SPDX-License-Identifier: Apache-2.0
"""Batches that are written past the caches, and by two threads where a worker has two cores to itself."""

from __future__ import annotations

import os
import time
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace import _core, _worker
from loaders import DataLoader, Torch, needs_failpoints, only_headrace
from mishaps import Marks

pytestmark = only_headrace

MIB = 1024 * 1024


class Images:
    """Random bytes, and beside them the seconds that other threads of this process, ended or not, have computed."""

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> tuple[Any, float, int]:
        image = np.random.default_rng(index).integers(0, 256, MIB, np.uint8)
        others_s = time.process_time() - time.thread_time()  # in this order: at most 0, if there were no others
        return image, others_s, len(os.listdir("/proc/self/task"))


class Killed(Images):
    """Its first worker is killed within the copy of its second batch."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def __getitem__(self, index: int) -> tuple[Any, float, int]:
        if index >= 22 and self.marks.first("killed"):
            os.environ["HEADRACE_STOP"] = "batch.leaf:9:3"
        return super().__getitem__(index)


def has_two_cores() -> bool:
    machine = _core.machine()
    return min(machine["core_count"], (machine["cgroup_millicores"] or 2000) // 1000) >= 2


@pytest.mark.parametrize("ranks", ["1", "1000"])
@pytest.mark.parametrize("batch_size", [11, 22])
def test_a_second_thread_writes_and_is_gone_before_the_next_sample(
    ranks: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    own = list(DataLoader(Images(), batch_size, num_workers=1, multiprocessing_context="fork"))
    theirs = list(Torch(Images(), batch_size))
    assert all(torch.equal(mine[0], other[0]) for mine, other in zip(own, theirs, strict=True))
    assert {int(count) for batch in own for count in batch[2]} == {1}
    assert (float(own[-1][1][-1]) > 0) == (ranks == "1" and has_two_cores())


@needs_failpoints
def test_a_worker_that_is_killed_in_the_copy_is_replaced(marks: Marks) -> None:
    loader = headrace.Loader(Killed(marks), 11, num_workers=1, max_restarts=1, multiprocessing_context="fork")
    images = [np.asarray(batch[0]) for batch in loader]
    assert loader.report()["restarts"] == 1
    expected = Images()
    assert [len(batch) for batch in images] == [11] * 4
    for index, image in enumerate(np.concatenate(images)):
        assert np.array_equal(image, expected[index][0])


@pytest.mark.parametrize(
    ("told", "count"),
    [(None, 1), ("", 1), ("8", 8), ("0", 1), ("-1", 1), ("two", 1), ("4294967296", 1), ("9" * 5000, 1), ("٣", 1)],
)
def test_what_the_launcher_says_is_believed_if_it_is_a_number(
    told: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert _worker._local_trainers() == count
