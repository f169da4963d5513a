# SPDX-License-Identifier: Apache-2.0
"""Makes torch's own DataLoader use headrace's engine, for frameworks that create their loaders themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import _options
from headrace._loader import headspace
from headrace.torch import _accelerate, _internals, _loader, _per_loader


def install(**options: Any) -> None:
    """Makes every torch.utils.data.DataLoader use headrace's engine, whether it was created before or is created later,
    and subclasses too.

    It replaces the method that creates a loader's iterator, and what torch's iterator class creates when it is called
    directly (fastai does that). It replaces no names, so code that imported DataLoader earlier is included. A
    framework's own iterator class that derives from torch's is not changed. Iterators that already run continue as they
    are. Loaders that accelerate prepares later are headrace.torch.DataLoader inside.

    Args:
        options: headrace.torch.DataLoader's own options, such as arena_limit. They apply to every loader that does not
            set them itself.
    """
    _options.check_installed(options)
    _per_loader.installed_options = options
    _internals.set_factories(_loader.get_iterator, _loader.new_iterator)
    if headspace.is_asked():
        _internals.wrap_iter(_loader.iter_measured)
    _accelerate.install(_loader.DataLoader)


def uninstall() -> None:
    """Gives torch.utils.data.DataLoader its own engine back. headrace.torch.DataLoader keeps headrace's engine."""
    _per_loader.installed_options = {}
    _internals.set_factories(_internals.torchs_iterator, _internals.torchs_new)
    _internals.unwrap_iter()
    _accelerate.uninstall()


@contextmanager
def installed(**options: Any) -> Iterator[None]:
    """Calls install() for the duration of a with block."""
    before, was_wrapped = _internals.factories(), _internals.is_iter_wrapped()
    theirs = _per_loader.installed_options
    was_installed = _accelerate.is_installed()
    install(**options)
    try:
        yield
    finally:
        _per_loader.installed_options = theirs
        _internals.set_factories(*before)
        if not was_wrapped:
            _internals.unwrap_iter()
        if not was_installed:
            _accelerate.uninstall()
