# SPDX-License-Identifier: Apache-2.0
"""Ranks that train with torch and gloo: those that lose each other, hang, save, disagree, and end."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from jobs import Job, run

EXPECTED_S = 15.0  # to import torch in a few ranks at once, on a machine that is busy

START = """from ranks import *
import torch
import torch.distributed as dist
"""


def test_rank_that_fails_is_named_and_not_those_that_lose_it(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in a collective, and its exception says that the connection was closed."""
    code = (
        START
        + """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    if RANK == 1: raise ValueError("there is no sample 7")
    dist.all_reduce(value)
main()
"""
    )
    result = run(tmp_path, code, "--report", "report.json", expected_s=EXPECTED_S)
    assert result.code == 1, result.stderr
    result.assert_says(
        "^headrace: rank 1 failed first: it ended with exit code 1, after ValueError: there is no sample 7",
        'File ".*train.py", line 11, in main',
        "rank 0 (lost the connection to another rank and ended|ended when asked to)",
    )
    (attempt,) = json.loads((tmp_path / "report.json").read_text())["attempts"]
    assert attempt["first_rank"] == 1


def test_failure_of_rank_0_before_the_store_is_there_ends_all(tmp_path: Path) -> None:
    code = """from ranks import *
if RANK == 0:
    await_all("importing")
    time.sleep(1)
    raise ValueError("no configuration")
announce("importing")
import torch.distributed as dist
dist.init_process_group("gloo")
"""
    result = run(tmp_path, code, expected_s=EXPECTED_S)
    assert result.code == 1
    result.assert_says("rank 0 failed first: .* after ValueError: no configuration", "rank 1 ended when asked to")


def test_stall_names_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    code = (
        """import threading, time
def show_life():
    while not started:
        print("starting", flush=True)
        time.sleep(0.5)
started = []
threading.Thread(target=show_life, daemon=True).start()
"""
        + START
        + """
def load_shard(): time.sleep(1000)
def train():
    dist.init_process_group("gloo")
    dist.barrier()
    started.append(1)
    if RANK == 1: load_shard()
    dist.barrier()
train()
"""
    )
    result = run(tmp_path, code, "--stall-after", "8", "--grace", "1", nproc=3, expected_s=EXPECTED_S + 20)
    assert result.code == 124, result.stderr
    result.assert_says(
        r"^headrace: no rank has taken a batch or written anything for 8 s \(--stall-after\)",
        "rank 0: .*barrier",
        "rank 1: .*load_shard",
        "rank 2: .*barrier",
        "The other ranks wait for rank 1",
    )


LOADER = """
import headrace.torch
torch.multiprocessing.set_start_method("fork")  # the scripts have no main guard, which CPython 3.14's default needs
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 100000
    def __getitem__(self, index): return torch.tensor([index])
"""


def test_checkpoint_at_sigterm_gets_batches_from_its_workers(tmp_path: Path) -> None:
    """TERM must not end data workers, also where a batch system sends it to all processes of the job."""
    code = (
        START
        + LOADER
        + """
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
left = 30
for step, batch in enumerate(headrace.torch.DataLoader(Numbers(), batch_size=2, num_workers=2)):
    if step == 10: announce(f"trains.{RANK}")
    time.sleep(0.002)
    left -= bool(stop)
    if left == 0: break
announce(f"saved.{RANK}", str(step))
"""
    )
    with Job(tmp_path, code) as job:
        job.await_files("trains.0", "trains.1", expected_s=EXPECTED_S)
        workers = [pid for pid in job.processes() if pid != job.process.pid]
        assert len(workers) >= 1 + 2 + 4
        job.send(signal.SIGTERM)
        for pid in workers:
            if _is_data_worker(pid):
                os.kill(pid, signal.SIGTERM)
        result = job.finish(EXPECTED_S)
        assert result.code == 0, result.stderr
        assert re.fullmatch(r"(headrace: note: (2 ranks are|1 rank is) still running[^\n]*\n)?", result.stderr)
        assert int(job.read("saved.0")) > 30 and int(job.read("saved.1")) > 30
        job.assert_nothing_is_left()


def _is_data_worker(pid: int) -> bool:
    name = Path(f"/proc/{pid}/comm").read_text()
    return name.startswith("hr-") or "worker" in name


def test_unequal_numbers_of_batches_are_explained(tmp_path: Path) -> None:
    """Rank 0 has 78 batches and rank 1 has 77. Without headrace, rank 0 waits in the last collective for ever."""
    code = (
        START
        + LOADER
        + """
class Naive(torch.utils.data.DistributedSampler):
    def __iter__(self): return iter(range(RANK, 155, 2))
    def __len__(self): return len(range(RANK, 155, 2))
dist.init_process_group("gloo")
for batch in headrace.torch.DataLoader(Numbers(), sampler=Naive(range(155)), num_workers=1):
    dist.all_reduce(batch)
dist.barrier()
"""
    )
    result = run(tmp_path, code, expected_s=EXPECTED_S)
    assert result.code == 1, result.stderr
    result.assert_says(
        r"^headrace: rank \d failed first: .*RanksDisagree",
        "rank 1 is at its end after 77 batches, and rank 0 has taken 78",
    )


def test_rank_that_returned_before_the_others_is_named(tmp_path: Path) -> None:
    """Rank 0 is in a collective that rank 1 never reaches, because it has a batch less. It fails when rank 1 has ended,
    however long that takes."""
    code = (
        START
        + """
import os, time
if RANK == 1: open("shared/pid", "w").write(str(os.getpid()))
dist.init_process_group("gloo")
try:
    for i in range(78 - RANK):
        dist.all_reduce(torch.ones(1))
except RuntimeError:
    other = open("shared/pid").read()
    while os.path.exists(f"/proc/{other}"): time.sleep(0.01)
    raise
dist.destroy_process_group()
"""
    )
    result = run(tmp_path, code, expected_s=EXPECTED_S)
    assert result.code == 1, result.stderr
    result.assert_says("rank 0 failed first: .*Connection closed by peer", "rank 1 had returned 0 before")


def test_job_with_shared_files_and_buckets_ends(tmp_path: Path) -> None:
    """The sharing strategy `file_system`, a sampler of buckets, workers that are still there, and a rank 0 that ends
    while rank 1 still uses its store: jobs like this were reported to pass their last barrier and never to exit."""
    code = (
        START
        + LOADER
        + """
torch.multiprocessing.set_sharing_strategy("file_system")

class Buckets(torch.utils.data.Sampler):
    def __init__(self, lengths, size):
        self.lengths, self.size = lengths, size
    def __iter__(self):
        order = sorted(range(RANK, len(self.lengths), WORLD_SIZE), key=self.lengths.__getitem__)
        return iter([order[at:at + self.size] for at in range(0, len(order), self.size)])
    def __len__(self):
        return len(self.lengths) // WORLD_SIZE // self.size

dist.init_process_group("gloo")
kept = []
for kind in torch.utils.data.DataLoader, headrace.torch.DataLoader:
    loader = kind(Numbers(), batch_sampler=Buckets([i % 17 for i in range(64)], 4), num_workers=2,
                  persistent_workers=True)
    kept += [loader, iter(loader)]
    for batch in kept[-1]:
        dist.all_reduce(batch)
    kept.append(batch)
dist.barrier()
if RANK == 1:
    store = dist.distributed_c10d._get_default_store()
    await_all("over")
    time.sleep(1)
    store.set("late", "value")
    say("store", store.get("late").decode())
else:
    import atexit
    announce("over")
"""
    )
    result = run(tmp_path, code, "--exit-timeout", "60", expected_s=EXPECTED_S)
    assert result.code == 0, result.stderr
    assert result.stdout == "[1] store value\n"
    assert not [line for line in result.stderr.splitlines() if re.match("headrace: (?!note)", line)]
