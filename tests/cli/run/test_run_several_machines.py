# SPDX-License-Identifier: Apache-2.0
"""Jobs of several machines: two `headrace run` on this one, and a rendezvous that torch.distributed.run makes."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import pytest
from jobs import HEADRACE, Job, Result

pytest.importorskip("torch")

GATHER = """
import json, os, sys
import torch.distributed as dist
from headrace._ranks.where import find
dist.init_process_group("gloo")
place = find()
mine = [dist.get_rank(), place.rank, place.world_size, place.local_rank, place.local_world_size, os.getppid()]
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, mine)
if dist.get_rank() == FAILING:
    sys.exit(7)
dist.barrier()
if place.local_rank == 0:
    print(json.dumps(everyone), flush=True)
dist.destroy_process_group()
"""
LOCAL = {"GLOO_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run_on_two_machines(folder: Path, nproc: int, failing: int = -1) -> list[Result]:
    """Runs a job with `nproc` ranks on each of two machines, which are both this one."""
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        jobs = []
        for number in range(2):
            own = folder / str(number)
            own.mkdir()
            options = (
                "--nnodes=2",
                f"--node-rank={number}",
                "--master-addr=127.0.0.1",
                "--master-port",
                port,
                "--prefix=never",
            )
            code = GATHER.replace("FAILING", str(failing))
            jobs.append(stack.enter_context(Job(own, code, *options, nproc=nproc, env=LOCAL)))
        results = [job.finish(10) for job in jobs]
        for job in jobs:
            job.assert_nothing_is_left()
    return results


def test_ranks_of_two_machines_meet(tmp_path: Path) -> None:
    results = run_on_two_machines(tmp_path, 2)
    assert [result.code for result in results] == [0, 0], [result.stderr for result in results]
    seen = [json.loads(result.stdout) for result in results]
    assert seen[0] == seen[1]
    assert [place[:5] for place in seen[0]] == [[rank, rank, 4, rank % 2, 2] for rank in range(4)]


def test_failure_ends_the_job_on_the_other_machine_too(tmp_path: Path) -> None:
    first, second = run_on_two_machines(tmp_path, 1, failing=1)
    assert second.code == 7
    second.assert_says("^headrace: rank 1 ended with exit code 7")
    assert first.code != 0
    first.assert_says(
        "^headrace: rank 0 ended with exit code 1, after RuntimeError",
        "  it lost the connection to a rank of another machine",
    )


def test_rendezvous_is_handed_on_to_torch(tmp_path: Path) -> None:
    """Each rank is then the child of a `headrace exec`. torch.distributed.run leaves its folder of logs."""
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    elastic = ("--nnodes=1:2", "--rdzv-backend=c10d", endpoint, "--rdzv-conf=last_call_timeout=1")
    code = GATHER.replace("FAILING", "-1").replace("os.getppid()", "open(f'/proc/{os.getppid()}/cmdline').read()")
    with Job(tmp_path, code, *elastic, env=LOCAL) as job:
        result = job.finish(15)
        assert job.left() == []
    assert result.code == 0, result.stderr
    seen = json.loads(result.stdout)
    assert [place[:5] for place in seen] == [[rank, rank, 2, rank, 2] for rank in range(2)]
    assert all(place[5].split("\0")[:2] == [HEADRACE, "exec"] for place in seen), seen
    assert "torch.distributed.run starts the ranks of this job" in result.stderr
