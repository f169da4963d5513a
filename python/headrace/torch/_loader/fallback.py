# SPDX-License-Identifier: Apache-2.0
"""headrace.torch if the engine cannot run: torch's own loader, which takes headrace's options and ignores them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.multiprocessing

from headrace import _options
from headrace._tensors import torch_names
from headrace.sampling._state import StateError
from headrace.torch._frameworks import accelerate
from headrace.torch._loader import base, plain
from headrace.torch._own import loaders

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(base.DataLoader[_T_co]):
    """torch.utils.data.DataLoader, with the methods that scripts call on headrace's. Its states are headrace's, too. In
    a torch that lacks the names for them, it has no states."""

    def _get_iterator(self) -> Any:
        iterator = plain.get_iterator(self) if loaders.has_state else super()._get_iterator()
        return base.moved(self, iterator)

    def state_dict(self) -> dict[str, str]:
        _check_has_state()
        return super().state_dict()

    def load_state_dict(self, state: Any) -> None:
        _check_has_state()
        super().load_state_dict(state)

    def skip(self, steps: int) -> None:
        _check_has_state()
        super().skip(steps)

    @property
    def steps_left(self) -> int | None:
        """How many batches the epoch has left, or None if that is not known."""
        return super().steps_left if loaders.has_state else None

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which only a state contains: torch's loader does not seed each sample.
        Passes it on to the sampler, the batch sampler and the dataset, if they have set_epoch."""
        self._set_epoch(epoch)

    def report(self) -> dict[str, Any]:
        """Returns an empty report, because there is no engine that counts."""
        return {}

    @functools.cached_property
    def _is_accelerate_prepared(self) -> bool:
        """Raises RuntimeError if accelerate would change the epochs. Only accelerate reads this attribute."""
        accelerate.check_steps_before_prepare(self)
        return False


def _check_has_state() -> None:
    """Raises StateError if torch lacks what the state of a loader needs."""
    if not loaders.has_state:
        raise StateError(
            f"headrace: the state of a loader needs {', '.join(torch_names.missing(torch_names.STATE))}, which torch "
            f"{torch_names.version()} does not have; headrace is made for torch {torch_names.FLOOR} to "
            f"{torch_names.NEWEST}: install one of these, or a newer headrace"
        )


def install(**options: Any) -> None:
    """Checks the options. There is no engine for torch's loaders to use, but accelerate's loaders have headrace's
    state."""
    _options.check_installed(options)
    if loaders.has_state:
        accelerate.install(DataLoader)


def uninstall() -> None:
    """Gives accelerate's loaders torch's class again."""
    accelerate.uninstall()


def spawn(*args: Any, repair: str | None = None, **kwargs: Any) -> Any:
    """Calls torch.multiprocessing.spawn."""
    _options.check_repair("repair", repair)
    spawn_theirs: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    return spawn_theirs(*args, **kwargs)


def stats(loader: Any, *, max_over_ranks: bool = False) -> dict[str, float]:
    """Returns {}, because torch's loader counts nothing."""
    return {}


@contextmanager
def installed(**options: Any) -> Iterator[None]:
    """Calls install() for the duration of a with block."""
    was_installed = accelerate.is_installed()
    install(**options)
    try:
        yield
    finally:
        if not was_installed:
            accelerate.uninstall()
