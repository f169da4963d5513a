# SPDX-License-Identifier: Apache-2.0
"""Makes torch's own DataLoader use headrace's engine, for frameworks that create their loaders themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace import _options
from headrace._loader import headspace
from headrace.torch._frameworks import accelerate
from headrace.torch._loader import any_loader, choose, loader
from headrace.torch._own import loaders, table


def install(**options: Any) -> None:
    """Makes every torch.utils.data.DataLoader use headrace's engine, whether it was created before or is created later,
    and subclasses too.

    It replaces the method that creates a loader's iterator, and what torch's iterator class creates when it is called
    directly (fastai does that). It replaces no names, so code that imported DataLoader earlier is included. A
    framework's own iterator class that derives from torch's is not changed. Iterators that already run continue as they
    are. Loaders that accelerate prepares later are headrace.torch.DataLoader inside.

    torch's loaders get no methods, because frameworks look for them. headrace.torch.state_dict(loader),
    load_state_dict(loader, state), skip(loader, steps), report(loader) and stats(loader) do what the methods of
    headrace.torch.DataLoader do.

    Args:
        options: headrace.torch.DataLoader's own options, such as arena_limit. They apply to every loader that does not
            set them itself.
    """
    _options.check_installed(options)
    table.installed_options = _options.with_folder(options)
    loaders.set_factories(choose.get_iterator, choose.new_iterator)
    loaders.explain(any_loader.get_attribute, any_loader.explain_call)
    if headspace.is_asked():
        loaders.wrap_iter(choose.iter_measured)
    accelerate.install(loader.DataLoader)


def uninstall() -> None:
    """Gives torch.utils.data.DataLoader its own engine back. headrace.torch.DataLoader keeps headrace's engine."""
    table.installed_options = {}
    loaders.set_factories(loaders.torchs_iterator, loaders.torchs_new)
    loaders.explain_no_more()
    loaders.unwrap_iter()
    accelerate.uninstall()


@contextmanager
def installed(**options: Any) -> Iterator[None]:
    """Calls install() for the duration of a with block."""
    before, was_wrapped, was_explained = loaders.factories(), loaders.is_iter_wrapped(), loaders.is_explained()
    theirs = table.installed_options
    was_installed = accelerate.is_installed()
    install(**options)
    try:
        yield
    finally:
        table.installed_options = theirs
        loaders.set_factories(*before)
        if not was_explained:
            loaders.explain_no_more()
        if not was_wrapped:
            loaders.unwrap_iter()
        if not was_installed:
            accelerate.uninstall()
