# SPDX-License-Identifier: Apache-2.0
"""headrace doctor as a user runs it, on this machine or on a made-up one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import warm
from processes import environment

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


WARM = """
import runpy, sys
import torch
if __name__ == "__main__":
    sys.argv[1:] = ARGUMENTS
    runpy.run_module("headrace", run_name="__main__", alter_sys=True)
"""


def warm_doctor(folder: pathlib.Path, arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that has imported torch."""
    path = folder / "warm_doctor.py"
    path.write_text(WARM.replace("ARGUMENTS", repr(["doctor", *arguments])))
    pipe = subprocess.PIPE
    with warm.WarmPopen(
        [sys.executable, str(path)], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
        stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def doctor(
    *arguments: str,
    folder: pathlib.Path | None = None,
    prefix: list[str] | None = None,
    before: Callable[[], None] | None = None,
    **env: str | None,
) -> subprocess.CompletedProcess[str]:
    """Runs the command; `before` runs in its process first."""
    changes = {"HEADRACE_DISABLE": None, "OMP_NUM_THREADS": None, **env}
    if folder is not None and before is None and warm.fits(WARM, prefix, changes):
        return warm_doctor(folder, list(arguments), environment(**changes))
    return subprocess.run(
        [*(prefix or []), sys.executable, "-m", "headrace", "doctor", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=environment(**changes),
        preexec_fn=before,
    )


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
