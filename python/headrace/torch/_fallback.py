# SPDX-License-Identifier: Apache-2.0
"""torch's own loader, for where the engine cannot run: takes headrace's options and does not use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.utils.data

from headrace import _options

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch.utils.data.DataLoader."""

    arena_limit = _options.ArenaLimit()

    @_options.shown_with(torch.utils.data.DataLoader.__init__)
    def __init__(self, *args: Any, arena_limit: int | None = None, **kwargs: Any) -> None:
        self.arena_limit = arena_limit
        super().__init__(*args, **kwargs)


def install(arena_limit: int | None = None) -> None:
    """Does nothing: there is no engine to put under torch's loader."""
    _options.check_limit(arena_limit)


def uninstall() -> None:
    """Does nothing."""


@contextmanager
def installed(arena_limit: int | None = None) -> Iterator[None]:
    """Does nothing."""
    _options.check_limit(arena_limit)
    yield
