# SPDX-License-Identifier: Apache-2.0
"""Copies a batch of many tensors in few pieces. The sender uses it.

A slot has the tensors of one size class next to each other (src/batch/write.c), so one piece of it has all of them.
They then share a storage on the device: a tensor that is kept keeps those of its class, but labels never keep images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MOST_ALONE = 8  # tensors of a batch that have a copy each, as with `.to`
SMALL_BYTES, HUGE_BYTES = 32 << 10, 1 << 20  # HR_BATCH_LARGE_BYTES and HR_BATCH_HUGE_BYTES of the extension


def pieces(sources: list[Any], span: Callable[[int, int], Any]) -> tuple[list[Any], list[tuple[int, int]]]:
    """Returns what is copied, and for each source the number of its piece and its place there in bytes, or -1 if it is
    a piece of its own."""
    copied: list[Any] = []
    places: list[tuple[int, int]] = []
    shared: dict[bool, list[tuple[int, int, int]]] = {}  # is_small -> number, first address, end
    for number, source in enumerate(sources):
        size = source.nbytes
        places.append((len(copied), -1))
        if size >= HUGE_BYTES:
            copied.append(source)
        else:
            address = source.data_ptr()
            shared.setdefault(size < SMALL_BYTES, []).append((number, address, address + size))
    for those in shared.values():
        first = min(address for _, address, _ in those)
        for number, address, _ in those:
            places[number] = len(copied), address - first
        copied.append(span(first, max(end for _, _, end in those) - first))
    return copied, places


def tensors(targets: list[Any], sources: list[Any], places: list[tuple[int, int]]) -> list[Any]:
    """Returns the tensors over the pieces on the device. They are no views of each other: views share a counter of
    changes, and a change in place of one would break the backward of another."""
    empty, device = torch.empty, targets[0].device
    storages = [one.untyped_storage() for one in targets]
    made = []
    for source, (piece, at) in zip(sources, places, strict=True):
        if at < 0:
            made.append(targets[piece])
            continue
        one = empty(0, dtype=source.dtype, device=device)
        made.append(one.set_(storages[piece], at // source.itemsize, source.shape, source.stride()))
    return made
