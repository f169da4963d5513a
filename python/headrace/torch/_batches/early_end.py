# SPDX-License-Identifier: Apache-2.0
"""Warns if a StopIteration from the dataset or from collate_fn ends an epoch early.

In Python a StopIteration ends the loop, so torch's loader ends without an error, and headrace's does the same. Both
iterators and the worker call this module.
"""

from __future__ import annotations

import traceback
from typing import Any

from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._samples.epoch_reports import describe_early_end
from headrace._samples.names import name_sample
from headrace.torch._own import iterators


def warn(iterator: Any, came: int, drawn: int, where: str) -> None:
    """Warns that an epoch ended early. `came` batches were delivered before, and the indices of `drawn` batches were
    drawn."""
    try:
        due = str(len(iterator))
    except Exception:  # it has no length, or its own __len__ raises
        due = f"at least {drawn}"
    warn_user(describe_early_end(came, due, where))


def warn_of_worker(iterator: Any, error: StopIteration, drawn: int) -> None:
    """Warns about a StopIteration that a worker sent. Its note names the sample."""
    notes = getattr(error, "__notes__", None) or [str(error)]
    warn(iterator, iterators.yielded(iterator), drawn, "\n".join(map(str, notes)))


def warn_here(iterator: Any, error: StopIteration, indices: Any) -> None:
    """Warns about a StopIteration with num_workers=0. `indices` are those of the batch, or None for an iterable
    dataset."""
    came = iterators.yielded(iterator)
    last = traceback.extract_tb(error.__traceback__)[-1]
    name = name_sample(came, indices, _position(error.__traceback__, indices))
    warn(iterator, came, came + 1, f"{name}: {last.filename}, line {last.lineno}, in {last.name}")


def warn_of_collate(error: StopIteration, worker: int) -> None:
    """Warns in a worker that a StopIteration from collate_fn ended its part of an iterable dataset."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    warn_user(
        f"headrace: worker {worker} ends early: collate_fn raised StopIteration, which ends the data of this "
        f"worker, as with torch.\n    {last.filename}, line {last.lineno}, in {last.name}\n "
        + help_on("epoch-ends-early")
    )


def has_ended(fetcher: Any) -> bool:
    """Returns True if the iterable dataset of torch's fetcher came to its end. If it did not, collate_fn raised the
    StopIteration."""
    return bool(getattr(fetcher, "ended", True))


def _position(trace: Any, indices: Any) -> int | None:
    """Returns the position of the sample that was being made, from the first argument of the outermost __getitem__, or
    None."""
    while trace is not None and trace.tb_frame.f_code.co_name != "__getitem__":
        trace = trace.tb_next
    try:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        return int(indices.index(values[code.co_varnames[1]]))
    except Exception:  # no __getitem__ in Python, a changed variable, or indices that cannot be compared
        return None
