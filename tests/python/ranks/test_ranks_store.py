# SPDX-License-Identifier: Apache-2.0
"""Ranks that share no memory meet in torch.distributed's store: gloo groups on the loopback interface."""

from __future__ import annotations

import pathlib
import socket

import pytest
from headrace.torch._ranks import store
from loaders import needs_failpoints, only_headrace
from rank_scripts import environments, run_ranks, started

pytestmark = only_headrace

OFF = (
    "; if these loaders are not meant to be equal, give them compare_ranks=False, or set HEADRACE_COMPARE_RANKS=0 "
    "(headrace help ranks-disagree)"
)
GROUP = """
import datetime
import torch.distributed as dist
import headrace.torch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=100))

def timed(call, *arguments):
    start = time.monotonic()
    attempt(call, *arguments)
    return time.monotonic() - start
"""
END = """
dist.barrier()
dist.destroy_process_group()
"""
WITHOUT_BOARD = """
one = agree()
attempt(one.begin_epoch, facts(78))
print(one.describe())
attempt(one.begin_epoch, facts(77 + RANK, 1, 990 + RANK))
attempt(agree("epoch.py:1").begin_epoch, facts(epoch=RANK))
alone = agree("alone.py:1")
if RANK == 0:  # the other rank does not have this loader
    assert 2 <= timed(alone.begin_epoch, facts(1)) < 20
    assert timed(alone.begin_epoch, facts(2, 1)) < 1
dist.barrier()
if RANK == 1:  # it is late
    assert timed(alone.begin_epoch, facts(1)) < 20
    attempt(alone.begin_epoch, facts(3, 1))
dist.barrier()
for epoch in range(100):
    one.begin_epoch(facts(78, epoch))
keys = dist.distributed_c10d._get_default_store().num_keys()
dist.barrier()
for epoch in range(100, 200):
    one.begin_epoch(facts(78, epoch))
dist.barrier()
print(dist.distributed_c10d._get_default_store().num_keys() <= keys + 4)
"""


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


@needs_failpoints
def test_ranks_without_shared_memory_disagree_by_the_store(tmp_path: pathlib.Path) -> None:
    """One rank per machine: no board, equal ranks, unequal ones, one that does not come, and one that is late."""
    code = GROUP + WITHOUT_BOARD + END
    first, second = run_ranks(tmp_path, 2, code, MASTER_PORT=free_port(), HEADRACE_FAIL="board:EPERM")
    start = [
        "fine",
        "board: a failpoint turns it off; 2 of 2 processes are in the store of torch.distributed",
        "headrace: loader at train.py:12, epoch 1: rank 0 has 77 batches, rank 1 has 78 (lengths 990, 991); give all "
        f"ranks the same number of batches, for example with headrace.torch.per_rank{OFF}",
        "headrace: loader at epoch.py:1, at the start of an epoch: rank 0 is in epoch 0, rank 1 is in epoch 1; call "
        f"sampler.set_epoch(epoch) in every rank before it iterates over the loader{OFF}",
    ]
    assert first.splitlines() == [*start, "fine", "fine", "True"]
    late = "headrace: loader at alone.py:1, epoch 1: rank 0 has 2 batches, rank 1 has 3; give all ranks"
    lines = second.splitlines()
    assert lines[:5] == [*start, "fine"] and lines[5].startswith(late) and lines[6:] == ["True"]


def test_two_machines_with_two_ranks_each_disagree(tmp_path: pathlib.Path) -> None:
    """Each machine has a board of its own, because it has another name for the address of the job."""
    code = (
        GROUP
        + """
one = agree()
attempt(one.begin_epoch, facts(78))
print(one.describe())
attempt(one.begin_epoch, facts(77 if RANK == 3 else 78, 1))
attempt(one.begin_epoch, facts(77 if RANK < 2 else 78, 2))
"""
        + END
    )
    ranks = environments(tmp_path, 4, MASTER_PORT=free_port(), LOCAL_WORLD_SIZE="2")
    for rank in ranks[2:]:
        rank["MASTER_ADDR"] = "127.0.0.1"
    with started(tmp_path, code, ranks) as scripts:
        assert [script.finish() for script in scripts] == [0] * 4, [script.stderr for script in scripts]
    wanted = [
        "fine",
        "compared with 1 other processes of this machine; 4 of 4 processes are in the store of torch.distributed",
        "headrace: loader at train.py:12, epoch 1: rank 3 has 77 batches, ranks 0, 1, 2 have 78; give all ranks the "
        f"same number of batches, for example with headrace.torch.per_rank{OFF}",
        "headrace: loader at train.py:12, epoch 2: ranks 0, 1 have 77 batches, ranks 2, 3 have 78; give all ranks the "
        f"same number of batches, for example with headrace.torch.per_rank{OFF}",
    ]
    assert [script.stdout.splitlines() for script in scripts] == [wanted] * 4


@needs_failpoints
def test_a_store_that_fails_is_no_error(tmp_path: pathlib.Path) -> None:
    """The store is a file here. Then it is replaced by one without the methods that are needed."""
    code = """
import torch.distributed as dist
from headrace.torch._own import groups

dist.init_process_group("gloo", init_method=f"file://{SHARED}/store", rank=RANK, world_size=WORLD_SIZE)
one = agree()
attempt(one.begin_epoch, facts(77 + RANK))
groups.default_store = object
attempt(one.begin_epoch, facts(77 + RANK, 1))
print(one.describe())
dist.barrier()
"""
    for printed in run_ranks(tmp_path, 2, code, HEADRACE_FAIL="board:EPERM"):
        first, second, reason = printed.splitlines()
        assert "epoch 0: rank 0 has 77 batches, rank 1 has 78; " in first and second == "fine"
        assert reason.startswith("board: a failpoint turns it off; the store of torch.distributed failed: ")


@pytest.mark.parametrize(("processes", "most_s"), [(2, 0.02), (4096, 0.1024)])
def test_many_ranks_ask_the_store_less_often(processes: int, most_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers one request at a time, so the ranks that wait for others must not be all that it does."""
    slept: list[float] = []

    class Waiting:
        def add(self, key: str, count: int) -> int:
            return count

        def append(self, key: str, text: str) -> None:
            pass

        def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
            return b"text\n"

    monkeypatch.setattr(store.groups, "default_store", Waiting)
    monkeypatch.setattr(store.groups, "default_group_size", lambda: processes)
    monkeypatch.setattr(store.time, "sleep", slept.append)
    monkeypatch.setattr(store.time, "monotonic", lambda: sum(slept))
    assert store.GroupStore().gather("key", "text", 1, 10.0) == (0, ["text"])
    assert max(slept) == pytest.approx(most_s) and sum(slept) >= 10.0
