# SPDX-License-Identifier: Apache-2.0
"""Finds paths that begin at the working directory, in values: in another folder they are other files."""

from __future__ import annotations

import itertools
import os
import pathlib
import types
from typing import Any

from headrace._base.attributes import own_attributes
from headrace._base.lookup import is_a

_MOST_ENTRIES = 64  # of a container
_MOST_PLACES = 5000
_DEEPEST = 6
_LONGEST = 4096
_LEAVES = (bool, int, float, complex, bytearray, type(None), type, types.FunctionType, types.ModuleType)
_NAMES_ONLY = frozenset(("", ".", ".."))


def here() -> str:
    return os.getcwd()


def _begins_here(text: str) -> bool:
    """Returns True for the name of a file or folder, and for a path that begins with one, such as "data/*.npy". A point
    is more often something else."""
    if not text or len(text) > _LONGEST or text.startswith("/") or "\n" in text or "\0" in text:
        return False
    while text not in _NAMES_ONLY:
        if os.path.lexists(text):
            return True
        text = os.path.dirname(text)
    return False


def first_in(value: Any, in_code: bool = False) -> str:
    """Returns a relative path in a value, or "": it looks into containers and attributes, and at the first entries of
    large ones only. in_code: these are the constants of code."""
    met: set[int] = set()
    places = [(value, 0)]
    for count in range(_MOST_PLACES):
        if count == len(places):
            break
        one, depth = places[count]
        if is_a(one, (str, bytes, pathlib.PurePath)):
            text = os.fsdecode(one) if is_a(one, bytes) else str(one)
            is_point = text in (".", "..") and not in_code and (one is value or one is not text)
            if is_point or _begins_here(text):
                return text
        elif depth < _DEEPEST and not is_a(one, _LEAVES) and id(one) not in met:
            met.add(id(one))
            places += [(part, depth + 1) for part in _parts_of(one)]
    return ""


def _parts_of(value: Any) -> list[Any]:
    if is_a(value, dict):
        entries = itertools.islice(dict.items(value), _MOST_ENTRIES)
        return [part for entry in entries for part in entry]
    base: Any
    for base in (list, tuple, set, frozenset):
        if is_a(value, base):
            return list(itertools.islice(base.__iter__(value), _MOST_ENTRIES))
    return [part for _, part, _ in itertools.islice(own_attributes(value), _MOST_ENTRIES)]
