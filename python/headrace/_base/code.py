# SPDX-License-Identifier: Apache-2.0
"""Reads the code of functions: the code objects within one, its closure, and the names that it looks up.

The walks over users' objects use it: of growing memory, random number generators, samplers, repairs, and the digests of
the cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those within it, of inner functions, classes and comprehensions."""
    yield code
    for part in code.co_consts:
        if type(part) is CodeType:
            yield from codes(part)


def cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value of each variable of the closure that is set."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # the cell is empty
            yield name, cell.cell_contents


def names(code: CodeType) -> list[str]:
    """Returns the names that code, and the code within it, may look up as global variables. Names of attributes are
    among them."""
    return list({name: None for one in codes(code) for name in one.co_names})


def globals_named(function: FunctionType) -> list[tuple[str, Any]]:
    """Returns the global variables of these names."""
    space = function.__globals__
    return [(name, space[name]) for name in names(function.__code__) if name in space]
