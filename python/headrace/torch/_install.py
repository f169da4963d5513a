# SPDX-License-Identifier: Apache-2.0
"""headrace's engine under torch's own DataLoader, for frameworks that build their loaders themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.torch import _internals, _loader


def install() -> None:
    """Puts headrace's engine under every torch.utils.data.DataLoader, made before or after, subclasses included.

    It replaces the method that makes a loader's iterator, and no name: what was imported before is reached too. A
    loader's iterator that runs already goes on as it is.
    """
    _internals.set_iterator_factory(_loader.get_iterator)


def uninstall() -> None:
    """Gives torch.utils.data.DataLoader its own engine back. headrace.torch.DataLoader keeps headrace's."""
    _internals.set_iterator_factory(_internals.torchs_iterator)


@contextmanager
def installed() -> Iterator[None]:
    """install() for the length of a with block."""
    before = _internals.iterator_factory()
    install()
    try:
        yield
    finally:
        _internals.set_iterator_factory(before)
