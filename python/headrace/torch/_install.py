# SPDX-License-Identifier: Apache-2.0
"""headrace's engine under torch's own DataLoader, for frameworks that build their loaders themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace import _options
from headrace.torch import _internals, _loader


def install(arena_limit: int | None = None) -> None:
    """Puts headrace's engine under every torch.utils.data.DataLoader, made before or after, subclasses included.

    It replaces the method that makes a loader's iterator, and no name: what was imported before is reached too. A
    loader's iterator that runs already goes on as it is.

    Args:
        arena_limit: headrace.torch.DataLoader's, for every loader that has none of its own.
    """
    _options.check_limit(arena_limit)
    _loader.default_limit = arena_limit
    _internals.set_iterator_factory(_loader.get_iterator)


def uninstall() -> None:
    """Gives torch.utils.data.DataLoader its own engine back. headrace.torch.DataLoader keeps headrace's."""
    _loader.default_limit = None
    _internals.set_iterator_factory(_internals.torchs_iterator)


@contextmanager
def installed(arena_limit: int | None = None) -> Iterator[None]:
    """install() for the length of a with block."""
    before, limit = _internals.iterator_factory(), _loader.default_limit
    install(arena_limit)
    try:
        yield
    finally:
        _loader.default_limit = limit
        _internals.set_iterator_factory(before)
