# SPDX-License-Identifier: Apache-2.0
"""Says whether a worker waits for a remote object."""

from __future__ import annotations

import os

_NAME = "hr-network"  # of a thread that waits: hr__link_receive in src/remote/connect.c


def waits_for_network(pid: int) -> bool:
    """Returns True if a thread of a process waits for the fetcher. A worker in its place would wait as well."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_name_of(pid, thread) == _NAME for thread in threads)


def _name_of(pid: int, thread: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{thread}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
