# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of all families together, and says of any class how its instances are frozen."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

from headrace.frozen.types import arrays, classes, containers, names, numbers, refusals, tensors, times, values
from headrace.frozen.types.classes import Known

_ROWS = (*numbers.ROWS, *times.ROWS, *values.ROWS)

# type -> (the name in frozen data, the function that gives the parts)
TYPES: dict[type, tuple[str, Callable[[Any], Any]]] = {
    **{row.type: (row.name, row.parts) for row in _ROWS},
    **{row.type: (row.name, row.parts) for row in containers.ROWS},
    **dict.fromkeys(names.BY_NAME, ("name", names.name_of)),
}
# the name in frozen data -> the function that makes a value of its parts
MAKERS: dict[str, Callable[[Any], Any]] = {
    **{row.name: row.make for row in _ROWS},
    "numpy.dtype": arrays.dtype_from_text,
    **{f"torch.{name}": tensors.maker(name) for name in tensors.ROWS},
}
# the name in frozen data -> the function that makes a value, and is told whether it may import
TRUSTING_MAKERS: dict[str, Callable[[Any, bool], Any]] = {"enum": names.make_enum, "name": names.make_named}
# the name in frozen data -> the function that makes an empty container
EMPTY_MAKERS: dict[str, Callable[[Any, int], Any]] = {
    **{row.name: row.make_empty for row in containers.ROWS},
    "objects": arrays.make_object_array,
}


def classify(cls: type) -> Known:
    """Returns what a class is, as a tuple; _core/frozen/freeze_class.c describes it."""
    if cls in TYPES:
        return ("typed", *TYPES[cls])
    if issubclass(cls, enum.Enum):
        return ("typed", "enum", names.enum_parts)
    if issubclass(cls, type):
        return ("typed", "name", names.name_of)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.dtype):
        return ("typed", "numpy.dtype", arrays.dtype_text)
    if numpy is not None and cls is numpy.ndarray:
        return ("typed", "objects", arrays.object_array_parts)
    if cls.__module__ == "torch" and cls.__name__ in tensors.ROWS:
        return ("typed", f"torch.{cls.__name__}", tensors.ROWS[cls.__name__])
    if why := refusals.of_class(cls):
        return ("unknown", why)
    if issubclass(cls, tuple):
        return classes.classify_tuple(cls)
    if classes.is_made_by_statement(cls) or cls is object:
        return classes.classify_object(cls)
    return ("unknown", f"headrace does not know {cls.__module__}.{cls.__qualname__}")
