# SPDX-License-Identifier: Apache-2.0
"""Joins the board between the ranks of this machine, once per process. Agreements use it."""

from __future__ import annotations

import atexit
import multiprocessing
import os

from headrace import _core
from headrace._base import signals
from headrace._ranks.job import Job

BOARD_FD = "HEADRACE_BOARD_FD"  # the number of an inherited descriptor of a board


class Membership:
    """The place of this process among those of its job on this machine."""

    def __init__(self, job: Job) -> None:
        self.pid = os.getpid()
        self.local_size = job.local_size
        self.awaited = job.local_size  # so many processes are waited for
        self.board: _core.Board | None = None
        self.reason = _why_not(job) or "another thread of this process joins the board now"  # that there is no board

    def join(self, job: Job, timeout_s: float) -> None:
        """Joins the board, or notes why that fails: a job without a board is a job all the same."""
        fd = os.environ.get(BOARD_FD, "")
        try:
            inherited = int(fd) if fd else -1
            self.board = _core.Board.join(job.key, job.world_size, job.local_size, inherited, timeout_s)
        except Exception as error:
            if signals.is_from_signal(error):
                raise
            self.reason = str(getattr(error, "strerror", None) or error)
        else:
            atexit.register(self.board.finish)

    def give_up_missing(self) -> None:
        """Waits for no other processes than have joined, after some did not come in time."""
        self.awaited = 0


def _why_not(job: Job) -> str:
    if job.local_size == 1:
        return "this is the only rank of its machine"
    if not job.key:
        return "the environment does not name the job (MASTER_ADDR and MASTER_PORT, a Slurm step, PMIX_NAMESPACE)"
    return ""


_current: Membership | None = None


def may_take_part() -> bool:
    """Returns False in a data worker, and in a child that was forked after its parent joined."""
    if multiprocessing.current_process().daemon:
        return False
    return _current is None or _current.pid == os.getpid()


def join(job: Job, timeout_s: float) -> Membership:
    """Returns the membership of this process. The first call joins the board. A thread that calls it at the same time
    gets no board: it must not wait for a lock, which a forked child could inherit."""
    global _current
    if _current is None:
        _current = Membership(job)
        if not _why_not(job):
            _current.join(job, timeout_s)
    return _current
