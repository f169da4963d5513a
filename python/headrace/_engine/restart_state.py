# SPDX-License-Identifier: Apache-2.0
"""Where a worker begins that takes a dead one's place, and whether its data set lets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace._inspect import growth, lookup

STATE = "state"
REPLAY = "replay"
REDO = "redo"


def way_of(dataset: Any, is_iterable: bool) -> str | None:
    """How another worker goes on with a data set: REDO, for one with indices. An iterable one: STATE, by state_dict and
    load_state_dict; REPLAY, by iterating from the start again, if it has a true attribute `replayable`; None: not at
    all. The data set or its class has these: what its `__getattr__` makes up does not count."""
    if not is_iterable:
        return REDO
    try:
        if all(callable(lookup.attribute(dataset, name)) for name in ("state_dict", "load_state_dict")):
            return STATE
        return REPLAY if lookup.attribute(dataset, "replayable", False) else None
    except Exception:  # of a property of the data set's own
        return None


@dataclass
class Blame:
    """What workers died at, in all epochs of a loader that restarts them, by random_numbers.text_of the indices: how
    often, and why it is not to be tried again."""

    deaths: dict[str, int] = field(default_factory=dict)
    banned: dict[str, str] = field(default_factory=dict)


@dataclass
class Beginning:
    """Where a worker begins: for a first one, with nothing.

    epoch: the iterator's epochs so far. banned: samples, or batches as a whole, that are not to be tried, and why; by
    random_numbers.text_of their indices. state: of an iterable dataset, to be loaded before it is iterated. made:
    batches that it had given by then. discard: further ones that were made before and are made again for nothing.
    look_s: see headrace._inspect.growth.
    """

    epoch: int = 0
    banned: dict[str, str] = field(default_factory=dict)
    state: bytes | None = None
    made: int = 0
    discard: int = 0
    look_s: float | None = field(default_factory=lambda: growth.look_s)


@dataclass
class Notes:
    """What a worker says of a batch beside it."""

    worker: int
    state: bytes | None = None  # of an iterable data set, after the batch
    made: int = 0  # batches that it had given by then in this epoch
    bad: list[Any] = field(default_factory=list)  # headrace._samples.maker.BadSample
