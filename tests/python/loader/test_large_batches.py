# SPDX-License-Identifier: Apache-2.0
"""Batches that are written past the caches, and by two threads where a worker has two cores to itself; the memory of
samples that a dataset makes again."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace import _core
from headrace._loader.worker.batch_maker import count_local_trainers
from loaders import METHODS, DataLoader, Torch, needs_failpoints, only_headrace
from mishaps import Marks
from processes import until

pytestmark = only_headrace

MIB = 1024 * 1024


def image(index: int) -> Any:
    return np.random.default_rng(index).integers(0, 256, MIB, np.uint8)


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Images:
    """Random bytes, together with whether this process has come back to the threads that it began with: one, or those
    that OpenBLAS gives a forked process, too, once it has been used."""

    threads = 0

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> tuple[Any, bool]:
        self.threads = self.threads or count_threads()
        return image(index), until(lambda: count_threads() <= self.threads)  # one that was joined may still be there


class Killed(Images):
    """Its first worker is killed within the copy of its second batch."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def __getitem__(self, index: int) -> tuple[Any, bool]:
        if index >= 22 and self.marks.first("killed"):
            os.environ["HEADRACE_STOP"] = "batch.leaf:9:3"
        return super().__getitem__(index)


class Converted:
    """Images as float32, made again each time, together with the number of pages that this process has got so far."""

    def __init__(self) -> None:
        self.image = image(0)[: 3 * 224 * 224].reshape(3, 224, 224)

    def __len__(self) -> int:
        return 16 * 64

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.image.astype(np.float32), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def usable_cores() -> int:
    machine = _core.machine()
    millicores = machine["cgroup_millicores"]
    return int(machine["core_count"] if millicores is None else min(machine["core_count"], max(millicores // 1000, 1)))


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_with_two_own_cores_writes_with_two_threads(workers: int) -> None:
    """The worker copies large batches with a second thread if it has two cores to itself."""
    cores = usable_cores()
    with contextlib.closing(_core.Loader(workers, 2, True, 64 * MIB)) as loader:
        with contextlib.closing(_core.Port(*loader.open_worker_fds(0))) as port:
            assert port.share_cores(1) == min(max(cores // workers, 1), 2)
            assert [port.share_cores(count) for count in (cores + 1, 2**31, 2**32 - 1)] == [1, 1, 1]
            for bad in (0, -1, 2**32):
                with pytest.raises(ValueError, match=f"the number of trainers cannot be {bad}; give 1 or more"):
                    port.share_cores(bad)


@pytest.mark.parametrize("batch_size", [11, 22])
def test_large_batches_are_the_same_and_the_dataset_runs_alone(batch_size: int) -> None:
    own = list(DataLoader(Images(), batch_size, num_workers=1, multiprocessing_context="fork"))
    theirs = list(Torch([image(index) for index in range(len(Images()))], batch_size))
    assert all(torch.equal(mine[0], other) for mine, other in zip(own, theirs, strict=True))
    assert all(batch[1].all() for batch in own)


@needs_failpoints
def test_a_worker_that_is_killed_in_the_copy_is_replaced(marks: Marks) -> None:
    loader = headrace.Loader(Killed(marks), 11, num_workers=1, max_restarts=1, multiprocessing_context="fork")
    images = [np.asarray(batch[0]) for batch in loader]
    assert loader.report()["restarts"] == 1
    assert [len(batch) for batch in images] == [11] * 4
    assert all(np.array_equal(found, image(index)) for index, found in enumerate(np.concatenate(images)))


@pytest.mark.parametrize(
    ("world_size", "count"),
    [(None, 1), ("", 1), ("8", 8), ("0", 1), ("-1", 1), ("two", 1), ("4294967296", 1), ("9" * 5000, 1), ("٣", 1)],
)
def test_local_world_size_is_used_if_it_is_a_number(
    world_size: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", world_size)
    assert count_local_trainers() == count


IS_CHOSEN = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"))


def stacked(samples: list[Any]) -> list[Any]:
    return [np.stack(column) for column in zip(*samples, strict=True)]


def keep_nothing(_: int) -> None:
    M_MMAP_THRESHOLD = -3  # malloc.h: each sample is mapped, and unmapped when it is freed, whatever lies next to it
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 * 1024)
    PR_SET_THP_DISABLE = 41  # linux/prctl.h: and each page of it has its own fault
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def faults_of(size: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with mmap.mmap(-1, size) as memory:
        memory[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(IS_CHOSEN, reason="malloc is as the environment says")
@pytest.mark.parametrize(
    ("method", "collate", "init"),
    # a forked worker's heap has what is free in that of the tests: room for a batch, perhaps
    [*((method, None, None) for method in METHODS), ("spawn", stacked, None), ("spawn", None, keep_nothing)],
    ids=[*METHODS, "a block of 37 MiB", "not wanted"],
)
def test_sample_memory_is_not_faulted_in_again_per_batch(method: str, collate: Any, init: Any) -> None:
    if (_core.machine()["spare_bytes"] or 0) < 2 * 1024 * MIB:
        pytest.skip("little memory: malloc keeps an eighth, of 64 MiB at least")
    if not faults_of(MIB):
        pytest.skip("faults are not counted here")
    if collate is not None and not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("an older glibc: large blocks are not kept")
    options = {"num_workers": 1, "multiprocessing_context": method, "worker_init_fn": init, "collate_fn": collate}
    with contextlib.closing(iter(headrace.Loader(Converted(), 64, **options))) as batches:
        given = [int(pages[-1]) for _, pages in batches]
    pages = 64 * 3 * 224 * 224 * 4 // 4096
    faulted = given[-1] - given[-7]  # the first batches fault in the arena's memory, too
    assert faulted < 6 * pages / 10 if init is None else faulted > 6 * pages / 2


class Tokens:
    """Many numbers, the same objects each time, and how many pages this process has been given so far."""

    def __init__(self) -> None:
        self.tokens = list(range(600_000))

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.tokens, resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_the_memory_of_a_tree_is_kept_for_the_next_batch() -> None:
    if not faults_of(MIB):
        pytest.skip("faults are not counted here")
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "worker_init_fn": keep_nothing}
    with contextlib.closing(iter(headrace.Loader(Tokens(), None, **options))) as batches:
        given = [faults for _, faults in batches]
    faulted = given[-1] - given[-7]
    assert faulted < 6 * 100, "a tree takes 8 bytes or more for each number, in 1171 pages"
