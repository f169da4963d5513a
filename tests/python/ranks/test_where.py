# SPDX-License-Identifier: Apache-2.0
"""The rank of a process, and where it is found: the environments of launchers as they really are, and wrong ones."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from headrace._ranks.where import RankPlace, find

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "OMPI_", "PMI", "MPI_")

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
SBATCH = {  # the batch script itself
    "SLURM_JOB_ID": "17",
    "SLURM_JOBID": "17",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURM_TASKS_PER_NODE": "3,1",
}
SRUN = {  # a task of srun in that script: three tasks on this node, one on the other
    **SBATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "2",
    "SLURM_GTIDS": "0,1,2",
}
SALLOC = {**SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}  # an interactive step
MPIRUN = {  # Open MPI 5, which has PMIx
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "6",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node-1@1",
}
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}  # MPICH


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher has started this process, and torch.distributed is not imported."""
    for name in os.environ:
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)


def place(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **arguments: Any) -> RankPlace:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return find(**arguments)


FOUND = [
    (TORCHRUN, RankPlace(5, 8, 1, 4, "environment: RANK, WORLD_SIZE")),
    ({"RANK": "0", "WORLD_SIZE": "1"}, RankPlace(0, 1, None, None, "environment: RANK, WORLD_SIZE")),
    ({**SRUN, **TORCHRUN}, RankPlace(5, 8, 1, 4, "environment: RANK, WORLD_SIZE")),  # srun torchrun
    (SRUN, RankPlace(2, 4, 2, 3, "environment: SLURM_PROCID, SLURM_STEP_NUM_TASKS")),
    ({**SRUN, "WORLD_SIZE": "4"}, RankPlace(2, 4, 2, 3, "environment: SLURM_PROCID, SLURM_STEP_NUM_TASKS")),
    ({**SRUN, "PMIX_RANK": "2"}, RankPlace(2, 4, 2, 3, "environment: SLURM_PROCID, SLURM_STEP_NUM_TASKS")),
    (SBATCH, RankPlace(0, 1, 0, 1, "none")),
    (SALLOC, RankPlace(0, 1, 0, 1, "none")),
    (MPIRUN, RankPlace(3, 6, 0, 3, "environment: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE")),
    ({**SBATCH, **MPIRUN}, RankPlace(3, 6, 0, 3, "environment: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE")),
    (MPIEXEC, RankPlace(1, 2, 1, 2, "environment: PMI_RANK, PMI_SIZE")),
    ({}, RankPlace(0, 1, 0, 1, "none")),
    ({"RANK": "", "WORLD_SIZE": ""}, RankPlace(0, 1, 0, 1, "none")),
]


@pytest.mark.parametrize(("environment", "expected"), FOUND)
def test_place_is_found_in_environment_of_launcher(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: RankPlace
) -> None:
    assert place(monkeypatch, environment) == expected


WRONG = [
    ({"RANK": "abc", "WORLD_SIZE": "4"}, "RANK should be a number from 0 on, but is 'abc'"),
    ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK should be a number from 0 on, but is '-1'"),
    ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4, but WORLD_SIZE is 4"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK is 0, but WORLD_SIZE is 0"),
    ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, "LOCAL_RANK should be a number"),
    ({"RANK": "3"}, "RANK is '3', but WORLD_SIZE is not set"),
    ({"WORLD_SIZE": "3"}, "WORLD_SIZE is '3', but RANK is not set"),
    ({"PMI_SIZE": "3"}, "PMI_SIZE is '3', but PMI_RANK is not set"),
    ({"PMIX_RANK": "1"}, "PMIX_RANK is '1', but no variable says how many ranks there are"),
    ({**SRUN, "SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS is not set"),
    ({**SRUN, "SLURM_PROCID": "9"}, "SLURM_PROCID is 9, but SLURM_STEP_NUM_TASKS is 4"),
]


@pytest.mark.parametrize(("environment", "message"), WRONG)
def test_wrong_environment_is_an_error_naming_variable(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        place(monkeypatch, environment)
    assert message in str(error.value)
    assert place(monkeypatch, {}, num_replicas=2, rank=1) == RankPlace(
        1, 2, None, None, "arguments: num_replicas, rank"
    )


def test_given_place_is_the_first_match(monkeypatch: pytest.MonkeyPatch) -> None:
    found = place(monkeypatch, TORCHRUN, num_replicas=2, rank=1)
    assert found == RankPlace(1, 2, None, None, "arguments: num_replicas, rank")


def test_given_place_of_the_launcher_has_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = place(monkeypatch, TORCHRUN, num_replicas=8, rank=5)
    assert found == RankPlace(5, 8, 1, 4, "arguments: num_replicas, rank")


@pytest.mark.parametrize("arguments", [{"num_replicas": 8}, {"rank": 5}])
def test_one_argument_is_completed_from_environment(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, int]) -> None:
    assert place(monkeypatch, TORCHRUN, **arguments) == RankPlace(5, 8, 1, 4, "environment: RANK, WORLD_SIZE")


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_replicas": 4}, ValueError, "num_replicas=4 is given without rank, but this process is rank 5 of 8"),
    ({"rank": 1}, ValueError, "rank=1 is given without num_replicas, but this process is rank 5 of 8"),
    ({"num_replicas": 0}, ValueError, "num_replicas should be 1 or more"),
    ({"num_replicas": 0, "rank": 0}, ValueError, "num_replicas should be 1 or more"),
    ({"num_replicas": 2, "rank": 2}, ValueError, "rank should be from 0 to 1 of 2 ranks, but got 2"),
    ({"num_replicas": 2, "rank": -1}, ValueError, "rank should be from 0 to 1 of 2 ranks, but got -1"),
    ({"num_replicas": "2", "rank": 0}, TypeError, "num_replicas should be an int, but got '2'"),
    ({"num_replicas": 2, "rank": 0.5}, TypeError, "rank should be an int, but got 0.5"),
    ({"rank": "5"}, TypeError, "rank should be an int, but got '5'"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), ARGUMENTS)
def test_wrong_argument_is_an_error_naming_it(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        place(monkeypatch, TORCHRUN, **arguments)
    assert message in str(error.value)


def test_number_of_ranks_without_launcher_needs_the_rank() -> None:
    with pytest.raises(ValueError, match="this process is rank 0 of 1"):
        find(num_replicas=4)
    assert find(num_replicas=1).world_size == 1


class Distributed:
    """A torch.distributed whose default group is initialized."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return 5

    def get_world_size(self) -> int:
        return 8


def test_default_group_comes_before_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed())  # type: ignore[arg-type]
    source = "torch.distributed's default group"
    assert find() == RankPlace(5, 8, None, None, source)
    assert place(monkeypatch, TORCHRUN) == RankPlace(5, 8, 1, 4, source)
    assert place(monkeypatch, {"RANK": "1"}) == RankPlace(5, 8, None, None, source)
    assert place(monkeypatch, {"RANK": "abc"}) == RankPlace(5, 8, None, None, source)


def test_torch_is_not_imported_to_find_the_place() -> None:
    code = "import sys; from headrace._ranks.where import find; print(find(2, 1).rank, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
