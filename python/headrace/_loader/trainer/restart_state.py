# SPDX-License-Identifier: Apache-2.0
"""Decides whether another worker can continue the dataset of a dead one, and keeps which samples have killed
workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace._base import lookup
from headrace._samples import shuffle_buffer

# How another worker continues a dataset.
REDO = "redo"  # a dataset with indices: the worker makes the batches that were not delivered
STATE = "state"  # an iterable dataset with state_dict and load_state_dict: the worker loads the latest state
# An iterable dataset that says it is replayable, or with a shuffle buffer, which its state does not have: the worker
# iterates from the start again.
REPLAY = "replay"


def restart_mode_of(dataset: Any, is_iterable: bool) -> str | None:
    """Returns how another worker continues a dataset: REDO, STATE or REPLAY, or None if it cannot. REPLAY needs a true
    attribute `replayable`, or a shuffle buffer of Hugging Face's datasets. The dataset or its class must have these
    attributes; what its `__getattr__` makes up does not count."""
    if not is_iterable:
        return REDO
    try:
        if shuffle_buffer.count_buffered(dataset):
            return REPLAY
        if lookup.has_state(dataset):
            return STATE
        return REPLAY if lookup.attribute(dataset, "replayable", False) else None
    except Exception:  # a property of the dataset raised it
        return None


def goes_by_state(dataset: Any, is_iterable: bool) -> bool:
    """Returns True for an iterable dataset that is continued by its state."""
    return is_iterable and restart_mode_of(dataset, True) == STATE


@dataclass
class SampleDeaths:
    """Which samples have killed workers, in all epochs of a loader that restarts them. The keys are
    random_numbers.text_of the indices. counts: how many workers died. banned: why the sample is not tried again."""

    counts: dict[str, int] = field(default_factory=dict)
    banned: dict[str, str] = field(default_factory=dict)
