# SPDX-License-Identifier: Apache-2.0
"""Tasks of Slurm: each is a child of `headrace exec`. The cluster has two nodes on this machine."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import alive, until
from ranks_of_loaders import (
    FAIL,
    HEADRACE,
    SAVE,
    TRAIN,
    assert_ranks_agree,
    assert_under_exec,
    await_files,
    clean,
    command_of,
    what_ranks_saw,
)
from slurm import Cluster, cluster

ROOT = pathlib.Path(os.environ.get("HEADRACE_SCHEDULERS", ".")) / "slurm"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (ROOT / "usr/bin/srun").exists(), reason="Slurm is not unpacked: make test-schedulers does it"
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm's daemons run as root here"),
]
FOUR = ("-n4", "-N2", "--distribution=block")  # three tasks on the first node, one on the second


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(ROOT, tmp_path_factory.mktemp("slurm")) as one:
        yield one


def start(slurm: Cluster, *words: str) -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, {**clean(PYTHON_EXEC=sys.executable), **slurm.variables}
    command = [slurm.program("srun"), *words]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def job_of(slurm: Cluster) -> str:
    """Returns the number of the job that runs."""
    assert until(lambda: slurm.run("squeue", "-h", "-t", "running", "-o", "%A").stdout, 100)
    return slurm.run("squeue", "-h", "-t", "running", "-o", "%A").stdout.strip()


def test_tasks_find_their_place_and_agree(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    with start(slurm, *FOUR, *command_of(tmp_path, TRAIN)) as srun:
        output, errors = srun.communicate(timeout=300)
    assert srun.returncode == 0, (output, errors, slurm.logs())
    seen = what_ranks_saw(tmp_path, 4)
    assert {rank["source"] for rank in seen} == {"environment: SLURM_PROCID, SLURM_STEP_NUM_TASKS"}
    assert [rank["local"] for rank in seen] == [[0, 3], [1, 3], [2, 3], [0, 1]]
    assert_ranks_agree(seen)
    assert_under_exec(seen)


def test_failure_is_explained_and_nothing_is_left(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    with start(slurm, "--kill-on-bad-exit", "-n2", *command_of(tmp_path, FAIL)) as srun:
        await_files(tmp_path, "pid.0", "pid.1", "daemon")
        _, errors = srun.communicate(timeout=100)
    pids = [int((tmp_path / name).read_text()) for name in ("pid.0", "pid.1", "daemon")]
    assert srun.returncode != 0, errors  # the largest of all tasks
    assert "headrace: the command ended with exit code 7" in errors
    assert "task 1: Exited with exit code 7" in errors
    assert until(lambda: not any(map(alive, pids)), 20), pids


@pytest.mark.parametrize("command", ["exec", "run"])
def test_sigterm_to_the_step_reaches_each_rank_once(slurm: Cluster, tmp_path: pathlib.Path, command: str) -> None:
    """Slurm signals each process of the step, so headrace does not pass the signal on."""
    words = ["-n2", *command_of(tmp_path, SAVE)]
    if command == "run":
        words = ["-n1", "-c2", HEADRACE, "run", "--nproc=2", str(tmp_path / "train.py"), str(tmp_path)]
    with start(slurm, *words) as srun:
        await_files(tmp_path, "ready.0", "ready.1")
        job = job_of(slurm)
        assert slurm.run("scancel", "--signal=TERM", f"{job}.0").returncode == 0
        await_files(tmp_path, "checkpoint.0", "checkpoint.1")
        _, errors = srun.communicate(timeout=100)
    assert [(tmp_path / f"checkpoint.{rank}").read_text() for rank in range(2)] == ["1", "1"], errors


def test_signal_of_a_person_in_a_step_is_passed_on(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    """Ctrl-C in `srun --pty` is like this: it reaches headrace only."""
    shell = f'echo $$ > {tmp_path}/front; exec "$@"'
    with start(slurm, "-n1", "sh", "-c", shell, "sh", *command_of(tmp_path, SAVE)) as srun:
        await_files(tmp_path, "front", "ready.0")
        os.kill(int((tmp_path / "front").read_text()), signal.SIGTERM)
        await_files(tmp_path, "checkpoint.0")
        srun.communicate(timeout=100)
    assert (tmp_path / "checkpoint.0").read_text() == "1"


def test_cancelled_job_leaves_nothing(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    with start(slurm, "-n2", *command_of(tmp_path, FAIL.replace("sys.exit(7)", "time.sleep(1000)"))) as srun:
        await_files(tmp_path, "pid.0", "pid.1", "daemon")
        assert slurm.run("scancel", job_of(slurm)).returncode == 0
        srun.communicate(timeout=100)
    pids = [int((tmp_path / name).read_text()) for name in ("pid.0", "pid.1", "daemon")]
    assert until(lambda: not any(map(alive, pids)), 60), pids


def test_headrace_run_on_each_node(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    command_of(tmp_path, TRAIN)  # writes the script
    place = "--nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
    shell = f"PYTHON_EXEC={sys.executable} exec {HEADRACE} run {place} --nproc 2 {tmp_path}/train.py {tmp_path}"
    with start(slurm, "-N2", "--ntasks-per-node=1", "sh", "-c", shell) as srun:
        output, errors = srun.communicate(timeout=300)
    assert srun.returncode == 0, (output, errors, slurm.logs())
    seen = what_ranks_saw(tmp_path, 4)
    assert {rank["source"] for rank in seen} == {"environment: RANK, WORLD_SIZE"}
    assert [rank["local"] for rank in seen] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    assert_ranks_agree(seen)


def test_headrace_run_in_a_batch_script(slurm: Cluster, tmp_path: pathlib.Path) -> None:
    """A batch script has SLURM_PROCID=0, and is no task: headrace run starts the ranks in it."""
    (tmp_path / "train.py").write_text(
        "from headrace._ranks.where import find\nplace = find()\nprint(place.rank, place.world_size, flush=True)\n"
    )
    batch = tmp_path / "job.sh"
    batch.write_text(f"#!/bin/sh\nexec {HEADRACE} run --nproc 3 --prefix never {tmp_path}/train.py\n")
    output = tmp_path / "output"
    words = ("--wait", "-n1", "-c3", "-o", str(output), str(batch))
    done = slurm.run("sbatch", *words, PYTHON_EXEC=sys.executable)
    assert done.returncode == 0, (done.stderr, output.exists() and output.read_text(), slurm.logs())
    assert sorted(output.read_text().splitlines()) == ["0 3", "1 3", "2 3"]
