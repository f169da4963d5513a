# SPDX-License-Identifier: Apache-2.0
"""Counts the cores that this process may use. The doctor, headrace.lengths and the cache call it."""

from __future__ import annotations

import math
import operator
from typing import Any


def usable_cores(machine: dict[str, Any]) -> int:
    """Returns how many cores this process can keep busy, by its affinity and the cgroup's quota. machine: what
    _core.machine() has returned."""
    quota = machine["cgroup_millicores"]
    count = int(machine["core_count"])
    return count if quota is None else max(1, min(count, math.ceil(quota / 1000)))


def check_workers(workers: Any, who: str) -> int:
    """Returns a number of worker processes as the user gave it: -1 means one for each core. Raises TypeError,
    ValueError."""
    try:
        count = operator.index(workers)
    except TypeError:
        raise TypeError(f"{who}: workers should be an int, but got {workers!r}") from None
    if count < -1:
        raise ValueError(f"{who}: workers should be -1 (one for each core), or 0 or more, but got {count}")
    return count
