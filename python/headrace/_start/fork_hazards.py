# SPDX-License-Identifier: Apache-2.0
"""Finds what makes it dangerous to fork this process, and warns of it once.

A forked process has a copy of the memory, but only the thread that called fork. A lock that another thread held stays
locked in the copy, and the threads of a pool are missing there. The crew calls warn_of_fork before it starts workers,
and the doctor shows the same facts.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
from typing import Any

from headrace._errors.exception_text import ForkWarning
from headrace._errors.warn import is_first_rank, warn_user

# The names of headrace's own threads. They hold no lock of the user's.
PIN_THREAD = "headrace-pin"  # pins batches
REAP_THREAD = "headrace-reap"  # waits for workers that were killed and have not ended yet

# The modules whose threads hold no lock that a worker needs. A thread belongs to one by its class or its function.
_HARMLESS = {
    "tqdm._monitor": "watches bars: holds a lock for some microseconds in 10 s",
    "multiprocessing.resource_sharer": "waits in accept() for processes that fetch descriptors; its lock is made again",
    "pytest_rerunfailures": "counts failures for pytest-xdist: waits in accept() and recv(), a test calls none of it",
    "pytest_timeout": "waits for the end of a test; then it ends the process",
}
_FEEDER = "QueueFeederThread"  # feeds a queue of multiprocessing; its locks are made again in a child
_warned: list[bool] = []


def warn_of_fork(context: Any) -> None:
    """Warns if workers are forked from a process that is not safe to fork, because they may hang or fail. The warning
    comes once per process, and only in the first of several ranks."""
    if context.get_start_method() != "fork":
        return
    hazards = _find_hazards()
    if hazards and not _warned and is_first_rank():
        _warned.append(True)
        warn_user(
            "headrace: workers are started by fork, and this process is not safe to fork: "
            f'{"; ".join(hazards)}. multiprocessing_context="forkserver" avoids this',
            ForkWarning,
        )


def _find_hazards() -> list[str]:
    torch = sys.modules.get("torch")
    hazards = []
    if torch is not None and torch.cuda.is_initialized():
        hazards.append("CUDA is initialised, and forked processes cannot use it")
    if names := other_threads():
        others = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        hazards.append(
            f"other threads run ({others}), and a lock that one of them holds now stays locked in the workers"
        )
    if opencv_threads_set() > 1:
        hazards.append(
            "OpenCV has a thread pool, which may hang in the workers (cv2.setNumThreads(0) in this process avoids that)"
        )
    if "polars" in sys.modules and any(name.startswith("polars-") for name in _thread_names()):
        hazards.append("polars has a thread pool, and the workers would wait for its threads, which they do not have")
    return hazards


def other_threads() -> list[str]:
    """Returns the names of the Python threads of this process, except this thread, headrace's own threads and harmless
    ones."""
    own = (threading.main_thread().name, threading.current_thread().name, PIN_THREAD, REAP_THREAD)
    return [thread.name for thread in threading.enumerate() if thread.name not in own and not _is_harmless(thread)]


def _is_harmless(thread: threading.Thread) -> bool:
    """Returns True for threads of common tools that only wait. The users of these tools fork without trouble."""
    runs = thread.function if isinstance(thread, threading.Timer) else getattr(thread, "_target", None)
    modules = {type(thread).__module__, getattr(runs, "__module__", None)}
    return thread.name == _FEEDER or not modules.isdisjoint(_HARMLESS)


def count_threads() -> int:
    """Counts the threads of this process. Without /proc only the Python threads are known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _thread_names() -> list[str]:
    """Returns the names that the kernel has for all threads of this process, native ones included."""
    names = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            names.append(path.read_text().strip())
    return names


def find_opencv() -> Any:
    """Returns the module cv2, or None if it is not imported. sys.modules may have None under that name, which prevents
    its import, or a stub: both give None."""
    cv2 = sys.modules.get("cv2")
    return cv2 if all(hasattr(cv2, name) for name in ("getNumThreads", "setNumThreads", "getNumberOfCPUs")) else None


def opencv_threads_set() -> int:
    """Returns how many threads the user has told OpenCV to use; workers keep that. Returns 0 if the user has told it to
    use none, or has not set a number."""
    cv2 = find_opencv()
    threads = int(cv2.getNumThreads()) if cv2 is not None else 0
    return 0 if cv2 is None or threads == cv2.getNumberOfCPUs() else threads
