# SPDX-License-Identifier: Apache-2.0
"""The functions that the extension calls by their names (`frozen_hook` in _core/frozen/opened.c)."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import _core
from headrace._base.help_key import help_on
from headrace._core import FrozenError
from headrace.frozen.types import arrays, names, refusals, tables
from headrace.frozen.types.arrays import dtype_from_text, dtype_text, raw_array, scalar_array
from headrace.frozen.types.numbers import int_bytes, int_from_bytes
from headrace.frozen.types.tables import classify
from headrace.frozen.types.tensors import strided_tensor, tensor, tensor_dtype

__all__ = [
    "classify",
    "column",
    "dtype_from_text",
    "dtype_text",
    "dump",
    "from_parts",
    "int_bytes",
    "int_from_bytes",
    "know_arrays",
    "load",
    "raw_array",
    "reduce_view",
    "refusal",
    "resolve_class",
    "scalar_array",
    "shallow",
    "shell",
    "strided_tensor",
    "tensor",
    "tensor_dtype",
]
_Made = TypeVar("_Made")

# ---- freezing ----


def refusal(value: Any, why: str | None) -> str:
    """Returns why a value cannot be frozen, and what to do. `why`: the reason, if its class is the reason."""
    advice = ', or keep it as a pickle with on_unknown="pickle"' if refusals.may_pickle(value) else ""
    return f"{why or refusals.of_value(value)}. Leave it out{advice}"


def dump(value: Any, path: str) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as error:
        raise TypeError(
            f"headrace.freeze: {path} cannot be frozen, and not pickled either: {error}" + help_on("cannot-freeze")
        ) from error


def know_arrays() -> None:
    """Prepares the extension for arrays and tensors: those of a view may be the first in this process."""
    from headrace.frozen import _freeze

    _freeze.know_arrays()


# ---- reading ----


def resolve_class(name: str, kind: str, fields: tuple[str, ...], trusted: bool) -> Any:
    """Returns the class of stored instances. It must still be as plain as when they were frozen. Raises FrozenError."""
    cls = names.resolve(name, trusted)
    known = classify(cls) if isinstance(cls, type) else ("unknown", f"{name} is not a class")
    if known[0] != kind:
        raise FrozenError(
            f"headrace: this frozen data has instances of {name}, but {known[1]}; freeze the data again"
            + help_on("frozen-damaged")
        )
    if kind == "tuple" and known[2] != fields:
        raise FrozenError(f"headrace: this frozen data has {name} with the fields {fields}, now it has {known[2]}")
    return cls


def _made(name: str, make: Callable[..., _Made], *arguments: Any) -> _Made:
    try:
        return make(*arguments)
    except (FrozenError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise FrozenError(
            f"headrace: a {name} of this frozen data cannot be made: {error!r}; freeze the data again"
        ) from error


def from_parts(name: str, parts: Any, trusted: bool) -> Any:
    """Returns the value that has a name and parts. Raises FrozenError."""
    if name in tables.TRUSTING_MAKERS:
        return _made(name, tables.TRUSTING_MAKERS[name], parts, trusted)
    return _made(name, lambda: tables.MAKERS[name](parts))


def shell(name: str, extra: Any, count: int, trusted: bool) -> Any:
    """Returns an empty container; `extra` is what it is made with. Raises FrozenError."""
    return _made(name, lambda: tables.EMPTY_MAKERS[name](extra, count))


def load(data: bytes) -> Any:
    return pickle.loads(data)


# ---- views ----


def shallow(view: Any) -> Any:
    """Returns a deque, Counter or similar of a view's items, which stay views."""
    made = _core.thaw(view)
    if isinstance(made, collections.deque):
        return collections.deque(view, made.maxlen)
    if isinstance(made, dict):
        for key in made:
            made[key] = view[key]
    return made


def reduce_view(view: Any) -> Any:
    from headrace.frozen import _pickling

    return _pickling.reduce_plainly(view)


def column(values: list[Any]) -> Any:
    """Returns numbers as an array, and texts (and everything else) as a new frozen list."""
    array = arrays.column(values)
    if array is not None:
        return array
    from headrace.frozen import _freeze

    return _freeze.freeze(values, on_unknown="pickle")  # an item that was a pickle stays one
