# SPDX-License-Identifier: Apache-2.0
"""Observes the cache of this machine: where headrace.cache keeps data here, and how much fits into memory."""

from __future__ import annotations

import os
from typing import Any

from headrace import _core
from headrace._base.units import in_units
from headrace.doctor.observations import Observation

_FIX = "set HEADRACE_CACHE to a folder of your own on a local disk or in /dev/shm"


def _places() -> tuple[str, str]:
    """Returns the folder of the cache, and the one that exists: it, or its parent."""
    root = os.environ.get("HEADRACE_CACHE") or f"/dev/shm/headrace-{os.geteuid()}"
    return root, root if os.path.isdir(root) else os.path.dirname(os.path.abspath(root))


def memory_room(machine: dict[str, Any]) -> int:
    """Returns how many bytes of a cache fit into the memory of this machine. Raises OSError."""
    free = os.statvfs(_places()[1])
    return min(free.f_bavail * free.f_frsize, machine["spare_bytes"] or 0, (machine["available_bytes"] or 0) // 2)


def cache(machine: dict[str, Any]) -> Observation:
    """Checks where a cache would be here. It does not make the folder of a cache that does not exist."""
    root, parent = _places()
    try:
        if os.path.isdir(root):
            _core.Cache(root)  # checks its owner, its mode and its file system
        free = os.statvfs(parent)
    except (OSError, _core.CacheError) as error:
        return Observation("cache", "warning", "not usable", root, f"{error}.", _FIX)
    if not os.access(parent, os.W_OK):
        text = "headrace.cache uses a temporary folder, or a folder on disk, instead."
        return Observation("cache", "note", "not writable", parent, text, _FIX)
    room = memory_room(machine)
    limit = f"free in {parent} {in_units(free.f_bavail * free.f_frsize)}"
    if room < 1 << 30:
        text = "headrace.cache keeps larger data in a folder on disk, which jobs share as page cache."
        return Observation("cache", "note", f"{in_units(room)} fit into memory", limit, text)
    text = "What headrace.cache keeps is there once, for all jobs of this machine."
    return Observation("cache", "ok", f"{in_units(room)} fit into memory", limit, text)
