# SPDX-License-Identifier: Apache-2.0
"""Finds the shuffle buffers of Hugging Face's iterable datasets. The state_dict of such a dataset has the places of its
readers, but not the samples in a buffer: these would be lost if an epoch were continued from it. The epochs of loaders
and the workers make the batches again instead."""

from __future__ import annotations

from typing import Any

from headrace._base import lookup

_MODULE = "datasets.iterable_dataset"
_MOST = 10_000  # objects that are looked at


def is_of_hugging_face(dataset: Any) -> bool:
    """Returns True for an IterableDataset of Hugging Face."""
    kind = lookup.own_class(_MODULE, "IterableDataset")
    return isinstance(kind, type) and isinstance(dataset, kind)


def count_buffered(dataset: Any) -> int:
    """Returns how many samples the shuffle buffers of an IterableDataset of Hugging Face hold; 0 for any other
    dataset."""
    if not is_of_hugging_face(dataset):
        return 0
    buffers = lookup.own_class(_MODULE, "BufferShuffledExamplesIterable")
    found, waiting = 0, [dataset]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(buffers, type) and isinstance(one, buffers):
            found += _size_of(one)
        waiting += _parts_of(one)
    return found


def count_inside(dataset: Any) -> int:
    """Returns the same for the datasets that are attributes of a dataset of the user, whose state has theirs."""
    return sum(count_buffered(value) for value in getattr(dataset, "__dict__", {}).values())


def keeps_place(dataset: Any) -> bool:
    """Returns True if an iterable dataset has a state that continues it without a loss."""
    return lookup.has_state(dataset) and not count_buffered(dataset)


def _size_of(buffer: Any) -> int:
    size = getattr(buffer, "buffer_size", 1)
    return max(1, size) if isinstance(size, int) else 1


def _parts_of(one: Any) -> list[Any]:
    """Returns the objects of datasets that another one reads from."""
    found = []
    for value in getattr(one, "__dict__", {}).values():
        values = value if isinstance(value, (list, tuple)) else (value,)
        found += [part for part in values if type(part).__module__.partition(".")[0] == "datasets"]
    return found
