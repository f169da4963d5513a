# SPDX-License-Identifier: Apache-2.0
"""Makes all observations of this machine."""

from __future__ import annotations

from headrace import _core
from headrace._base.cores import usable_cores
from headrace.doctor.machine import cache, limits, system
from headrace.doctor.observations import Observation


def check_machine(workers: int | None) -> list[Observation]:
    """Returns all observations. `workers` is how many a loader will have; None: one for each usable core."""
    machine = _core.machine()
    count = usable_cores(machine) if workers is None else workers
    return [
        system.engine(),
        system.torch(),
        limits.shm(machine),
        limits.memory(machine),
        cache.cache(machine),
        limits.cores(machine, workers, limits.threads_set()),
        limits.open_files(count),
        limits.processes(machine, count),
        system.start_method(),
        system.images(),
        system.huge_pages(),
        system.kernel(machine),
        system.debuggers(),
    ]
