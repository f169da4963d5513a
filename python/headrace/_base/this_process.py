# SPDX-License-Identifier: Apache-2.0
"""Facts about this process: its rank, its threads, and whether headrace can run in it.

The engine warns of some of them before it forks; headrace doctor lists them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import sys
import threading
from typing import Any

from headrace import _core

PIN_THREAD = "headrace-pin"  # the name of the threads that pin batches
REAP_THREAD = "headrace-reap"  # the name of the threads that wait for workers that end late; they hold no user's lock
# The modules whose threads hold no lock that a worker needs: the module of the thread's class, or of its function.
_HARMLESS = {
    "tqdm._monitor": "watches progress bars; it holds a lock for some microseconds every 10 s",
    "ipykernel.control": "receives messages of a Jupyter kernel; workers have no kernel",
    "ipykernel.heartbeat": "answers the heartbeat of a Jupyter kernel",
    "ipykernel.iostream": "sends the output of a Jupyter kernel, which knows that forked processes do not have it",
    "ipykernel.parentpoller": "waits for the end of the process that started a Jupyter kernel",
    "ipykernel.shellchannel": "receives messages of a Jupyter kernel",
    "ipykernel.subshell": "runs cells of a Jupyter kernel; it waits for a message",
    "ipykernel.thread": "the base of the threads of a Jupyter kernel",
    "IPython.core.history": "writes the history of IPython; it waits in an event",
    "zmq.utils.garbage": "frees messages of a Jupyter kernel; it waits in recv()",
    "multiprocessing.resource_sharer": "waits in accept() for processes that fetch descriptors; its lock is reset",
    "pytest_rerunfailures": "counts failures for pytest-xdist; it waits in accept() and recv(), tests do not call it",
    "pytest_timeout": "waits for the end of a test; then it ends the process",
}
_FEEDER = "QueueFeederThread"  # feeds a queue of multiprocessing; its locks are made again in a child


@functools.cache
def why_engine_cannot_run() -> str | None:
    """Returns why the engine cannot run in this process (a sandbox refuses what it needs), or None. Tries it once."""
    try:
        _core.Loader(1, 1, True, 1 << 20).close()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            return str(error.strerror)
    return None


def is_first_rank() -> bool:
    """Returns True in the first rank of this machine. Some warnings come from that rank only, because all ranks would
    print the same text."""
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


def uses_accelerator() -> bool:
    """Returns True if torch has initialised CUDA in this process, so that a forked process cannot use it."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


# ---- threads ----


def other_threads() -> list[str]:
    """Returns the names of Python's threads, except this one, headrace's own and harmless ones."""
    own = (threading.main_thread().name, threading.current_thread().name, PIN_THREAD, REAP_THREAD)
    return [thread.name for thread in threading.enumerate() if thread.name not in own and not _is_harmless(thread)]


def count_threads() -> int:
    """Returns the number of threads of this process. It includes native threads if /proc is available."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def thread_names() -> list[str]:
    """Returns the names that the kernel has for all threads of this process, native ones included."""
    names = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            names.append(path.read_text().strip())
    return names


def _is_harmless(thread: threading.Thread) -> bool:
    """Returns True for threads of common tools that only wait. Programs with them fork without trouble."""
    runs = thread.function if isinstance(thread, threading.Timer) else getattr(thread, "_target", None)
    modules = {type(thread).__module__, getattr(runs, "__module__", None)}
    if getattr(thread, "headrace_has_no_sample", False):  # see headrace._samples.threads
        return True
    return thread.name == _FEEDER or not modules.isdisjoint(_HARMLESS) or thread in _threads_of_zarr()


def _threads_of_zarr() -> list[threading.Thread]:
    """Returns the threads of zarr's event loop. A forked process makes a new loop, if zarr has registered that."""
    sync = sys.modules.get("zarr.core.sync")
    if not hasattr(sync, "reset_resources_after_fork"):
        return []
    loops, threads = getattr(sync, "loop", [None]), list(getattr(sync, "iothread", []))
    executors = [getattr(sync, "_executor", None), *(getattr(one, "_default_executor", None) for one in loops)]
    for executor in executors:
        threads += getattr(executor, "_threads", ())
    return [thread for thread in threads if thread is not None]


def opencv() -> Any:
    """Returns the module cv2, or None if it is not imported. sys.modules may have None or a stub under its name."""
    cv2 = sys.modules.get("cv2")
    return cv2 if all(hasattr(cv2, name) for name in ("getNumThreads", "setNumThreads", "getNumberOfCPUs")) else None


def opencv_threads_set() -> int:
    """Returns how many threads the user has set for OpenCV, which workers keep; 0 if the user has not set it."""
    cv2 = opencv()
    threads = int(cv2.getNumThreads()) if cv2 is not None else 0
    return 0 if cv2 is None or threads == cv2.getNumberOfCPUs() else threads
