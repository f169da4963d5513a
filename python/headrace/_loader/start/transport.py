# SPDX-License-Identifier: Apache-2.0
"""Sends a worker its arguments in a file, and not through multiprocessing's pipe. The crew uses it to start workers.

A pipe holds 64 KiB. With a larger dataset, the trainer would wait until the worker has imported everything and reads.
Until then it could neither start another worker, nor make the kernel kill the worker when the trainer ends. So the
dataset goes into a file without a name, and the pipe only carries the file's descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import pickle
from multiprocessing import reduction, synchronize
from typing import IO, Any

from headrace._base import memory_file

CHUNK_BYTES = 8 << 20  # the file is freed in chunks of this size
READ_BYTES = 1 << 20


def _reduce_semaphore(semaphore: Any) -> Any:
    if semaphore._semlock.name is None:
        raise RuntimeError(
            "A SemLock created in a fork context is being shared with a process in a spawn context. This is not "
            "supported. Please use the same context to create multiprocessing objects and Process."
        )
    return semaphore.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


# A semaphore of the fork context is an address, which crashes any other process. Later versions of CPython refuse to
# send it with this text. For versions that do not, this does the same.
if "_is_fork_ctx" not in synchronize.SemLock.__init__.__code__.co_names:
    for _kind in (synchronize.Lock, synchronize.RLock, synchronize.Semaphore, synchronize.BoundedSemaphore):
        reduction.ForkingPickler.register(_kind, _reduce_semaphore)


class WorkerArguments:
    """The arguments of a process that is being started, in `value`. Pickling them writes `value` to the file. With the
    start method fork nothing is pickled.

    The pickler is kept until the process has started. It refers to what it has pickled, and so to tensors that were
    made for that only, such as the state of a torch.Generator: the process gets their descriptors when it starts.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._file: IO[bytes] | None = None
        self._pickler: pickle.Pickler | None = None

    def __reduce__(self) -> Any:
        self._file = memory_file.create("headrace-arguments")
        try:
            self._pickler = reduction.ForkingPickler(self._file)
            self._pickler.dump(self.value)
            self._file.flush()
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            # A limit on file sizes (ulimit -f) applies to this file too. A pipe has no such limit, but is slower.
            return WorkerArguments, (self.value,)
        return _load_arguments, (reduction.DupFd(self._file.fileno()),)

    def close(self) -> None:
        """Closes the file in the trainer. The worker has the descriptors by now, or has failed to start."""
        self._pickler = None
        if self._file is not None:
            with contextlib.suppress(OSError):  # if a flush failed before, closing fails again
                self._file.close()


class _FreeingReader(io.FileIO):
    """A reader that frees the parts of a file that it has read, although other processes have the file open. So neither
    this worker nor the others that start at the same time keep the whole file and the whole dataset in memory at
    once."""

    _freed = 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        while self._freed + CHUNK_BYTES <= self.tell():
            with (
                contextlib.suppress(OSError),  # the file is not in memory: it is freed at the end
                mmap.mmap(self.fileno(), CHUNK_BYTES, offset=self._freed) as chunk,
            ):
                chunk.madvise(mmap.MADV_REMOVE)
            self._freed += CHUNK_BYTES
        return count


def _load_arguments(sent: Any) -> WorkerArguments:
    """Reads the arguments in the worker."""
    with io.BufferedReader(_FreeingReader(sent.detach()), READ_BYTES) as file:
        file.seek(0)
        try:
            return WorkerArguments(pickle.load(file))
        finally:
            os.ftruncate(file.fileno(), 0)
