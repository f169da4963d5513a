# SPDX-License-Identifier: Apache-2.0
"""What a worker is sent, past multiprocessing's pipe.

A pipe holds 64 KiB: whoever starts a worker with a larger data set waits until that has imported everything and reads,
and cannot start another meanwhile, nor see to it that the worker dies with it. So the data set travels in a file
without a name, and the pipe carries its descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction, synchronize
from typing import IO, Any

CHUNK_BYTES = 8 << 20  # so much is freed at a time
READ_BYTES = 1 << 20


def memory(name: str) -> IO[bytes]:
    """A file without a name, in memory if the system allows that, and not under a number of stdin, stdout or stderr,
    which are free where a process was started without them. OSError."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # a kernel, or a sandbox, without
        return tempfile.TemporaryFile()
    try:
        return open(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3), "w+b")
    finally:
        os.close(fd)


def _reduce_semaphore(semaphore: Any) -> Any:
    if semaphore._semlock.name is None:
        raise RuntimeError(
            "A SemLock created in a fork context is being shared with a process in a spawn context. This is not "
            "supported. Please use the same context to create multiprocessing objects and Process."
        )
    return semaphore.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


# A semaphore of the fork context is an address, which crashes any other process. Later CPythons refuse to send it
# in these words; where this one does not, it is done here.
if "_is_fork_ctx" not in synchronize.SemLock.__init__.__code__.co_names:
    for _kind in (synchronize.Lock, synchronize.RLock, synchronize.Semaphore, synchronize.BoundedSemaphore):
        reduction.ForkingPickler.register(_kind, _reduce_semaphore)


class Cargo:
    """Any value, on its way to a process that is being started. With the start method fork nothing is pickled."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._file: IO[bytes] | None = None

    def __reduce__(self) -> Any:
        self._file = memory("headrace-cargo")
        try:
            reduction.dump(self.value, self._file)
            self._file.flush()
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            # A limit on file sizes (ulimit -f) holds for this file too. A pipe has no such limit, but takes longer.
            return Cargo, (self.value,)
        return _arrive, (reduction.DupFd(self._file.fileno()),)

    def close(self) -> None:
        """The trainer's side: the worker has the descriptor by now, or never will."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a flush that has failed before
                self._file.close()


class _Once(io.FileIO):
    """Frees what is read, whoever else has the file open: what was sent and what becomes of it are not both in memory
    as a whole, in none of the workers that start at the same time."""

    _freed = 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        while self._freed + CHUNK_BYTES <= self.tell():
            with (
                contextlib.suppress(OSError),  # no file of memory: it is freed in the end
                mmap.mmap(self.fileno(), CHUNK_BYTES, offset=self._freed) as chunk,
            ):
                chunk.madvise(mmap.MADV_REMOVE)
            self._freed += CHUNK_BYTES
        return count


def _arrive(sent: Any) -> Cargo:
    """In the worker."""
    with io.BufferedReader(_Once(sent.detach()), READ_BYTES) as file:
        file.seek(0)
        try:
            return Cargo(pickle.load(file))
        finally:
            os.ftruncate(file.fileno(), 0)
