# SPDX-License-Identifier: Apache-2.0
"""Headspace of several ranks: all change and end at the same step, with exit code 0.

tests/python/torch/test_headspace.py has one rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jobs import HEADRACE, Job, Result, run

STEPS = 5
NEEDED = 20 + 3 * STEPS + 2 * 5

# Each rank says at the end of a step how many it has made; rank 1 is always late.
NUMPY = """from ranks import *
import multiprocessing
multiprocessing.set_start_method("fork")
from headrace import Loader
loader, count = Loader(range(1000), batch_size=2, num_workers=1), 0
try:
    for batch in loader:
        meet(f"step{count}")
        time.sleep(0.005 * RANK)
        count += 1
        announce(f"made.{RANK}", str(count))
finally:
    announce(f"saved.{RANK}")
"""

# The last step of rank 1 needs the store, which is in rank 0 under headrace run.
GLOO = """from ranks import *
import multiprocessing
multiprocessing.set_start_method("fork")
import torch
import torch.distributed as dist
from headrace.torch import DataLoader
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
loader, count = DataLoader(torch.arange(100.0), batch_size=2, num_workers=1), 0
try:
    for epoch in range(9):
        for batch in loader:
            dist.all_reduce(batch)
            time.sleep(0.5 if count == LAST and RANK else 0)
            store.add(f"{RANK}", 1)
            count += 1
            announce(f"made.{RANK}", str(count))
finally:
    announce(f"saved.{RANK}")
"""


def assert_ended_together(folder: Path, result: Result, count: int) -> None:
    assert result.code == 0, result.stderr
    assert [(folder / f"shared/made.{rank}").read_text() for rank in (0, 1)] == [str(count)] * 2
    assert not list(folder.glob("shared/saved.*"))
    assert result.stdout.count("a step takes") == 1, "rank 0 says it"
    assert result.stderr.count("do not use a model that it saves from now on") == 1
    assert "do not end together" not in result.stderr


def test_ranks_end_at_the_same_step(tmp_path: Path) -> None:
    result = run(tmp_path, NUMPY, "--headspace", env={"HEADRACE_HEADSPACE": str(STEPS)})
    assert_ended_together(tmp_path, result, NEEDED + 1)


@pytest.mark.parametrize("env", [{}, {"HEADRACE_HEADSPACE": "0"}, {"HEADRACE_HEADSPACE": ""}])
def test_option_asks_for_100_steps(tmp_path: Path, env: dict[str, str]) -> None:
    code = NUMPY.replace("time.sleep(0.005 * RANK)", "pass")
    result = run(tmp_path, code, "--headspace", env=env, nproc=1)
    assert result.code == 0, result.stderr
    assert (tmp_path / "shared/made.0").read_text() == str(20 + 300 + 10 + 1)


def test_ranks_of_a_process_group_end_together(tmp_path: Path) -> None:
    code = GLOO.replace("LAST", str(NEEDED))
    env = {"HEADRACE_HEADSPACE": str(STEPS)}
    assert_ended_together(tmp_path, run(tmp_path, code, "--headspace", env=env, expected_s=15), NEEDED + 1)


def test_ranks_of_torchrun_end_together(tmp_path: Path) -> None:
    code = GLOO.replace("LAST", str(NEEDED))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    with Job(tmp_path, code, env={"HEADRACE_HEADSPACE": str(STEPS)}, words=words) as job:
        assert_ended_together(tmp_path, job.finish(15), NEEDED + 1)


def test_help_names_the_variable(tmp_path: Path) -> None:
    result = run(tmp_path, "", words=[HEADRACE, "run", "--help"])
    assert "HEADRACE_HEADSPACE=100 is the same" in result.stdout
