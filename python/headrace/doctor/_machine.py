# SPDX-License-Identifier: Apache-2.0
"""headrace doctor: what this machine, its container and its limits mean for a loader."""

from __future__ import annotations

import argparse
import importlib
import math
import mmap
import multiprocessing
import os
import platform
import resource
import sys
import threading
from typing import Any

from headrace._commands import target
from headrace._errors.units import in_units
from headrace._start import fork_hazards
from headrace.doctor import _findings
from headrace.doctor._findings import Finding

_DESCRIPTION = """\
Without arguments: what this machine, its container and its limits mean for
loaders. With --run: runs a loader and says how it spends its time, what grows
in its workers, how many workers are enough, and what is wrong with its sampler
or its padding. module:make_loader, or path/script.py:make_loader, is a loader or
gives one when it is called without arguments.

Exit code 0: nothing is wrong; 1: warnings; 2: errors.
"""
_GIB = 1 << 30
_MIB = 1 << 20
_NO_LIMIT = 1 << 60  # sandboxes give 2^63 for a size that nothing bounds
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FDS_OF_A_WORKER = 4  # in the trainer
FDS_OF_A_SCRIPT = 64  # of Python, its libraries, a log or two


# ---- where things are ----


def _root() -> str:
    """$HEADRACE_ROOT stands for / in development builds, as in src/os."""
    from headrace import _core

    return os.environ.get("HEADRACE_ROOT", "") if _core.FAILPOINTS else ""


def _read(path: str) -> str | None:
    try:
        with open(_root() + path) as file:
            return file.read()
    except OSError:
        return None


def container() -> str | None:
    """What kind of container this is, or None."""
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(_root() + path):
            return kind
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = _read("/proc/self/cgroup") or ""
    return next((kind for kind in ("kubepods", "docker", "lxc") if kind in groups), None)


def _raise_limit(docker: str, slurm: str, plain: str) -> str:
    """The command that gives more, where this runs."""
    if container() is not None:
        return f"docker run {docker} ... (Kubernetes: resources.limits)"
    return f"sbatch {slurm}" if slurm and "SLURM_JOB_ID" in os.environ else plain


# ---- findings ----


def _size_in_mounts() -> int | None:
    """The size option that /dev/shm is mounted with, in bytes."""
    found = None
    for line in (_read("/proc/self/mounts") or "").splitlines():
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
    if size is not None or _root():
        return size
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def shm(machine: dict[str, Any]) -> Finding:
    """/dev/shm, which torch's loader needs and headrace does not."""
    size = _shm_bytes()
    value = "there is none" if size is None else "no limit" if size >= _NO_LIMIT else in_units(size)
    if machine["has_memfd"]:
        return Finding(
            "/dev/shm",
            "ok",
            value,
            "headrace puts nothing there",
            "Batches cross in memory without a file (memfd): docker run --ipc=host and --shm-size are not needed for "
            "headrace. torch's own DataLoader, multiprocessing's queues and NCCL use /dev/shm.",
        )
    return Finding(
        "/dev/shm",
        "warning" if size is not None and size >= _GIB else "error",
        value,
        "this kernel or sandbox refuses memfd_create",
        "Batches then cross in files without names in /dev/shm, or in $TMPDIR where that is full.",
        "docker run --shm-size=8g ...   or allow memfd_create in the seccomp profile",
    )


def memory(machine: dict[str, Any]) -> Finding:
    """The machine's and the container's memory, and what is to spare."""
    limit, spare = machine["cgroup_limit_bytes"], machine["spare_bytes"]
    total = machine["memory_bytes"]
    is_limited = limit is not None and (total is None or limit < total)
    by = "not known how much there is" if total is None else f"of {in_units(total)} in the machine"
    if is_limited:
        by = f"the cgroup's limit of {in_units(limit)}"
    if spare >= _GIB:
        severity = "ok"
    else:
        severity = "error" if spare < 64 * _MIB else "warning"
    return Finding(
        "memory",
        severity,
        f"{in_units(spare)} to spare",
        by,
        f"A loader takes up to {in_units(spare / 2)} of it for batches, unless arena_limit says otherwise."
        + (" Workers that grow beyond it are killed by the kernel." if severity != "ok" else ""),
        ""
        if severity == "ok"
        else _raise_limit("--memory=16g", "--mem=16G", "end other processes, or use fewer workers and smaller batches"),
    )


def open_files(workers: int) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    value = "no limit" if soft == unlimited else f"{soft:,}"
    limit = "no hard limit" if hard == unlimited else f"at most {hard:,}"
    need = FDS_OF_A_SCRIPT + FDS_OF_A_WORKER * workers
    if soft == unlimited or soft >= need:
        return Finding("open files", "ok", value, limit)
    text = (
        f"headrace has {FDS_OF_A_WORKER} open for each worker and none for a batch: {workers} workers and a script "
        f"need about {need}."
    )
    wanted = 65536 if hard == unlimited else min(hard, 65536)
    docker = " (or docker run --ulimit nofile=65536:65536 ...)" if container() else ""
    return Finding("open files", "error", value, limit, text, f"ulimit -n {wanted}{docker}")


def usable_cores(machine: dict[str, Any]) -> int:
    """Cores that this process can keep busy: by its affinity and the cgroup's quota."""
    quota = machine["cgroup_millicores"]
    cores = int(machine["core_count"])
    return cores if quota is None else max(1, min(cores, math.ceil(quota / 1000)))


def _threads_set() -> int | None:
    """The threads that libraries are told to use, the most of them."""
    counts = [int(value) for value in map(os.environ.get, _THREADS) if value and value.isdecimal()]
    return max(counts, default=None)


def _online_cores() -> int:
    return os.cpu_count() or 1


def cores(machine: dict[str, Any], workers: int | None, threads: int | None) -> Finding:
    """Cores against workers x threads. `workers`, `threads` of each: as asked for, or None."""
    usable, allowed, online = usable_cores(machine), int(machine["core_count"]), _online_cores()
    value = "1 core" if usable == 1 else f"{usable} cores"
    by = "all of the machine's" if usable == online else f"of {online}, by affinity"
    if usable < allowed:
        by = f"by the cgroup's quota of processor time; {allowed} by affinity"
    wanted = (workers or 0) * (threads or 1)
    counted = _threads_set()
    if wanted > usable:
        text = f"{workers} workers with {threads or 1} threads each want {wanted}, and the trainer one more: they wait."
        fix = f"num_workers={max(1, (usable - 1) // (threads or 1))}, and export OMP_NUM_THREADS=1"
    elif usable < allowed and (counted is None or counted > usable):
        text = (
            f"Libraries count {allowed} cores and start as many threads in each process; the kernel then stops all of "
            "them for most of each period."
        )
        fix = f"export OMP_NUM_THREADS={usable}" + (" (or docker run --cpus=8 ...)" if container() else "")
    elif usable == 1 and online > 1:
        text = "Workers and trainer share one core: more workers make nothing faster."
        fix = _raise_limit("--cpus=8", "--cpus-per-task=8", f"taskset -pc 0-{online - 1} $$")
    else:
        return Finding(
            "cores", "ok", value, by, f"Workers x threads and the trainer should not want more than {usable}."
        )
    return Finding("cores", "warning", value, by, text, fix)


def processes(machine: dict[str, Any], workers: int) -> Finding:
    room = machine["process_room"]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [limit for limit in (room, None if soft == resource.RLIM_INFINITY else soft) if limit is not None]
    least = min(limits, default=None)
    is_short = least is not None and least < 2 * workers + 16
    return Finding(
        "processes",
        "error" if is_short else "ok",
        "no limit" if least is None else f"{least:,} more" if least == room else f"{least:,}",
        "cgroup's pids.max" if least is not None and least == room else "ulimit -u",
        f"{workers} workers and their threads may not start." if is_short else "",
        _raise_limit("--pids-limit=-1", "", "ulimit -u unlimited") if is_short else "",
    )


def start_method() -> Finding:
    """How workers start where a loader is not told otherwise."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    method = chosen or multiprocessing.get_context().get_start_method()
    said = f"CPython {platform.python_version()}'s default" if chosen is None else "set by the script"
    if method == "fork":
        text = (
            "Nothing is pickled. Threads, CUDA and the pools of OpenCV and OpenMP do not survive a fork: "
            "headrace doctor --run module:make_loader looks whether the script has such."
        )
    else:
        text = (
            "The data set, the sampler and the collate function are pickled: "
            "headrace doctor module:make_dataset checks whether they can be."
        )
    return Finding("start method", "ok", method, said, text)


def _chosen(text: str | None) -> str | None:
    """Of "always [madvise] never", madvise."""
    return None if text is None or "[" not in text else text[text.index("[") + 1 : text.index("]")]


def huge_pages() -> Finding:
    """Whether the arena's memory may be mapped by huge pages."""
    path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    mode = _chosen(_read(path))
    if mode in ("always", "advise", "within_size", "force"):
        return Finding("huge pages", "ok", mode, "for shared memory")
    return Finding(
        "huge pages",
        "note",
        mode or "not there",
        "for shared memory",
        f"Batches are in pages of {mmap.PAGESIZE >> 10} KiB: the first touch of fresh memory costs more. "
        "What is used again costs the same.",
        f"echo advise | sudo tee {path}" if mode else "",
    )


_ALLOW = (
    "a later kernel, another sandbox than gVisor, or a seccomp profile that allows it (docker run --security-opt "
    "seccomp=unconfined)"
)
# Of hr_machine_look: name, what stands in for it, what brings it.
_MEANS = {
    "has_pidfd": ("pidfd", "a pipe tells of a worker's end", _ALLOW),
    "has_memfd": ("memfd", "a file without a name in /dev/shm holds the batches", _ALLOW),
    "has_end_signals": (
        "signals of a pipe's end",
        "when the trainer is killed, a busy worker ends once its batch is made",
        "Linux 5.6 or later",
    ),
    "gives_holes_back": (
        "returning parts of shared memory",
        "the memory of a batch is given back as a whole, once nothing of it is kept",
        _ALLOW,
    ),
}


def kernel(machine: dict[str, Any]) -> Finding:
    """What headrace uses of the kernel, and what stands in for it."""
    gone = [means for key, means in _MEANS.items() if not machine[key]]
    if not gone:
        return Finding("kernel", "ok", f"Linux {platform.release()}", ", ".join(name for name, _, _ in _MEANS.values()))
    names, others, fixes = zip(*gone, strict=True)
    return Finding(
        "kernel",
        "note",
        f"Linux {platform.release()}, without {' and '.join(names)}",
        "not in this kernel, or refused by a sandbox",
        f"Other means stand in: {', '.join(others)}.",
        ", ".join(dict.fromkeys(fixes)),
    )


def debuggers() -> Finding:
    """Whether a stuck worker's native stacks can be seen from outside. Its Python stacks headrace shows by itself."""
    scope = (_read("/proc/sys/kernel/yama/ptrace_scope") or "0").strip()
    if scope in ("", "0"):
        return Finding("debuggers", "ok", "may attach", "yama.ptrace_scope 0")
    return Finding(
        "debuggers",
        "note",
        "may not attach to a running process" if scope != "3" else "may not attach at all",
        f"yama.ptrace_scope {scope}",
        "headrace shows the Python stacks of a stuck worker all the same; py-spy and gdb need rights.",
        "sudo sysctl kernel.yama.ptrace_scope=0" if scope != "3" else "",
    )


def engine() -> Finding:
    """Whether headrace's engine runs here at all."""
    if os.environ.get("HEADRACE_DISABLE", "") not in ("", "0"):
        limit = "HEADRACE_DISABLE is set"
        return Finding("engine", "warning", "torch's own", limit, "headrace does nothing.", "unset HEADRACE_DISABLE")
    reason = importlib.import_module("headrace._engine.engine").why_not()
    if reason is not None:
        return Finding(
            "engine",
            "error",
            "torch's own",
            reason,
            "The sandbox refuses what headrace needs: eventfd, or any shared memory.",
            "docker run --security-opt seccomp=unconfined ...",
        )
    from headrace import _core

    return Finding("engine", "ok", f"headrace {_core.VERSION}", sys.executable)


def hazards() -> list[Finding]:
    """What this process, which holds a loader, has that forked workers may hang or fail by."""
    found = []
    names = fork_hazards.other_threads()
    total = fork_hazards.count_threads()
    torch = sys.modules.get("torch")
    avoid = 'multiprocessing_context="forkserver" for the loader'
    if torch is not None and torch.cuda.is_initialized():
        text = "Workers that are forked from here cannot use it."
        found.append(Finding("CUDA", "error", "initialised", "at fork", text, avoid))
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        text = "A lock that one of them holds while a worker is forked stays locked in the worker, which then hangs."
        found.append(Finding("threads", "warning", f"{len(names)} of Python", shown, text, avoid))
    if (threads := fork_hazards.opencv_threads_set()) > 1:
        text = "Its pool's threads are not in a forked worker, which may wait for them without end."
        found.append(Finding("OpenCV", "warning", f"{threads} threads", "at fork", text, "cv2.setNumThreads(0)"))
    # numpy's OpenBLAS has threads for all but one core since its import, and ends them before a fork.
    others = total - threading.active_count() - (os.cpu_count() or 1) * ("numpy" in sys.modules)
    if others > 0:
        text = "A pool that a library has started (OpenMP, OpenCV, gRPC): a worker that is forked now does not have it."
        fix = f"{avoid}, or export OMP_NUM_THREADS=1"
        found.append(Finding("native threads", "warning", f"{others}", "not Python's", text, fix))
    return found


def machine_findings(workers: int | None) -> list[Finding]:
    """All of them; `workers` is how many a loader will have, or None."""
    try:
        from headrace import _core
    except ImportError as error:
        text = "The extension cannot be loaded: headrace.torch.DataLoader is torch's own loader here."
        fix = f"{sys.executable} -m pip install --force-reinstall headrace"
        return [Finding("engine", "error", "not there", str(error), text, fix)]
    machine = _core.machine()
    count = usable_cores(machine) if workers is None else workers
    return [
        engine(),
        shm(machine),
        memory(machine),
        cores(machine, workers, _threads_set()),
        open_files(count),
        processes(machine, count),
        start_method(),
        huge_pages(),
        kernel(machine),
        debuggers(),
    ]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"should be a positive integer, but got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace doctor", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine-help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.add_argument("--workers", type=_positive, metavar="N", help="how many workers the machine is judged for")
    parser.add_argument("--run", metavar="SOURCE", help="run this loader")
    parser.add_argument("--batches", type=_positive, default=200, metavar="N", help="how many of its (default: 200)")
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    asked = _parser().parse_args(arguments)
    if asked.run:
        from headrace.doctor import _run

        return _run.main(asked.run, asked.batches, asked.json)
    findings = machine_findings(asked.workers)
    if asked.json:
        core = sys.modules.get("headrace._core")
        text = _findings.as_json(findings, machine=core.machine() if core else None)
    else:
        text = _findings.as_text(findings)
    return target.say(text, sys.stdout, _findings.exit_code(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
