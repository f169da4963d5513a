# SPDX-License-Identifier: Apache-2.0
"""Checks what the kernel and Python of this machine offer: start method, huge pages, kernel features, debuggers."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import re
import sys
from importlib import metadata
from typing import Any

from headrace import _core
from headrace._base import this_process
from headrace._base.jpeg import GET_JPEG, NO_JPEG
from headrace._tensors import torch_names
from headrace.doctor.machine.container import read
from headrace.doctor.observations import Observation

_ALLOW = (
    "a later kernel, another sandbox than gVisor, or a seccomp profile that allows it (docker run --security-opt "
    "seccomp=unconfined)"
)
# A key of _core.machine() -> (name of the feature, what headrace does without it, how to get it)
_FEATURES = {
    "has_pidfd": ("pidfd", "a pipe shows that a worker has ended", _ALLOW),
    "has_memfd": ("memfd", "a file without a name in /dev/shm holds the batches", _ALLOW),
    "has_end_signals": (
        "signals when a pipe is closed",
        "if the trainer is killed, a busy worker ends when its batch is complete",
        "Linux 5.6 or later",
    ),
    "gives_holes_back": (
        "freeing parts of shared memory",
        "the memory of a batch is freed as a whole, when no part of it is used",
        _ALLOW,
    ),
}


def images() -> Observation:
    """Says whether headrace.images decodes JPEG files in C."""
    if _core.HAS_JPEG:
        return Observation("images", "ok", "libjpeg-turbo", "headrace.images", "JPEG files can be decoded in C.")
    return Observation(
        "images", "note", "no libjpeg-turbo", "headrace.images", f"{NO_JPEG[0].upper()}{NO_JPEG[1:]}.", GET_JPEG
    )


def start_method() -> Observation:
    """Describes how workers start if a loader does not set it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    method = chosen or multiprocessing.get_context().get_start_method()
    origin = f"CPython {platform.python_version()}'s default" if chosen is None else "set by the script"
    if method == "fork":
        text = (
            "Nothing is pickled. Threads, CUDA and the pools of OpenCV and OpenMP do not survive a fork: "
            "headrace doctor --run module:make_loader checks whether the script has any."
        )
    else:
        text = (
            "The dataset, the sampler and the collate function are pickled: "
            "headrace doctor module:make_dataset checks whether they can be."
        )
    return Observation("start method", "ok", method, origin, text)


def _chosen(text: str | None) -> str | None:
    """Returns "madvise" of "always [madvise] never"."""
    return None if text is None or "[" not in text else text[text.index("[") + 1 : text.index("]")]


def huge_pages() -> Observation:
    """Checks whether the shared memory of batches may use huge pages."""
    path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    mode = _chosen(read(path))
    if mode in ("always", "advise", "within_size", "force"):
        return Observation("huge pages", "ok", mode, "for shared memory")
    return Observation(
        "huge pages",
        "note",
        mode or "not available",
        "for shared memory",
        f"Batches are in pages of {mmap.PAGESIZE >> 10} KiB, so the first use of new memory costs more. "
        "Memory that is used again costs the same.",
        f"echo advise | sudo tee {path}" if mode else "",
    )


def kernel(machine: dict[str, Any]) -> Observation:
    """Checks which features of the kernel are available, and says what headrace does without the others."""
    missing = [feature for key, feature in _FEATURES.items() if not machine[key]]
    if not missing:
        available = ", ".join(name for name, _, _ in _FEATURES.values())
        return Observation("kernel", "ok", f"Linux {platform.release()}", f"it has what headrace uses: {available}")
    names, others, fixes = zip(*missing, strict=True)
    return Observation(
        "kernel",
        "note",
        f"Linux {platform.release()}, without {' and '.join(names)}",
        "not in this kernel, or refused by a sandbox",
        f"headrace works without: {', '.join(others)}.",
        ", ".join(dict.fromkeys(fixes)),
    )


def debuggers() -> Observation:
    """Checks whether a debugger may attach to a worker. headrace shows Python stacks itself, but not native ones."""
    scope = (read("/proc/sys/kernel/yama/ptrace_scope") or "0").strip()
    if scope in ("", "0"):
        text = "py-spy and gdb can show where a worker is."
        return Observation("debuggers", "ok", "may attach", "yama.ptrace_scope 0", text)
    return Observation(
        "debuggers",
        "note",
        "may not attach to a running process" if scope != "3" else "may not attach at all",
        f"yama.ptrace_scope {scope}",
        "headrace still shows the Python stacks of a stuck worker; py-spy and gdb need permission.",
        "sudo sysctl kernel.yama.ptrace_scope=0" if scope != "3" else "",
    )


def torch() -> Observation:
    """Checks whether headrace is made for the torch that is installed. It is not imported, which takes seconds."""
    made_for = f"headrace is made for torch {torch_names.FLOOR} to {torch_names.NEWEST}"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Observation("torch", "ok", "not installed", "headrace.torch needs it; headrace.Loader does not")
    number = _release(version)
    if _release(torch_names.FLOOR) <= number <= _release(torch_names.NEWEST):
        return Observation("torch", "ok", version, made_for)
    text = "headrace.torch looks for the names of torch that it needs. If one is missing, it is torch's own loader."
    return Observation("torch", "note", version, made_for, text, "install one of these")


def _release(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def engine() -> Observation:
    """Checks whether headrace's engine can run here."""
    if os.environ.get("HEADRACE_DISABLE", "") not in ("", "0"):
        limit = "HEADRACE_DISABLE is set"
        text = "headrace does nothing."
        return Observation("engine", "warning", "torch's own", limit, text, "unset HEADRACE_DISABLE")
    reason = this_process.why_engine_cannot_run()
    if reason is None:
        return Observation("engine", "ok", f"headrace {_core.VERSION}", sys.executable)
    text = "The sandbox refuses what headrace needs: eventfd, or any shared memory."
    fix = "docker run --security-opt seccomp=unconfined ..."
    return Observation("engine", "error", "torch's own", reason, text, fix)
