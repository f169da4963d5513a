# SPDX-License-Identifier: Apache-2.0
"""Estimates how large objects are as Python objects, from samples of what is in them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace import _core
from headrace._base import growth
from headrace._base.lookup import is_a
from headrace.frozen import _hidden

NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str, bytes, bytearray, int, float)
_SAMPLED = 256  # the size of a container is estimated from this many of its items
_LOOKED_AT = 1 << 14  # items at each depth, because a list of lists of lists may have very many
_DEPTH = 6


def dict_of(value: Any) -> dict[str, Any]:
    """Returns the __dict__ of an instance, without running code: a proxy would answer with another object's."""
    return _core.Walker.attributes(value) or {}


def table_of(value: Any) -> str | None:
    """Returns "ndarray", "DataFrame", "Series" or "Index" for such a table of Python objects; else None."""
    kind = type(value)
    top, name = kind.__module__.partition(".")[0], kind.__name__
    if top == "numpy":
        return name if name == "ndarray" and value.dtype.hasobject else None
    if top != "pandas" or name not in growth.TABLES:
        return None
    dtypes = value.dtypes if name == "DataFrame" else [value.dtype]
    return name if any(map(_is_of_objects, dtypes)) else None


def _is_of_objects(dtype: Any) -> bool:
    return dtype.kind == "O" and "pyarrow" not in str(getattr(dtype, "storage", "python"))


def table_bytes(value: Any) -> int:
    """Estimates the bytes of a table of Python objects."""
    if type(value).__name__ == "DataFrame":
        return sum(table_bytes(value[name]) if table_of(value[name]) else 0 for name in value.columns)
    count = int(value.size)
    flat = value.reshape(-1) if hasattr(value, "reshape") else value.array
    some = [flat[at * count // _SAMPLED] for at in range(_SAMPLED)] if count > _SAMPLED else list(flat)
    return 8 * count + sum(estimate_bytes(one, 2, _SAMPLED) for one in some) * count // max(1, len(some))


def items_of(value: Any) -> Iterable[Any]:
    base = _hidden.base_of(value)
    if base is dict:
        return (one for pair in dict.items(value) for one in pair)
    return dict_of(value).values() if base is None else base.__iter__(value)


def _count_of(value: Any) -> int:
    count = length(value)
    return 2 * count if is_a(value, dict) else count


def length(value: Any) -> int:
    """Returns the number of entries of a container, or of attributes. It does not call the __len__ of a class of the
    user's."""
    base = _hidden.base_of(value)
    return len(dict_of(value)) if base is None else base.__len__(value)


def _sample(value: Any, most: int) -> list[Any]:
    """Returns some of the items: from all parts of a list or a tuple, else the first ones."""
    if type(value) in (list, tuple) and len(value) > most:
        return [value[at * len(value) // most] for at in range(most)]
    return list(islice(items_of(value), 2 * most))


def _own_bytes(value: Any) -> int:
    try:
        return sys.getsizeof(value)
    except Exception:  # raised by its own __sizeof__
        return 0


def estimate_bytes(value: Any, depth: int = _DEPTH, budget: int = _LOOKED_AT, above: tuple[Any, ...] = ()) -> int:
    """Estimates from samples the bytes of a value as Python objects, including nested ones.

    budget: how many items may be looked at. above: the objects that hold it; they are not counted again.
    """
    if any(one is value for one in above):
        return 0
    own = _own_bytes(value)
    if depth and type(value).__module__.partition(".")[0] in ("numpy", "pandas") and table_of(value):
        return table_bytes(value)
    if depth == 0 or is_a(value, NOT_LOOKED_INTO):
        return own
    sample = _sample(value, min(_SAMPLED, budget))
    if not sample:
        return own
    share = max(1, budget // len(sample))
    sampled = [estimate_bytes(one, depth - 1, share, (*above, value)) for one in sample]
    return own + sum(sampled) * _count_of(value) // len(sampled)
