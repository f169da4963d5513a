# SPDX-License-Identifier: Apache-2.0
"""Finds the rank of this process, the number of ranks, and where they are said. The samplers of headrace.torch, the
loaders' reports and the doctor call `find`. It needs neither torch nor the extension."""

from __future__ import annotations

import operator
import os
import re
import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headrace._base.help_key import help_on

NOWHERE = "none"  # the source if nothing says that there are ranks
_ARGUMENTS = "arguments: num_replicas, rank"
_SPECIAL_STEPS = 0xFFFFFFF0  # Slurm numbers the batch script and the like from here on: they are not ranks of a step


@dataclass(frozen=True)
class RankPlace:
    """The rank of this process in a training, from 0 to world_size - 1.

    local_rank, local_world_size: the same among the ranks of this machine; None if they are not known. source: what
    says so, for reports.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    source: str


class _Variables(NamedTuple):
    """The environment variables in which a launcher says where a process is."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_PLAIN = _Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # torchrun, headrace run, Ray Train
_SLURM = _Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
_OPEN_MPI = _Variables(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
_HYDRA = _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # of MPICH and Intel MPI


def rank_or_zero() -> int:
    """Returns the rank of this process, or 0 if nothing says it, or if what says it is wrong."""
    try:
        return find().rank
    except (TypeError, ValueError):
        return 0


def find(num_replicas: int | None = None, rank: int | None = None) -> RankPlace:
    """Returns the place of this process among the ranks of its training.

    The first of these that says it counts: the arguments; torch.distributed's default group, if it is initialized; the
    variables of torchrun, Slurm, Open MPI and Hydra. Without all of them, it is rank 0 of 1.

    If only one of the arguments is given, the other one is found, and the given one has to be the same as the one that
    is found with it. Raises TypeError and ValueError, which name the argument or the variable that is wrong.
    """
    if num_replicas is not None:
        num_replicas = _check_size(num_replicas)
    if num_replicas is not None and rank is not None:
        return _given(num_replicas, rank)
    found = _find_around()
    return found if num_replicas is None and rank is None else _completed(found, num_replicas, rank)


def _check_int(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"headrace: {name} should be an int, but got {value!r}") from None


def _check_size(num_replicas: Any) -> int:
    size = _check_int("num_replicas", num_replicas)
    if size < 1:
        raise ValueError(f"headrace: num_replicas should be 1 or more, the number of all ranks, but got {size}")
    return size


def _check_rank(rank: Any, world_size: int) -> int:
    number = _check_int("rank", rank)
    if not 0 <= number < world_size:
        raise ValueError(f"headrace: rank should be from 0 to {world_size - 1} of {world_size} ranks, but got {number}")
    return number


def _given(num_replicas: int, rank: Any) -> RankPlace:
    """Returns the place that both arguments give. The ranks of this machine are known if a launcher says the same."""
    number = _check_rank(rank, num_replicas)
    try:
        found = _find_around()
    except ValueError:  # what is wrong around this process does not matter
        found = RankPlace(0, 1, None, None, "")
    if (found.rank, found.world_size) == (number, num_replicas):
        return replace(found, source=_ARGUMENTS)
    return RankPlace(number, num_replicas, None, None, _ARGUMENTS)


def _completed(found: RankPlace, num_replicas: int | None, rank: Any) -> RankPlace:
    """Returns the place that was found, if the one argument that is given is the same there."""
    if num_replicas is None:
        _check_same("rank", _check_int("rank", rank), "num_replicas", found.rank, found)
    else:
        _check_same("num_replicas", num_replicas, "rank", found.world_size, found)
    return found


def _check_same(name: str, given: int, other: str, seen: int, found: RankPlace) -> None:
    if given != seen:
        raise ValueError(
            f"headrace: {name}={given} is given without {other}, but this process is rank {found.rank} of "
            f"{found.world_size} (found in: {found.source}); give both num_replicas and rank" + help_on("rank-unknown")
        )


def _find_around() -> RankPlace:
    place = _of_torch() or _of_environment()
    if place is not None:
        return place
    _check_halves()
    return RankPlace(0, 1, 0, 1, NOWHERE)


def _of_torch() -> RankPlace | None:
    """Returns the place in torch.distributed's default group, or None. It does not import torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_available = getattr(distributed, "is_available", None)  # None while another thread is importing torch
    if is_available is None or not is_available() or not distributed.is_initialized():
        return None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    around = _of_environment_or_none()
    local = (around.local_rank, around.local_world_size) if around and around.rank == rank else (None, None)
    return RankPlace(rank, size, *local, "torch.distributed's default group")


def _of_environment_or_none() -> RankPlace | None:
    try:
        return _of_environment()
    except ValueError:  # torch.distributed has said what matters
        return None


def _of_environment() -> RankPlace | None:
    if _has_both(_PLAIN):
        return _read(_PLAIN)
    if _is_slurm_step():
        return replace(_read(_SLURM), local_world_size=_count_slurm_tasks_here())
    for variables in (_OPEN_MPI, _HYDRA):
        if _has_both(variables):
            return _read(variables)
    return None


def _has_both(variables: _Variables) -> bool:
    return bool(os.environ.get(variables.rank) and os.environ.get(variables.world_size))


def _number(name: str) -> int:
    """Returns an environment variable as a number. Raises ValueError if it is missing or is not a number."""
    text = os.environ.get(name, "")
    if not text:
        raise ValueError(
            f"headrace: the environment variable {name} is not set; give num_replicas and rank"
            + help_on("rank-unknown")
        )
    if not re.fullmatch("[0-9]{1,10}", text):
        raise ValueError(f"headrace: the environment variable {name} should be a number from 0 on, but is {text!r}")
    return int(text)


def _local_number(name: str) -> int | None:
    return _number(name) if os.environ.get(name) else None


def _read(variables: _Variables) -> RankPlace:
    rank, size = _number(variables.rank), _number(variables.world_size)
    if rank >= size:
        raise ValueError(
            f"headrace: the environment variable {variables.rank} is {rank}, but {variables.world_size} is {size}; the "
            "rank should be from 0 to the number of ranks - 1"
        )
    source = f"environment: {variables.rank}, {variables.world_size}"
    return RankPlace(rank, size, _local_number(variables.local_rank), _local_number(variables.local_world_size), source)


def _is_slurm_step() -> bool:
    """Returns True if srun has started this process as a task of a step. A batch script has SLURM_PROCID=0, but is not
    a task of a step, and neither is an interactive shell."""
    return bool(os.environ.get("SLURM_STEP_ID")) and _number("SLURM_STEP_ID") < _SPECIAL_STEPS


def _count_slurm_tasks_here() -> int | None:
    """Returns how many tasks of the step run on this machine. SLURM_GTIDS lists them; there may be another number of
    them on each machine."""
    return len(os.environ["SLURM_GTIDS"].split(",")) if os.environ.get("SLURM_GTIDS") else None


def _check_halves() -> None:
    """Raises ValueError if the environment says half of what is needed, because rank 0 of 1 would be wrong."""
    for variables in (_PLAIN, _OPEN_MPI, _HYDRA):
        for name, missing in (variables[:2], variables[1::-1]):
            if os.environ.get(name):
                raise ValueError(
                    f"headrace: the environment variable {name} is {os.environ[name]!r}, but {missing} is not set; "
                    "set it, give num_replicas and rank, or do this after torch.distributed.init_process_group()"
                    + help_on("rank-unknown")
                )
    if os.environ.get("PMIX_RANK"):
        raise ValueError(
            f"headrace: the environment variable PMIX_RANK is {os.environ['PMIX_RANK']!r}, but no variable says how "
            "many ranks there are; give num_replicas and rank" + help_on("rank-unknown")
        )
