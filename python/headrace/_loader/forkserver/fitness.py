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
import struct
import sys
import threading
import time
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
# Code that says nothing about who has started a thread: of libc and of the interpreter.
_INTERPRETER = os.path.basename(os.path.realpath(sys.executable))
_UNNAMED = ("libc.", "libc-", "ld-", "libpthread", "[vdso]", "libpython", _INTERPRETER)
_STACK_BYTES = 4096  # so much of a thread's stack is searched for the library that it waits in
_TRIES = 20  # a thread that runs is looked at again, a millisecond later


@dataclass(frozen=True)
class Hazard:
    """Something that makes a process unfit to be forked. module: the module whose import did it. Without one, `what` is
    a whole sentence."""

    what: str
    module: str = ""

    def describe(self) -> str:
        """Returns a sentence without its full stop."""
        module = "the script" if self.module == "__main__" else self.module
        return f"{module} {self.what} when it is imported" if module else self.what


@dataclass(frozen=True)
class Start:
    """A thread or an open file that a process did not have before. Whether it is a hazard is judged later: a file may
    be closed again, and a thread may get its name a moment after its start."""

    thread: str = ""
    fd: str = ""
    file: str = ""


@dataclass
class State:
    """The threads and open files of this process at one moment."""

    threads: set[str]  # thread ids
    files: dict[str, str]  # descriptor -> what it is open on
    counts: tuple[int, int]

    @classmethod
    def now(cls) -> State | None:
        """Returns None if /proc cannot be read."""
        try:
            return cls(set(os.listdir("/proc/self/task")), _files(), _counts())
        except OSError:
            return None

    def may_have_changed(self) -> bool:
        """Returns False if the process has the same number of threads and open files as in this state."""
        return _counts() != self.counts

    def since(self, before: State) -> list[Start]:
        """Returns the threads and files that this state has and `before` had not."""
        threads = sorted(self.threads - before.threads, key=int)
        files = {fd: name for fd, name in self.files.items() if before.files.get(fd) != name}
        return [Start(thread=thread) for thread in threads] + [Start(fd=fd, file=name) for fd, name in files.items()]


def _counts() -> tuple[int, int]:
    return os.stat("/proc/self/task").st_nlink, len(os.listdir("/proc/self/fd"))


def _files() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


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
    library = _library_of(start.thread)
    if any(part in library for part in SAFE_LIBRARIES):
        return None
    return f"starts a thread (of {library})" if library else "starts a thread"


def _library_of(thread: str) -> str:
    """Returns the file name of the library in which a thread of this process waits, or "" if that cannot be seen. It is
    the first one outside of libc and the interpreter whose code the thread will return to."""
    with contextlib.suppress(OSError, ValueError):
        stack_pointer = _stack_pointer_of(thread)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(stack_pointer)
            stack = memory.read(_STACK_BYTES)
        code = _code_ranges()
        for (address,) in struct.iter_unpack("=Q", stack[: len(stack) // 8 * 8]):
            for start, end, name in code:
                if start <= address < end and not name.startswith(_UNNAMED):
                    return name
    return ""


def _stack_pointer_of(thread: str) -> int:
    for _ in range(_TRIES):
        fields = pathlib.Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        if len(fields) > 2:  # it waits
            return int(fields[-2], 16)
        time.sleep(0.001)
    raise ValueError


def _code_ranges() -> list[tuple[int, int, str]]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if "x" in fields[1] and len(fields) == 6:
                start, _, end = fields[0].partition("-")
                found.append((int(start, 16), int(end, 16), os.path.basename(fields[5].strip())))
    return found


def _name_of(thread: str) -> str | None:
    try:
        return pathlib.Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:  # it has ended
        return None


def _judge_file(start: Start) -> str | None:
    with contextlib.suppress(OSError):
        is_open = os.readlink(f"/proc/self/fd/{start.fd}") == start.file
        if is_open and start.file not in _SHARED_FILES:
            return f"opens a file ({start.file})"
    return None


def has_children() -> bool:
    """Returns True if this process has started others, which all workers would share."""
    for path in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel does not say
            if path.read_text().strip():
                return True
    return False
