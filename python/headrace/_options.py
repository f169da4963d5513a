# SPDX-License-Identifier: Apache-2.0
"""What loaders share of their options. Needs no extension: the fallback checks them too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_MIN_LIMIT = 64 << 10  # HR__COMMIT_STEP (src/arena/layout.h): what the first task takes
_Init = TypeVar("_Init", bound=Callable[..., None])


def check_limit(limit: object) -> int:
    """The arena_limit option as bytes; 0: chosen by the engine. TypeError, ValueError."""
    if limit is None:
        return 0
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"arena_limit should be a number of bytes (int) or None, but got {limit!r}")
    if not _MIN_LIMIT <= limit < 2**62:
        raise ValueError(f"arena_limit should be from {_MIN_LIMIT} to 2**62 - 1 bytes, or None, but got {limit}")
    return limit


class ArenaLimit:
    """A loader's attribute arena_limit: checked when it is set, and refused where it would have no effect.

    The value stands in the loader's __dict__ under the same name: Lightning makes loaders anew from what is there.
    """

    def __get__(self, loader: Any, owner: object = None) -> int | None:
        return None if loader is None else vars(loader).get("arena_limit")

    def __set__(self, loader: Any, limit: int | None) -> None:
        check_limit(limit)
        if getattr(loader, "_iterator", None) is not None:
            raise ValueError("arena_limit should not be set while persistent workers run: make a new loader")
        vars(loader)["arena_limit"] = limit


def shown_with(theirs: Callable[..., None]) -> Callable[[_Init], _Init]:
    """For an __init__ that passes *args and **kwargs on to `theirs`: inspect and help show the names of both."""

    def show(ours: _Init) -> _Init:
        own = [one for one in inspect.signature(ours).parameters.values() if one.kind is one.KEYWORD_ONLY]
        both = sorted([*inspect.signature(theirs).parameters.values(), *own], key=lambda one: one.kind)
        ours.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return ours

    return show
