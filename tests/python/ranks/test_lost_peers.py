# SPDX-License-Identifier: Apache-2.0
"""The exceptions by which torch.distributed says that another rank has gone rank behind its own failure."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import socket
import sys

import pytest
from headrace._ranks import what_ended
from rank_pages import Rank

torch = pytest.importorskip("torch")

GROUP = """
import datetime, os, signal, time
import torch
import torch.distributed as dist

RANK, DEAD = int(os.environ["RANK"]), int(os.environ["DEAD"])
timeout = datetime.timedelta(seconds=6)

def leave():
    if RANK == DEAD:
        {leave}

{before}
dist.init_process_group("gloo", timeout=timeout)
ones = torch.ones(4)
dist.all_reduce(ones)
store = dist.distributed_c10d._get_default_store()
leave()
for _ in range(100):
    {call}
    time.sleep(0.1)
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
HANG = "time.sleep(1000)"
IN_SOAK = "HEADRACE_SOAK" in os.environ  # `make soak` tries every call: importing torch in two ranks takes seconds
CASES = [  # what the rank does that is lost, its number, and what the other rank calls
    (DIE, 1, "dist.all_reduce(ones)"),
    (DIE, 0, "dist.barrier()"),
    (DIE, 0, "dist.broadcast(ones, DEAD)"),
    (DIE, 1, "dist.monitored_barrier(timeout=timeout)"),
    (DIE, 0, "dist.monitored_barrier(timeout=timeout)"),
    (DIE, 1, "store.get('key')"),
    (DIE, 0, "store.get('key')"),
    (DIE, 0, "store.set('key', 'value')"),
    (HANG, 1, "dist.all_reduce(ones)"),
    (HANG, 0, "dist.barrier()"),
]


def assert_survivor_says_lost(folder: pathlib.Path, code: str, dead: int) -> None:
    path = folder / "train.py"
    path.write_text(code)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    env = {"WORLD_SIZE": "2", "DEAD": str(dead), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(path)]
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(Rank(command, RANK=str(rank), OMP_NUM_THREADS="1", **env)) for rank in range(2)]
        survivor = ranks[1 - dead]
        assert survivor.finish() == 1, survivor.stderr
        assert survivor.words()["is_lost_peer"] == 1, survivor.text()


@pytest.mark.parametrize(("leave", "dead", "call"), CASES if IN_SOAK else CASES[::5])
def test_lost_peer_is_recognised(tmp_path: pathlib.Path, leave: str, dead: int, call: str) -> None:
    assert_survivor_says_lost(tmp_path, GROUP.format(before="", leave=leave, call=call), dead)


@pytest.mark.skipif(not IN_SOAK, reason="15 s: HEADRACE_SOAK=1")
@pytest.mark.parametrize("dead", [0, 1])
def test_lost_peer_in_init_is_recognised(tmp_path: pathlib.Path, dead: int) -> None:
    assert_survivor_says_lost(tmp_path, GROUP.format(before="leave()", leave=DIE, call="pass"), dead)


def raised(*errors: BaseException) -> BaseException:
    """Returns the last of these exceptions, each of which was raised while the one before was handled."""
    for before, after in itertools.pairwise(errors):
        after.__context__ = before
    return errors[-1]


def lost() -> BaseException:
    error: BaseException = torch.distributed.DistNetworkError("Failed to recv, got 0 bytes.")
    return error


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:77, {}, NCCL version 2.27.3\n{}"
REMOTE = "remote process exited or there was a network error"


@pytest.mark.parametrize(
    "error",
    [
        torch.distributed.DistBackendError(NCCL.format(REMOTE, "ncclRemoteError: A call failed possibly due to it")),
        torch.distributed.DistBackendError("[PG 0] ProcessGroupNCCL's watchdog: collective operation timeout"),
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5] Connection reset by peer"),
        RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
        raised(lost(), ValueError("training failed")),
    ],
)
def test_lost_peer_texts_are_recognised(error: BaseException) -> None:
    assert what_ended.is_lost_peer(error)


def suppressed() -> BaseException:
    error = raised(lost(), ValueError("of this rank"))
    error.__suppress_context__ = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Connection closed by peer"),
        BrokenPipeError(32, "Broken pipe"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        RuntimeError("Connection closed by peer"),
        RuntimeError("request timed out after 30 s"),
        ValueError("gloo: Connection closed by peer"),
        torch.distributed.DistBackendError(NCCL.format("invalid usage", "ncclInvalidUsage: Duplicate GPU detected")),
        torch.distributed.DistBackendError(NCCL.format("unhandled cuda error", "Cuda failure 2 'out of memory'")),
        torch.distributed.DistNetworkError("The server socket has failed to listen on any local network address."),
        raised(ValueError("of this rank"), lost()),
        suppressed(),
    ],
)
def test_own_failure_is_no_lost_peer(error: BaseException) -> None:
    assert not what_ended.is_lost_peer(error)
