# SPDX-License-Identifier: Apache-2.0
"""The object that a dataset gets from a divided transform, in the place of the result. It can be put into a sample, and
nothing else: each use raises an error and is noted, because a value that is not the result would lead to other
samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
_METHODS = (
    "eq ne lt le gt ge hash bool len length_hint iter next reversed contains getitem setitem delitem call enter exit "
    "await aiter anext aenter aexit int float complex index round trunc floor ceil neg pos abs invert repr str format "
    "bytes fspath dir sizeof copy deepcopy reduce reduce_ex array array_ufunc array_function buffer setattr delattr"
).split()


class Mark(NamedTuple):
    """A value that the first steps have made, as it is kept. number: all marks of one call have the same, from 0 in
    each sample."""

    number: int
    key: str | int
    value: Any


class Used(TypeError):
    """Raised where code uses a stand-in."""


def _refuse(stand_in: Any, use: str) -> NoReturn:
    note: Callable[[str], None] = object.__getattribute__(stand_in, "note")
    note(use)
    raise Used(
        f"headrace: the dataset uses the result of its transform ({use}), but cache= keeps what its first steps "
        "return, and its random steps run later"
    )


class StandIn:
    """Stands for a Mark until the sample is complete. note: is called with the name of each use."""

    __slots__ = ("__weakref__", "mark", "note")

    def __init__(self, mark: Mark, note: Callable[[str], None]) -> None:
        object.__setattr__(self, "mark", mark)
        object.__setattr__(self, "note", note)

    def __getattribute__(self, name: str) -> Any:
        _refuse(self, name)


def mark_of(stand_in: StandIn) -> Mark:
    mark: Mark = object.__getattribute__(stand_in, "mark")
    return mark


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **named: Any) -> NoReturn:
        _refuse(self, name)

    return method


for _name in [*_METHODS, *(kind + name for name in _OPERATORS for kind in ("", "r", "i"))]:
    setattr(StandIn, f"__{_name}__", _refusing(f"__{_name}__"))
