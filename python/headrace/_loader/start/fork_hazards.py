# SPDX-License-Identifier: Apache-2.0
"""Finds what makes it dangerous to fork this process, and warns of it once.

A forked process has a copy of the memory, but only the thread that called fork. A lock that another thread held stays
locked in the copy, and the threads of a pool are missing there. The crew calls warn_of_fork before it starts workers,
and the doctor shows the same facts, which both have from headrace._base.this_process. The iterators call
warn_of_shared_files.
"""

from __future__ import annotations

import sys
from typing import Any

from headrace._base import shared_files, this_process
from headrace._base.exception_text import ForkWarning
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user

_warned: list[bool] = []
_warned_of_files: set[shared_files.SharedFile] = set()


def warn_of_shared_files(method: str, parts: list[tuple[str, Any]], workers: int, is_torchs: bool) -> None:
    """Warns of files that the parts of a loader hold open, if forked workers would share their positions. Once for each
    file, and only in the first of several ranks."""
    if method != "fork" or not this_process.is_first_rank():
        return
    found = [one for one in shared_files.find(dict(parts), workers) if one not in _warned_of_files]
    if not found:
        return
    _warned_of_files.update(found)
    lines = "\n    ".join(shared_files.lines_that_open(found[0], is_torchs))
    warn_user(
        f"headrace: workers are started by fork, and they share what is open: {shared_files.in_words(found)}. A worker "
        "that reads there moves the position of all, so samples may be wrong without an error. Open it in each "
        f"worker, with worker_init_fn=open_files:\n    {lines}\n " + help_on("shared-files")
    )


def warn_of_fork(context: Any) -> None:
    """Warns if workers are forked from a process that is not safe to fork, because they may hang or fail. The warning
    comes once per process, and only in the first of several ranks."""
    if context.get_start_method() != "fork":
        return
    hazards = _find_hazards()
    if hazards and not _warned and this_process.is_first_rank():
        _warned.append(True)
        warn_user(
            "headrace: workers are started by fork, and this process is not safe to fork: "
            f'{"; ".join(hazards)}. multiprocessing_context="forkserver" avoids this' + help_on("fork-unsafe"),
            ForkWarning,
        )


def _find_hazards() -> list[str]:
    hazards = []
    if this_process.uses_accelerator():
        hazards.append("CUDA is initialised, and forked processes cannot use it")
    if names := this_process.other_threads():
        others = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        hazards.append(
            f"other threads run ({others}), and a lock that one of them holds now stays locked in the workers"
        )
    if this_process.opencv_threads_set() > 1:
        hazards.append(
            "OpenCV has a thread pool, which may hang in the workers (cv2.setNumThreads(0) in this process avoids that)"
        )
    if "polars" in sys.modules and any(name.startswith("polars-") for name in this_process.thread_names()):
        hazards.append("polars has a thread pool, and the workers would wait for its threads, which they do not have")
    return hazards
