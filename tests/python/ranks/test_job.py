# SPDX-License-Identifier: Apache-2.0
"""Which job the environment names, and messages about ranks that disagree, without processes."""

from __future__ import annotations

import pickle

import headrace
import pytest
from headrace._ranks.agreement import Facts
from headrace._ranks.disagreement import describe, describe_end
from headrace._ranks.job import Job, find_job

UNKNOWN = Facts(-1, -1, -1, -1, -1, -1)
ADDRESS = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
KEY = "MASTER_ADDR=node1 MASTER_PORT=29500"
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_GTIDS": "0,1,2"}


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, Job("", 2, 0)),
        (ADDRESS, Job(KEY, 2, 0)),
        ({**ADDRESS, "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, Job(KEY, 8, 4)),
        ({**ADDRESS, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "4"}, Job(KEY, 2, 0)),
        ({**ADDRESS, "WORLD_SIZE": "many", "LOCAL_WORLD_SIZE": "-1"}, Job(KEY, 2, 0)),
        ({**ADDRESS, "MASTER_ADDR": "127.0.0.1"}, Job("MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", 2, 2)),
        (
            {**ADDRESS, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "3"},
            Job(f"{KEY} TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=3", 2, 0),
        ),
        (STEP, Job("SLURM_JOB_ID=7 SLURM_STEP_ID=0", 4, 3)),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, Job("", 2, 0)),
        (
            {"PMIX_NAMESPACE": "prte-1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            Job("PMIX_NAMESPACE=prte-1", 4, 2),
        ),
    ],
)
def test_job_is_found_in_the_environment(environment: dict[str, str], job: Job) -> None:
    assert find_job(2, environment) == job


def test_facts_that_are_not_known_are_not_compared() -> None:
    assert describe("a:1", [(0, UNKNOWN), (1, Facts(1, 2, 3, 4, 5, 6)), (2, Facts(1, -1, 3, -1, 5, 6))]) is None


def test_the_cause_is_reported_before_what_follows() -> None:
    message = describe("a:1", [(0, Facts(50, 5, 3, 4, 5, 100)), (1, Facts(60, 6, 3, 4, 7, 120))])
    assert message is not None and "epoch 4: rank 0 has a dataset of 100 samples, rank 1 has 120; " in message


def test_many_ranks_are_shortened() -> None:
    found = [(rank, UNKNOWN._replace(steps=5 + (rank == 3))) for rank in range(100)]
    message = describe("a:1", found)
    assert message is not None
    assert "rank 3 has 6 batches, ranks 0, 1, 2, 4, 5, 6, 7, 8 and 91 others have 5; " in message
    every = describe("a:1", [(rank, UNKNOWN._replace(steps=rank)) for rank in range(100)])
    assert every is not None and "rank 7 has 7, ...; " in every


def test_message_of_an_end_names_the_shorter_rank_first() -> None:
    message = describe_end("a:1", UNKNOWN, (3, 78), (1, 77))
    assert message.startswith(
        "headrace: loader at a:1, rank 1 is at its end after 77 batches, and rank 3 has taken 78; "
    )


def test_error_is_public_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(headrace.RanksDisagree("text")))
    assert type(error) is headrace.RanksDisagree and isinstance(error, RuntimeError)
    assert error.args == ("text",)
