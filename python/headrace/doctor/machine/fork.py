# SPDX-License-Identifier: Apache-2.0
"""Finds what makes forking this process unsafe. headrace doctor --run calls it if the loader's workers are forked."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from headrace._base import lookup, shared_files, this_process
from headrace.doctor.observations import Observation


def open_files(loader: Any) -> list[Observation]:
    """Returns what a loader has open that its forked workers would share."""
    names = ("dataset", "collate_fn", "worker_init_fn")
    parts = {name: lookup.attribute(loader, name) for name in names}
    found = shared_files.find(parts, lookup.attribute(loader, "num_workers"))
    if not found:
        return []
    text = (
        f"Forked workers share {shared_files.in_words(found)}. One that reads there moves the position of all, so "
        "samples may be wrong without an error."
    )
    fix = shared_files.how_to_open(found[0])
    return [Observation("open files", "error", f"{len(found)} shared", "at fork", text, fix)]


def hazards() -> list[Observation]:
    """Returns what this process, which holds a loader, has that may make forked workers hang or fail."""
    found = []
    names = this_process.other_threads()
    total = this_process.count_threads()
    avoid = 'multiprocessing_context="forkserver" for the loader'
    if this_process.uses_accelerator():
        text = "Workers that are forked from this process cannot use it."
        found.append(Observation("CUDA", "error", "initialised", "at fork", text, avoid))
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        text = "If one of them holds a lock when a worker is forked, it stays locked in the worker, which then hangs."
        found.append(Observation("threads", "warning", f"{len(names)} of Python", shown, text, avoid))
    if (threads := this_process.opencv_threads_set()) > 1:
        text = "A forked worker does not have the threads of its pool, and may wait for them for ever."
        found.append(Observation("OpenCV", "warning", f"{threads} threads", "at fork", text, "cv2.setNumThreads(0)"))
    # numpy's OpenBLAS starts a thread for each core but one when it is imported, and ends them before a fork.
    others = total - threading.active_count() - (os.cpu_count() or 1) * ("numpy" in sys.modules)
    if others > 0:
        text = "A library has started a pool (OpenMP, OpenCV, gRPC); a worker that is forked now does not have it."
        fix = f"{avoid}, or export OMP_NUM_THREADS=1"
        found.append(Observation("native threads", "warning", f"{others}", "not Python's", text, fix))
    return found
