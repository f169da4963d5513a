# SPDX-License-Identifier: Apache-2.0
"""Compares what a loader needs with the limits of this machine: memory, cores, processes and open files."""

from __future__ import annotations

import os
import resource
from typing import Any

from headrace._base.cores import usable_cores
from headrace._base.units import in_units
from headrace.doctor.machine.container import container, raise_limit, read, root
from headrace.doctor.observations import Observation

_GIB = 1 << 30
_MIB = 1 << 20
_NO_LIMIT = 1 << 60  # sandboxes report a size of 2^63 if there is no limit
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FDS_OF_A_WORKER = 4  # file descriptors in the trainer for each worker
FDS_OF_A_SCRIPT = 64  # file descriptors of Python, its libraries and some logs


# ---- memory ----


def _size_in_mounts() -> int | None:
    """Returns the size option that /dev/shm is mounted with, in bytes."""
    found = None
    for line in (read("/proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[1] != "/dev/shm":
            continue
        for option in fields[3].split(","):
            name, _, value = option.partition("=")
            number, unit = value.rstrip("kmgKMG"), value[-1:].lower()
            if name == "size" and number.isdecimal():
                found = int(number) << {"k": 10, "m": 20, "g": 30}.get(unit, 0)
    return found


def _shm_bytes() -> int | None:
    size = _size_in_mounts()
    if size is not None or root():
        return size
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def shm(machine: dict[str, Any]) -> Observation:
    """Checks /dev/shm, which torch's loader needs and headrace does not."""
    size = _shm_bytes()
    value = "not available" if size is None else "no limit" if size >= _NO_LIMIT else in_units(size)
    if machine["has_memfd"]:
        return Observation(
            "/dev/shm",
            "ok",
            value,
            "headrace puts nothing there",
            "Batches are in memory without a file (memfd): headrace does not need docker run --ipc=host or --shm-size. "
            "torch's own DataLoader, multiprocessing's queues and NCCL use /dev/shm.",
        )
    return Observation(
        "/dev/shm",
        "warning" if size is not None and size >= _GIB else "error",
        value,
        "this kernel or sandbox refuses memfd_create",
        "Batches are then in files without names in /dev/shm, or in $TMPDIR if /dev/shm is full.",
        "docker run --shm-size=8g ...   or allow memfd_create in the seccomp profile",
    )


def memory(machine: dict[str, Any]) -> Observation:
    """Checks the memory that is available in the machine and in the container."""
    limit, spare = machine["cgroup_limit_bytes"], machine["spare_bytes"]
    total = machine["memory_bytes"]
    is_limited = limit is not None and (total is None or limit < total)
    by = "the machine's memory is unknown" if total is None else f"of {in_units(total)} in the machine"
    if is_limited:
        by = f"the cgroup's limit is {in_units(limit)}"
    severity = "ok" if spare >= _GIB else "error" if spare < 64 * _MIB else "warning"
    consequence = f"A loader uses up to {in_units(spare / 2)} of it for batches, unless its option arena_limit is set."
    if severity == "ok":
        return Observation("memory", severity, f"{in_units(spare)} available", by, consequence)
    consequence += " If workers need more than is available, the kernel kills them."
    fix = "end other processes, or use fewer workers and smaller batches"
    fix = raise_limit("--memory=16g", "--mem=16G", fix)
    return Observation("memory", severity, f"{in_units(spare)} available", by, consequence, fix)


# ---- cores ----


def threads_set() -> int | None:
    """Returns how many threads the environment tells libraries to use: the maximum of the variables, or None."""
    counts = [int(value) for value in map(os.environ.get, _THREADS) if value and value.isdecimal()]
    return max(counts, default=None)


def _online_cores() -> int:
    return os.cpu_count() or 1


def cores(machine: dict[str, Any], workers: int | None, threads: int | None) -> Observation:
    """Compares the cores with workers x threads. None: the user has not set that number."""
    usable, allowed, online = usable_cores(machine), int(machine["core_count"]), _online_cores()
    value = "1 core" if usable == 1 else f"{usable} cores"
    by = "all of the machine's" if usable == online else f"of {online}, by affinity"
    if usable < allowed:
        by = f"by the cgroup's CPU quota; {allowed} by affinity"
    wanted = (workers or 0) * (threads or 1)
    counted = threads_set()
    if wanted > usable:
        text = f"{workers} workers with {threads or 1} threads each need {wanted} cores, and the trainer needs one more"
        text += ": they wait for each other."
        fix = f"num_workers={max(1, (usable - 1) // (threads or 1))}, and export OMP_NUM_THREADS=1"
    elif usable < allowed and (counted is None or counted > usable):
        text = (
            f"Libraries see {allowed} cores and start that many threads in each process. The CPU quota is smaller, so "
            "the kernel pauses all of them for part of each period."
        )
        fix = f"export OMP_NUM_THREADS={usable}" + (" (or docker run --cpus=8 ...)" if container() else "")
    elif usable == 1 and online > 1:
        text = "Workers and trainer share one core: more workers do not make anything faster."
        fix = raise_limit("--cpus=8", "--cpus-per-task=8", f"taskset -pc 0-{online - 1} $$")
    else:
        text = (
            f"The training process, and num_workers times threads, should not compute on more than {usable} together."
        )
        return Observation("cores", "ok", value, by, text)
    return Observation("cores", "warning", value, by, text, fix)


# ---- processes and files ----


def open_files(workers: int) -> Observation:
    """Checks the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    value = "no limit" if soft == unlimited else f"{soft:,}"
    limit = "no hard limit" if hard == unlimited else f"at most {hard:,}"
    need = FDS_OF_A_SCRIPT + FDS_OF_A_WORKER * workers
    if soft == unlimited or soft >= need:
        return Observation("open files", "ok", value, limit)
    text = (
        f"headrace has {FDS_OF_A_WORKER} files open for each worker and none for a batch: {workers} workers and a "
        f"script need about {need}."
    )
    wanted = 65536 if hard == unlimited else min(hard, 65536)
    docker = " (or docker run --ulimit nofile=65536:65536 ...)" if container() else ""
    return Observation("open files", "error", value, limit, text, f"ulimit -n {wanted}{docker}")


def processes(machine: dict[str, Any], workers: int) -> Observation:
    """Checks the limits on processes."""
    room = machine["process_room"]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [limit for limit in (room, None if soft == resource.RLIM_INFINITY else soft) if limit is not None]
    least = min(limits, default=None)
    is_short = least is not None and least < 2 * workers + 16
    return Observation(
        "processes",
        "error" if is_short else "ok",
        "no limit" if least is None else f"{least:,} more" if least == room else f"{least:,}",
        "cgroup's pids.max" if least is not None and least == room else "ulimit -u",
        f"{workers} workers and their threads may not start." if is_short else "",
        raise_limit("--pids-limit=-1", "", "ulimit -u unlimited") if is_short else "",
    )
