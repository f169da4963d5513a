# SPDX-License-Identifier: Apache-2.0
"""Scripts that run as the ranks of Slurm, MPI and Ray, each under `headrace exec` where the engine permits it."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import sys
import time
from typing import Any

HEADRACE = str(pathlib.Path(sys.executable).parent / "headrace")
# What the engines and headrace set: the environment of the tests must not have it.
FOREIGN = ("SLURM", "OMPI_", "PMI", "MPI_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "HEADRACE_")

# Prints one JSON object: where the rank is, what started it, and whether all ranks compare what they load.
TRAIN = """
import json, os, sys
import torch, torch.distributed as dist
import headrace
from headrace._ranks.where import find
from headrace.torch import DataLoader, DistributedSampler, per_rank

place = find()
dist.init_process_group("gloo", rank=place.rank, world_size=place.world_size)
total = torch.ones(1)
dist.all_reduce(total)
samples = [int(i) for batch in DataLoader(range(48), 4, sampler=per_rank(range(48), seed=1)) for i in batch]
disagree = ""
try:
    for batch in DataLoader(range(48), 4, sampler=DistributedSampler(range(48), seed=place.rank)):
        pass
except headrace.RanksDisagree as error:
    disagree = str(error)
dist.barrier()
seen = {
    "rank": place.rank, "world_size": place.world_size, "local": [place.local_rank, place.local_world_size],
    "source": place.source, "total": int(total), "samples": samples, "disagree": disagree,
    "parent": open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[:2],
}
with open(os.path.join(sys.argv[1], f"seen.{place.rank}"), "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""

# Rank 1 leaves a process that has a session of its own and ignores signals, and exits with 7; the others wait.
FAIL = """
import os, signal, subprocess, sys, time
from headrace._ranks.where import find
rank = find().rank
open(os.path.join(sys.argv[1], f"pid.{rank}"), "w").write(str(os.getpid()))
if rank == 1:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"import signal, time; {deaf}; print('deaf', flush=True); time.sleep(1000)"
    daemon = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    daemon.stdout.readline()
    open(os.path.join(sys.argv[1], "daemon.new"), "w").write(str(daemon.pid))
    os.rename(os.path.join(sys.argv[1], "daemon.new"), os.path.join(sys.argv[1], "daemon"))
    sys.exit(7)
time.sleep(1000)
"""

# Each rank counts the signals that reach it within two seconds of the first, and writes a checkpoint.
SAVE = """
import os, signal, sys, time
from headrace._ranks.where import find
rank = find().rank
got = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: got.append(number))
open(os.path.join(sys.argv[1], f"ready.{rank}"), "w").close()
while not got:
    time.sleep(0.01)
end = time.monotonic() + 2
while time.monotonic() < end:
    time.sleep(0.01)
with open(os.path.join(sys.argv[1], f"checkpoint.{rank}"), "w") as file:
    file.write(str(len(got)))
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def clean(**variables: str) -> dict[str, str]:
    """Returns an environment for a launcher, in which the ranks meet on this machine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return {**environment, "OMP_NUM_THREADS": "1", **meeting, **variables}


def command_of(folder: pathlib.Path, code: str) -> list[str]:
    """Returns the command of one rank, which says in files of the folder what it has seen."""
    script = folder / "train.py"
    script.write_text(code)
    return [HEADRACE, "exec", sys.executable, str(script), str(folder)]


def what_ranks_saw(folder: pathlib.Path, world_size: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(world_size)]


def assert_ranks_agree(seen: list[dict[str, Any]]) -> None:
    """Asserts that all ranks have met, have read each sample once, and notice that they have different seeds."""
    size = len(seen)
    assert [(rank["rank"], rank["world_size"], rank["total"]) for rank in seen] == [
        (n, size, size) for n in range(size)
    ]
    assert sorted(index for rank in seen for index in rank["samples"]) == list(range(48))
    assert all("rank 0 has the seed 0, rank 1 has 1" in rank["disagree"] for rank in seen), seen


def assert_under_exec(seen: list[dict[str, Any]]) -> None:
    assert [rank["parent"] for rank in seen] == [[HEADRACE, "exec"]] * len(seen)


def await_files(folder: pathlib.Path, *names: str, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < end, (names, os.listdir(folder))
        time.sleep(0.01)
