# SPDX-License-Identifier: Apache-2.0
"""Ends the script in the middle of its loop, on all ranks at the same step. The session calls it.

The process ends with status 0 and without its `finally` and `except` blocks, its atexit functions and the lines after
the loop, because one of these may save the model, which was trained on repeated batches. So nothing is raised. What
multiprocessing has to end is ended: workers, pools and queues.

A rank that ends makes the collective operations of others fail, and rank 0 may have the store of the process group. So
the ranks first wait for each other, in the store, and rank 0 ends last.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from multiprocessing import util
from typing import Any, NoReturn

_TOGETHER_S, _LOOK_S = 60.0, 0.01
_KEY = "headrace/headspace/"


def end() -> NoReturn:
    """Ends this process."""
    try:
        _wait_for_ranks()
        util._run_finalizers(0)  # type: ignore[attr-defined]  # those that run at exit
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:  # also after an exception: what follows must not run
        os._exit(0)


def _wait_for_ranks() -> None:
    """Returns when all ranks of the process group are here, or after a minute, which means that they are not at the
    same step."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    try:
        store = distributed.group.WORLD.get_group_store()
        count, rank = distributed.get_world_size(), distributed.get_rank()
        _meet(store, "here", count, waits=True)
        _meet(store, "leaving", count, waits=rank == 0)
    except Exception as error:
        print(f"headrace: headspace: the ranks do not end together ({error})", file=sys.stderr)


def _meet(store: Any, name: str, count: int, waits: bool) -> None:
    deadline = time.monotonic() + _TOGETHER_S
    arrived = store.add(_KEY + name, 1)
    while waits and arrived < count and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        arrived = store.add(_KEY + name, 0)
    if waits and arrived < count:
        raise TimeoutError(f"{count - arrived} of {count} are not at this step after {_TOGETHER_S:.0f} s")
