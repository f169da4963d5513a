# SPDX-License-Identifier: Apache-2.0
"""Limits the threads that libraries use in a worker. The batch makers of both loaders call it before worker_init_fn."""

from __future__ import annotations

import sys

from headrace._base.this_process import opencv, opencv_threads_set


def limit_library_threads() -> None:
    """Makes torch use one thread, as in torch's own workers, and OpenCV too unless the user has set a number. OpenCV
    gets 0, which means no other threads: with 1 it would wait for the threads of a pool, which a fork does not copy."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    cv2 = opencv()
    if cv2 is not None and not opencv_threads_set():
        cv2.setNumThreads(0)
