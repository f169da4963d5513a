# SPDX-License-Identifier: Apache-2.0
"""Starts the recorder of this process, `headrace record`, for loaders with the option record or under HEADRACE_RECORD.

The recorder is a process of its own that only observes (src/record), so the job does nothing for it but to start it,
and to show in each loader the number of its recording. A program that does not have the command headrace with it (it is
frozen or embedded, or the folder of scripts is not in PATH) records itself, in a thread.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
from multiprocessing import util
from typing import Any

from headrace import _core
from headrace._base import program
from headrace._base.warn import warn_user

VARIABLE = "HEADRACE_RECORD"  # a folder: all loaders of headrace are recorded there
_NUMBER_BYTES = 8
_LAST = -1000  # among the finalizers of multiprocessing

_numbers: dict[
    tuple[int, str], int
] = {}  # of the recordings that this process has asked for; a forked child is another


def number_of(record: Any) -> int:
    """Returns the number of the recording that a loader belongs to, and starts its recorder if this process has not
    done so; 0: it belongs to none. record: the option. In data workers, loaders are not recorded."""
    folder = record if record is not None else os.environ.get(VARIABLE)
    if not folder or multiprocessing.current_process().daemon:
        return 0
    path = os.path.abspath(os.fsdecode(folder))
    key = os.getpid(), path
    if key not in _numbers:
        digest = hashlib.blake2b(os.fsencode(path), digest_size=_NUMBER_BYTES).digest()
        _numbers[key] = int.from_bytes(digest, "little") or 1  # before it starts: another thread must not start it too
        if reason := _why_not_started(path, _numbers[key]):
            warn_user(f"headrace: the loaders of this process are not recorded: {reason}")
    return _numbers[key]


def _why_not_started(path: str, number: int) -> str:
    """Starts a recorder, which leaves this process at once. Returns why that failed; empty: it did not."""
    headrace = None if program.is_frozen() else program.find()  # that of PATH may be of another version
    try:
        os.makedirs(path, exist_ok=True)
        if headrace is None:
            thread = _core.RecordThread.start(path, number)
            util.Finalize(None, thread.end, exitpriority=_LAST)  # children of multiprocessing run no atexit functions
            return ""
        command = [headrace, "record", f"--of-job={number}", "-o", path, str(os.getpid())]
        started = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return "" if started.returncode == 0 else f"`headrace record` failed with exit code {started.returncode}"
