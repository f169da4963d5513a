# SPDX-License-Identifier: Apache-2.0
"""Finds in the environment which processes belong to one job. `membership` and the store's keys use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

# What launchers set to the same value in all processes of a job, and to another value in other jobs.
_NAMES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
)
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_LOOPBACKS = ("localhost", "127.", "::1")


class Job(NamedTuple):
    key: str  # names the job among those of this user; "": not known
    world_size: int  # processes
    local_size: int  # of these, on this machine; 0: not known


def find_job(least_world_size: int, environment: Mapping[str, str] = os.environ) -> Job:
    """Returns what the environment says about the job. It has at least `least_world_size` processes, because a loader
    has so many ranks; several processes may share a rank."""
    world_size = max(least_world_size, _first_number(environment, _WORLD_SIZES))
    local_size = _local_size(environment, world_size)
    return Job(_key(environment), world_size, local_size if local_size <= world_size else 0)


def attempt() -> str:
    """Returns the number of this attempt of a job that torchrun may restart."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _key(environment: Mapping[str, str]) -> str:
    has_address = "MASTER_ADDR" in environment and "MASTER_PORT" in environment
    is_step = _number(environment, "SLURM_STEP_NUM_TASKS") > 1  # `srun --pty bash` is a step too, with one task
    if not (has_address or is_step or "PMIX_NAMESPACE" in environment):
        return ""
    return " ".join(f"{name}={environment[name]}" for name in _NAMES if name in environment)


def _local_size(environment: Mapping[str, str], world_size: int) -> int:
    if found := _first_number(environment, _LOCAL_SIZES):
        return found
    if _number(environment, "SLURM_STEP_NUM_TASKS") > 1 and "SLURM_GTIDS" in environment:
        return len(environment["SLURM_GTIDS"].split(","))
    is_one_machine = environment.get("MASTER_ADDR", "").startswith(_LOOPBACKS)
    return world_size if is_one_machine else 0


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int:
    return next((number for name in names if (number := _number(environment, name))), 0)


def _number(environment: Mapping[str, str], name: str) -> int:
    """Returns a number of the environment, or 0 if it is not there or not a number."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
