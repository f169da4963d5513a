# SPDX-License-Identifier: Apache-2.0
"""Judges whether workers can be forked from a process that has imported the user's modules.

A forked process has only the thread that called fork. A thread that it does not have may hold a lock forever, or be
waited for. Libraries that prepare for fork with pthread_atfork are known here by the name of their threads, or by the
name of the library that started them. An open file would have one position for all workers, and an accelerator that is
initialised cannot be used in a forked process.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
from dataclasses import dataclass

# The names of threads whose library stops them before a fork, and starts them again after it, in both processes.
SAFE_THREADS = {
    "jemalloc_bg_thd": "jemalloc, the allocator of pyarrow: its fork handlers take its locks, and restart the thread",
    "openmp_worker": "Intel's and LLVM's OpenMP, which MKL uses: its fork handlers reset it in the new process",
}
# Libraries whose threads have no name of their own, and which do the same. The text is a part of the file's name. GNU's
# OpenMP (libgomp) is not here: a forked process that uses it waits forever for threads that it does not have.
SAFE_LIBRARIES = {
    "openblas": "OpenBLAS, of numpy, scipy and OpenCV: it ends its threads before a fork and starts them when needed",
}
_SHARED_FILES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")  # they have no position
_OF_THREADS = ("anon_inode:", "pipe:")  # belong to a thread's event loop, which is reported if it is unsafe


@dataclass(frozen=True)
class Hazard:
    """Something that makes a process unfit to be forked. module: the module whose import did it, or ""."""

    what: str
    module: str = ""

    def describe(self) -> str:
        """Returns a sentence without its full stop."""
        module = "the script" if self.module == "__main__" else self.module or "a module"
        return f"{module} {self.what} when it is imported"


@dataclass(frozen=True)
class Start:
    """A thread or an open file that a process did not have before. Whether it is a hazard is judged later: a file may
    be closed again, and a thread may get its name a moment after its start. libraries: the names of the files of code
    that were mapped since the look before."""

    thread: str = ""
    fd: str = ""
    file: str = ""
    libraries: frozenset[str] = frozenset()


@dataclass
class State:
    """The threads, open files and libraries of this process at one moment."""

    threads: set[str]  # thread ids
    files: dict[str, str]  # descriptor -> what it is open on
    libraries: frozenset[str]  # the names of the files of code that are mapped
    counts: tuple[int, int]

    @classmethod
    def now(cls) -> State:
        return cls(set(os.listdir("/proc/self/task")), _files(), _libraries(), _counts())

    def may_have_changed(self) -> bool:
        """Returns False if the process certainly has the same number of threads and open files as in this state."""
        return _counts() != self.counts

    def since(self, before: State) -> list[Start]:
        """Returns the threads and files that this state has and `before` had not."""
        libraries = self.libraries - before.libraries
        threads = sorted(self.threads - before.threads, key=int)
        files = {fd: name for fd, name in self.files.items() if before.files.get(fd) != name}
        return [Start(thread=thread, libraries=libraries) for thread in threads] + [
            Start(fd=fd, file=name) for fd, name in files.items()
        ]


def _counts() -> tuple[int, int]:
    return os.stat("/proc/self/task").st_nlink, len(os.listdir("/proc/self/fd"))


def _files() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _libraries() -> frozenset[str]:
    with open("/proc/self/maps") as maps:
        return frozenset(os.path.basename(line.split()[-1]) for line in maps if ".so" in line)


def judge(start: Start) -> str | None:
    """Returns what makes this process unfit to be forked, if the thread or the file is still there and does."""
    return _judge_thread(start) if start.thread else _judge_file(start)


def _judge_thread(start: Start) -> str | None:
    name = _name_of(start.thread)
    python = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    if start.thread in python:
        return f"starts a thread ({python[start.thread]})"
    if name is None or name in SAFE_THREADS:
        return None
    if name != _name_of(str(os.getpid())):
        return f"starts a thread ({name})"
    is_safe = any(part in library for library in start.libraries for part in SAFE_LIBRARIES)
    return None if is_safe else "starts a thread"


def _name_of(thread: str) -> str | None:
    try:
        return pathlib.Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:  # it has ended
        return None


def _judge_file(start: Start) -> str | None:
    with contextlib.suppress(OSError):
        is_open = os.readlink(f"/proc/self/fd/{start.fd}") == start.file
        if is_open and start.file not in _SHARED_FILES and not start.file.startswith(_OF_THREADS):
            return f"opens a file ({start.file})"
    return None


def uses_accelerator() -> bool:
    """Returns True if torch has initialised an accelerator in this process."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized())
