# SPDX-License-Identifier: Apache-2.0
"""Counts how often each index was drawn in an epoch, so that with rng="sample" each draw has random numbers of its own.

An Epoch counts when it is asked: in the trainer, because a worker sees its own batches only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._samples.random_numbers import text_of

_LARGEST = 1 << 28  # of the indices that are counted in bytes
_FULL = 255  # a count that is in the dict
_FIRST_BYTES = 1 << 12


class DrawCounts:
    """A count for each index: a byte for one from 0 to _LARGEST, and an entry of a dict for others and large counts."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._others: dict[str, int] = {}

    def look(self, samples: Sequence[Any]) -> list[int]:
        """Returns for each index how often it was drawn before. Changes nothing."""
        here: dict[Any, int] = {}
        draws = []
        for index in samples:
            key = index if type(index) is int else text_of(index)
            count = here.get(key)
            draws.append(self._get(key) if count is None else count)
            here[key] = draws[-1] + 1
        return draws

    def put(self, samples: Sequence[Any], draws: Sequence[int]) -> None:
        """Notes that these indices were drawn. `draws`: what look has returned. It may be called again, because a
        signal may have interrupted it."""
        for index, draw in zip(samples, draws, strict=False):
            self._put(index if type(index) is int else text_of(index), draw + 1)

    def _get(self, key: Any) -> int:
        if type(key) is int and 0 <= key < _LARGEST:
            count = self._bytes[key] if key < len(self._bytes) else 0
            if count < _FULL:
                return count
        elif type(key) is str and key.isdecimal():  # an integer of another class, such as numpy's
            return self._get(int(key))
        return self._others.get(str(key), 0)

    def _put(self, key: Any, count: int) -> None:
        if type(key) is str and key.isdecimal():
            key = int(key)
        if type(key) is int and 0 <= key < _LARGEST:
            if key >= len(self._bytes):
                self._bytes.extend(bytes(max(key + 1 - len(self._bytes), len(self._bytes), _FIRST_BYTES)))
            self._bytes[key] = min(count, _FULL)
            if count < _FULL:
                return
        self._others[str(key)] = count
