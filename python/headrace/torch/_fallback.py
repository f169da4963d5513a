# SPDX-License-Identifier: Apache-2.0
"""torch's own loader, for where the engine cannot run: takes headrace's options and does not use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.multiprocessing
import torch.utils.data

from headrace import _options

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch.utils.data.DataLoader."""

    arena_limit = _options.ArenaLimit()

    @_options.shown_with(torch.utils.data.DataLoader.__init__)
    def __init__(
        self,
        *args: Any,
        arena_limit: int | None = None,
        max_restarts: int = 0,
        rng: str = "worker",
        seed: int | None = None,
        on_bad_sample: str | Callable[[Any, Exception], str] = "raise",
        stall_after: float = 30.0,
        on_stall: str = "wait",
        shutdown_timeout: float = 5.0,
        freeze: bool = False,
        repair: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = locals()
        for name in _options.DEFAULTS:
            setattr(self, name, given[name])
        super().__init__(*args, **kwargs)
        _options.Policy.of(self, isinstance(self.dataset, torch.utils.data.IterableDataset), {})


def install(**options: Any) -> None:
    """Does nothing: there is no engine to put under torch's loader."""
    _options.check_own(options)


def uninstall() -> None:
    """Does nothing."""


def spawn(*args: Any, repair: str | None = None, **kwargs: Any) -> Any:
    """torch.multiprocessing.spawn."""
    _options.check_repair(repair)
    spawn_theirs: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    return spawn_theirs(*args, **kwargs)


@contextmanager
def installed(**options: Any) -> Iterator[None]:
    """Does nothing."""
    _options.check_own(options)
    yield
