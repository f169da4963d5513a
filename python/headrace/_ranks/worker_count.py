# SPDX-License-Identifier: Apache-2.0
"""Says what num_workers="auto" means on this machine: the number by rule, and the most that may be tried. Both loaders
call it, and the fallback, so nothing here needs the extension."""

from __future__ import annotations

import os
from typing import Any

from headrace._base.cores import usable_cores
from headrace._ranks import where

AUTO = "auto"
_PER_CORE = 8  # more workers than that do not help, even if they wait for a disk most of the time
_MOST = 64  # of one loader: each takes descriptors and a process
_FREE_SHARE = 0.8  # of the free memory, that workers may take
FORKED_BYTES = 64 << 20  # private memory of a worker that shares the pages of its parent, about
STARTED_BYTES = 512 << 20  # and of one that has imported torch and has the dataset for itself


class AutoWorkers(int):
    """The most workers of a loader with num_workers="auto", which is what its attribute num_workers says. A loader that
    a framework makes again from the attributes is one with num_workers="auto", too."""


def is_auto(given: Any) -> bool:
    """Returns True for "auto", or for the number that a loader has because of it."""
    return isinstance(given, AutoWorkers) or (isinstance(given, str) and given == AUTO)


def by_rule() -> int:
    """Returns the number of workers without trying: one for each core of this rank but one, which the training loop
    needs."""
    return max(1, min(_MOST, _cores_of_rank(_machine()) - 1))


def most(is_forked: bool) -> int:
    """Returns how many workers may be tried: eight for each core of this rank, as far as 80 % of the free memory and
    the limit on processes allow them."""
    machine = _machine()
    spare, processes = machine["spare_bytes"], machine["process_room"]
    room = min(_MOST, _PER_CORE * _cores_of_rank(machine))
    if spare is not None:
        each = FORKED_BYTES if is_forked else STARTED_BYTES
        room = min(room, int(_FREE_SHARE * spare / turn()[1] / each))
    if processes is not None:
        room = min(room, processes // turn()[1] - 1)
    return max(1, room)


def turn() -> tuple[int, int]:
    """Returns the number of this rank on this machine, and how many there are."""
    try:
        place = where.find()
    except (TypeError, ValueError):  # what the launcher says is wrong
        return 0, 1
    if place.local_rank is None or not place.local_world_size:
        return 0, 1
    return place.local_rank % place.local_world_size, place.local_world_size


def _cores_of_rank(machine: dict[str, Any]) -> int:
    return max(1, usable_cores(machine) // turn()[1])


def _machine() -> dict[str, Any]:
    try:
        from headrace import _core
    except ImportError:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {"core_count": count or 1, "cgroup_millicores": None, "spare_bytes": None, "process_room": None}
    return _core.machine()
