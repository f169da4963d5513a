# SPDX-License-Identifier: Apache-2.0
"""Checks that an iterable dataset without a state gives the same batches again when an epoch is continued: they are
made again and dropped, so other ones would be samples twice and never. The batch makers of workers and the epochs of
loaders without workers use it."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on

_LEVELS = 4  # of containers in a batch
_FEW = 4  # parts of a container that are looked at
_MOST = 64  # values of an array, and characters of a text


class Repeated:
    """Digests of some of the batches of an epoch: of those with the numbers 1, 2, 4, 8, ..., so that it costs nothing.
    expected: (number, digest) of the epoch that is continued, or None. warning: a text if that one is another, to be
    taken once."""

    warning = ""

    def __init__(self, kind: str, made_by: str, expected: tuple[int, int] | None = None) -> None:
        self._kind, self._made_by = kind, made_by
        self._expected = expected
        self._digest = 0

    def note(self, number: int, batch: Any) -> int:
        """Notes a batch, counted from 1. Returns the digest up to it, or 0 if it is not one of those."""
        if number & (number - 1):
            return 0
        self._digest = zlib.crc32(repr(_summary(batch, 0)).encode(), self._digest) or 1
        if self._expected is not None and number == self._expected[0] and self._digest != self._expected[1]:
            self.warning = (
                f"headrace: {self._made_by} the batches again that were delivered before, and they are others than "
                f"before: the {self._kind} gives another order, so some samples will come twice in this epoch, and "
                "others never. Let it shuffle with a seed that is the same after a resume, or give it state_dict and "
                "load_state_dict; or begin the epoch again, without load_state_dict of the loader"
                + help_on("order-changed")
            )
        return self._digest

    def take_warning(self) -> str:
        """Returns the warning, once, or ""."""
        warning, self.warning = self.warning, ""
        return warning


def _summary(value: Any, level: int) -> Any:
    """Returns the beginning of a value, as an object whose repr is the same in another process."""
    if isinstance(value, (bool, int, float, complex, str, bytes)) or value is None:
        return str(value)[:_MOST]
    if level < _LEVELS and lookup.is_a(value, dict):
        return [(str(key)[:_MOST], _summary(one, level + 1)) for key, one in itertools.islice(value.items(), 2 * _FEW)]
    if level < _LEVELS and lookup.is_a(value, (list, tuple)):
        return len(value), [_summary(one, level + 1) for one in [*value[:_FEW], *value[_FEW:][-1:]]]
    return type(value).__name__, _values_of(value)


def _values_of(value: Any) -> Any:
    """Returns the shape and the first values of an array or a tensor, or None for other objects."""
    try:
        flat = value.reshape(-1)
        return tuple(value.shape), flat[:_MOST].tolist(), flat[-_MOST:].tolist()
    except Exception:  # it is no array
        return None
