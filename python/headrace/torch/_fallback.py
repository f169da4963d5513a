# SPDX-License-Identifier: Apache-2.0
"""torch's own loader, for where the engine cannot run: takes headrace's options and does not use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.multiprocessing

from headrace import _options
from headrace.torch import _base

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(_base.DataLoader[_T_co]):
    """torch's, with the methods that scripts call of headrace's."""

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: samples have no random numbers of their own here."""

    def report(self) -> dict[str, Any]:
        """Empty: there is no engine to count."""
        return {}


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
