# SPDX-License-Identifier: Apache-2.0
"""torch's loader with headrace's own options: taken, checked and kept. What uses them is in _loader.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch.utils.data

from headrace import _options
from headrace._errors import exception_text

_T_co = TypeVar("_T_co", covariant=True)
_NUMBERS = ("batch_size", "num_workers", "timeout", "prefetch_factor")


def _explain_words(error: Exception, arguments: Mapping[str, Any]) -> None:
    """A number that came from a command line as a string: torch compares it with numbers, or shows it like one."""
    for name in _NUMBERS:
        if isinstance(arguments.get(name), str):
            text = f"headrace: {name} is a string, {arguments[name]!r}; give a number (argparse makes one by type=int)"
            exception_text.add_text(error, text)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch.utils.data.DataLoader."""

    arena_limit = _options.ArenaLimit()
    max_restarts: int = 0
    rng: str = "worker"
    seed: int | None = None
    on_bad_sample: str | Callable[[Any, Exception], str] = "raise"
    stall_after: float = 30.0
    on_stall: str = "wait"
    shutdown_timeout: float = 5.0
    freeze: bool = False
    repair: str | None = None

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
        options = {
            "arena_limit": arena_limit,
            "max_restarts": max_restarts,
            "rng": rng,
            "seed": None if seed is None else _options.check_seed(seed),
            "on_bad_sample": on_bad_sample,
            "stall_after": stall_after,
            "on_stall": on_stall,
            "shutdown_timeout": shutdown_timeout,
            "freeze": freeze,
            "repair": repair,
        }
        for name, value in options.items():
            if _options.is_given(name, value):  # else the name may be a subclass's
                setattr(self, name, value)
        try:
            super().__init__(*args, **kwargs)
        except (TypeError, ValueError) as error:
            names = inspect.signature(super().__init__).parameters
            _explain_words(error, {**dict(zip(names, args, strict=False)), **kwargs})
            raise
        _options.check_own(options)
        with _options.explained_as_attributes():
            _options.Policy.of(self, isinstance(self.dataset, torch.utils.data.IterableDataset), {})
        self._warm_up()

    def _warm_up(self) -> None:
        """What can be made ready once a loader is there."""
