# SPDX-License-Identifier: Apache-2.0
"""headrace doctor as a user runs it, on this machine or on a made-up one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from processes import run_python

GIB = 1 << 30

# HEADRACE_ROOT does not cover the cores that a process may use: if there is one core, the doctor always warns of it.
needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) == 1 < (os.cpu_count() or 1), reason="one of several cores, which is a warning"
)

# A container with cgroup v2, 8 GiB of memory and docker's /dev/shm of 64 MB.
CONTAINER = {
    "/.dockerenv": "",
    "/proc/meminfo": "MemTotal:       65536000 kB\nMemFree:         100 kB\nMemAvailable:   60000000 kB\n",
    "/proc/self/cgroup": "0::/\n",
    "/proc/self/mounts": "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n",
    "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "/sys/fs/cgroup/memory.current": f"{GIB}\n",
    "/sys/fs/cgroup/cpu.max": "max 100000\n",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force\n",
    "/proc/sys/kernel/yama/ptrace_scope": "0\n",
}


def make_machine(root: pathlib.Path, **changes: str) -> str:
    """Makes a folder that replaces / in development builds. `changes`: a file's name, its dots as __, -> its text."""
    files = dict(CONTAINER)
    for name, text in changes.items():
        (path,) = [path for path in files if path.rpartition("/")[2].replace(".", "__") == name]
        files[path] = text
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(root)


def doctor(
    *arguments: str,
    folder: pathlib.Path | None = None,
    prefix: list[str] | None = None,
    before: Callable[[], None] | None = None,
    **env: str | None,
) -> subprocess.CompletedProcess[str]:
    """Runs the command; `before` runs in its process first."""
    changes = {"HEADRACE_DISABLE": None, "OMP_NUM_THREADS": None, **env}
    words = ["-m", "headrace", "doctor", *arguments]
    return run_python(folder or pathlib.Path.cwd(), *words, prefix=prefix, before=before, **changes)


def findings(*arguments: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Returns the findings of --json by their names: the first of each name."""
    result = doctor("--json", *arguments, **options)
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["exit_code"] == result.returncode
    found: dict[str, dict[str, Any]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["name"], finding)
    return found
