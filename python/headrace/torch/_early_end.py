# SPDX-License-Identifier: Apache-2.0
"""Warns if a StopIteration from the dataset or from collate_fn ends an epoch early.

To Python it is the end of the loop, so torch's loader ends it without an error, and so does headrace's drop-in.
"""

from __future__ import annotations

import traceback
from typing import Any

from headrace._errors.warn import warn_user
from headrace._samples.epoch_reports import describe_early_end
from headrace._samples.names import name_sample


def warn(iterator: Any, came: int, drawn: int, where: str) -> None:
    """`came`: batches that were delivered before. `drawn`: batches whose indices were drawn by then."""
    try:
        due = str(len(iterator._index_sampler))
    except Exception:  # it has no length, or its own __len__ raises
        due = f"at least {drawn}"
    warn_user(describe_early_end(came, due, where))


def warn_of_worker(iterator: Any, error: StopIteration, drawn: int) -> None:
    """Of an error that a worker sent: its note names the sample."""
    notes = getattr(error, "__notes__", None) or [str(error)]
    warn(iterator, iterator._num_yielded, drawn, "\n".join(map(str, notes)))


def warn_here(iterator: Any, error: StopIteration, indices: Any) -> None:
    """Of an iterator for num_workers=0. `indices`: of the batch; None for an iterable dataset."""
    came = iterator._num_yielded
    last = traceback.extract_tb(error.__traceback__)[-1]
    name = name_sample(came, indices, _position(error.__traceback__, indices))
    warn(iterator, came, came + 1, f"{name}: {last.filename}, line {last.lineno}, in {last.name}")


def warn_of_collate(error: StopIteration, worker: int) -> None:
    """In a worker, whose share of an iterable dataset a StopIteration from collate_fn ends."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    warn_user(
        f"headrace: worker {worker} ends early: collate_fn raised StopIteration, which is taken for the end of the "
        f"data, as with torch.\n    {last.filename}, line {last.lineno}, in {last.name}"
    )


def has_ended(fetcher: Any) -> bool:
    """Returns True if the iterable dataset of torch's fetcher of batches came to its end. If it did not, it was
    collate_fn that raised StopIteration."""
    return bool(getattr(fetcher, "ended", True))


def _position(trace: Any, indices: Any) -> int | None:
    """Finds which sample of a batch was being made: the first argument of the outermost __getitem__."""
    while trace is not None and trace.tb_frame.f_code.co_name != "__getitem__":
        trace = trace.tb_next
    try:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        return int(indices.index(values[code.co_varnames[1]]))
    except Exception:  # there is none in Python, or the index was rebound, or indices that do not compare
        return None
