# SPDX-License-Identifier: Apache-2.0
"""Counts the cores that this process may use. The doctor and headrace.lengths call it."""

from __future__ import annotations

import math
from typing import Any


def usable_cores(machine: dict[str, Any]) -> int:
    """Returns how many cores this process can keep busy, by its affinity and the cgroup's quota. machine: what
    _core.machine() has returned."""
    quota = machine["cgroup_millicores"]
    count = int(machine["core_count"])
    return count if quota is None else max(1, min(count, math.ceil(quota / 1000)))
