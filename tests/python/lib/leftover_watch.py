# SPDX-License-Identifier: Apache-2.0
"""A process that notes which files in /dev/shm were made by a run of pytest. The pid in a file's name, or the process
that has it open, can be asked for its ancestors only while it runs; a test looks later. When the run has ended, also if
it was killed, it removes the folders that the command line names.

    leftover_watch.py PID [FOLDER...]: the pid of pytest. For each line on stdin it prints the names of these files in
    one line.
"""

import ctypes
import os
import select
import shutil
import signal
import struct
import sys

from leftovers import SHARED, Run

IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_NONBLOCK = os.O_NONBLOCK
_EVENT = struct.Struct("iIII")


def open_watch() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(IN_NONBLOCK)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(SHARED), IN_CREATE | IN_MOVED_TO) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(SHARED))
    return int(descriptor)


def read_names(descriptor: int) -> list[str]:
    """Returns the names of the files that are new."""
    names = []
    while True:
        try:
            data, at = os.read(descriptor, 1 << 16), 0
        except BlockingIOError:
            return names
        while at < len(data):
            _, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            names.append(os.fsdecode(data[at - length : at].rstrip(b"\0")))


def serve(run: Run, descriptor: int) -> None:
    ours: set[str] = set()
    while True:
        ready = select.select([descriptor, 0], [], [])[0]
        ours |= {name for name in read_names(descriptor) if run.made(name)}
        if 0 in ready:
            if not os.read(0, 1):
                return
            ours = {name for name in ours if (SHARED / name).exists()}
            print(*sorted(ours), flush=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and `timeout` are for pytest, which ends this process
        signal.signal(number, signal.SIG_IGN)
    try:
        serve(Run(int(sys.argv[1])), open_watch())
    finally:
        for folder in sys.argv[2:]:
            shutil.rmtree(folder, ignore_errors=True)
