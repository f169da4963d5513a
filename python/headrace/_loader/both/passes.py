# SPDX-License-Identifier: Apache-2.0
"""Begins the passes of a loader with steps_per_epoch; see headrace.sampling._windows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headrace._loader.both.any_loader import AnyLoader
from headrace.sampling._windows import Begun


class Passes:
    """The passes of a loader. make: begins one, as its __iter__ does without the option."""

    def __init__(self, loader: AnyLoader, make: Callable[[], Any]) -> None:
        self._loader, self._make = loader, make

    def begin(self, number: int) -> Begun:
        position = self._loader.kept.position
        position.number = number
        self._loader.set_parts(number)
        iterator = self._make()
        self._loader.check_counted(iterator)
        assert position.progress is not None
        # A function without the loader: the position of the loader keeps what is returned here.
        has_lost_workers = functools.partial(self._loader.has_lost_workers, iterator)
        return Begun(iterator, position.progress, position.number, has_lost_workers)

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to the number of a pass."""
        self._loader.set_parts(epoch)

    def go_on_from_state(self) -> None:
        """Loads the state of now into the loader, as another process would."""
        self._loader.go_on_from_state()
