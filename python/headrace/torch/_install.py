# SPDX-License-Identifier: Apache-2.0
"""headrace's engine under torch's own DataLoader, for frameworks that build their loaders themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import _options
from headrace.torch import _internals, _loader


def install(**options: Any) -> None:
    """Puts headrace's engine under every torch.utils.data.DataLoader, made before or after, subclasses included.

    It replaces the method that makes a loader's iterator, and what torch's iterator class makes where it is called
    without one (fastai does), and no name: what was imported before is reached too. An iterator class of a framework's
    own, derived from torch's, stays what it is. A loader's iterator that runs already goes on as it is.

    Args:
        options: headrace.torch.DataLoader's own, such as arena_limit, for every loader that has none of its own.
    """
    _options.check_own(options)
    _loader.installed_options = options
    _internals.set_factories(_loader.get_iterator, _loader.new_iterator)


def uninstall() -> None:
    """Gives torch.utils.data.DataLoader its own engine back. headrace.torch.DataLoader keeps headrace's."""
    _loader.installed_options = {}
    _internals.set_factories(_internals.torchs_iterator, _internals.torchs_new)


@contextmanager
def installed(**options: Any) -> Iterator[None]:
    """install() for the length of a with block."""
    before, theirs = _internals.factories(), _loader.installed_options
    install(**options)
    try:
        yield
    finally:
        _loader.installed_options = theirs
        _internals.set_factories(*before)
