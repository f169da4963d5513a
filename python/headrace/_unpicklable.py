# SPDX-License-Identifier: Apache-2.0
"""Which argument of a loader cannot be pickled: asked once starting a worker has failed."""

from __future__ import annotations

import os
import pickle
from multiprocessing import context, reduction
from typing import Any

from headrace import _engine

ERRORS = (TypeError, AttributeError, RuntimeError, pickle.PicklingError)  # what pickling fails with
_ARGUMENTS = ("dataset", "collate_fn", "worker_init_fn", "on_bad_sample")


class _NoProcess:
    """In the place of the process that is pickled for, which locks and queues ask for: its descriptors stay here."""

    DupFd = int

    @staticmethod
    def duplicate_for_child(fd: int) -> int:
        return fd


def _error_of(part: object) -> Exception | None:
    context.set_spawning_popen(_NoProcess)  # type: ignore[arg-type]
    try:
        with open(os.devnull, "wb") as nowhere:
            reduction.dump(part, nowhere)
    except Exception as error:
        return error
    finally:
        context.set_spawning_popen(None)
    return None


def name_argument(error: Exception, loader: Any) -> bool:
    """If pickling one of the loader's arguments raises `error` again: adds a note that names it. Whether it did."""
    for name in _ARGUMENTS:
        same = _error_of(getattr(loader, name, None))
        if type(same) is type(error) and str(same) == str(error):
            _engine.add_note(error, f"headrace: {name} cannot be pickled; only workers started by fork need no pickle")
            return True
    return False
