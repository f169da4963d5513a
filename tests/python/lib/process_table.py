# SPDX-License-Identifier: Apache-2.0
"""The processes of this machine, and those of a parent. It imports nothing of the tests: warm.py and processes.py use
it."""

from __future__ import annotations

import os
import pathlib


def all_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def children(pid: int) -> set[int]:
    """Child processes, zombies included."""
    out: set[int] = set()
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            out.update(int(child) for child in (task / "children").read_text().split())
        except OSError:
            continue
    return out
