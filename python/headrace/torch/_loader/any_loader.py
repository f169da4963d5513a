# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.state_dict, load_state_dict, skip and report: what headrace's loaders have as methods, for any loader.
torch's own loaders get no methods from install(), because frameworks look for these names. What is missing there is
explained with these functions, and so is an option of headrace that one of them is given.

The fallback uses it too: it needs no extension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headrace import _options
from headrace._base import exception_text, lookup
from headrace._loader.both import state as _state
from headrace._loader.both.per_loader import UNCOUNTED
from headrace.torch._loader import base
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._own import classes, loaders, table

_FUNCTIONS = ("state_dict", "load_state_dict", "skip", "report")
_ONLY_OWN = ("last", "set_epoch", "steps_left")


def state_dict(loader: Any) -> Any:
    """Returns how far a loader is: see headrace.torch.DataLoader.state_dict. For torch's own loaders, call install()
    before their first epoch. A loader that has a method of this name is asked by it.

    Raises RuntimeError for a loader whose batches headrace does not count."""
    own = _method(loader, "state_dict")
    return own() if own is not None else _state.state_dict(_counted(loader))


def load_state_dict(loader: Any, state: Any) -> None:
    """Lets the next iter() of a loader continue where the state was taken: see DataLoader.load_state_dict and the
    function state_dict. A copy or a pickle of one of torch's own loaders does not have the state."""
    own = _method(loader, "load_state_dict")
    if own is not None:
        own(state)
    else:
        _state.load(_counted(loader), state)


def skip(loader: Any, steps: int) -> None:
    """Lets the next iter() of a loader begin `steps` batches later, without making them."""
    own = _method(loader, "skip")
    if own is not None:
        own(steps)
    else:
        any_loader = _counted(loader)
        any_loader.kept.position.skip(any_loader, _options.check_count("steps", steps))


def report(loader: Any) -> dict[str, Any]:
    """Returns counters of the newest iterator of a loader: see headrace.torch.DataLoader.report. {}: the
    engine cannot run here. Raises RuntimeError before the first one."""
    own = _method(loader, "report")
    if own is not None:
        return own()  # type: ignore[no-any-return]
    _check_is_torchs(loader)
    return {} if table.why_no_engine else table.kept(loader).report(AsAnyLoader(loader))


def _method(loader: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(loader, name, None)
    return found if callable(found) else None


def _check_is_torchs(loader: Any) -> None:
    if not isinstance(loader, classes.DataLoader):
        raise TypeError(f"headrace: a {type(loader).__name__} is not a loader; give one of torch's or of headrace's")


def _counted(loader: Any) -> AsAnyLoader:
    """Returns one of torch's loaders, if headrace counts its batches. Raises RuntimeError and StateError."""
    _check_is_torchs(loader)
    why = None
    if table.why_no_engine:
        why = (
            f"headrace's engine cannot run here ({table.why_no_engine}); use headrace.torch.DataLoader, whose state "
            "needs none"
        )
    elif not loaders.is_installed(loader):
        why = (
            "headrace is not installed under it; call headrace.torch.install() before its first epoch, or use "
            "headrace.torch.DataLoader"
        )
    elif UNCOUNTED in table.kept(loader).told:
        why = "its iterator is not headrace's; use headrace.torch.DataLoader"
    if why is not None:
        raise RuntimeError(f"headrace: the batches of this {type(loader).__name__} are not counted: {why}")
    if isinstance(loader.dataset, classes.DataPipes):
        base.check_continuable(loader.dataset)
    return AsAnyLoader(loader)


# ---- what torch's loaders lack ----


def _explain_attribute(name: str) -> str:
    if name in _FUNCTIONS:
        argument = {"load_state_dict": ", state", "skip": ", steps"}.get(name, "")
        return f"; call headrace.torch.{name}(loader{argument}), or use headrace.torch.DataLoader"
    return "; it is one of headrace.torch.DataLoader: use that class" if name in _ONLY_OWN else ""


def get_attribute(loader: Any, name: str) -> Any:
    """Raises what Python raises for an attribute that does not exist, and says what to call instead. It is __getattr__
    of torch's loaders while headrace is installed. One of a class behind torch's is called as before. A property that
    has raised AttributeError is read again, for its own error."""
    mro = type(loader).__mro__
    for one in mro[mro.index(classes.DataLoader) + 1 :]:
        if "__getattr__" in vars(one):
            return one.__getattr__(loader, name)  # type: ignore[attr-defined]
    if lookup.has_special(loader, name) or not _explain_attribute(name):
        return object.__getattribute__(loader, name)
    text = f"{type(loader).__name__!r} object has no attribute {name!r}{_explain_attribute(name)}"
    raise AttributeError(text, name=name, obj=loader)


def explain_call(loader: Any, error: TypeError, keywords: dict[str, Any]) -> None:
    """Says what to do, if __init__ of torch's loader has refused an option of headrace."""
    known = inspect.signature(classes.DataLoader.__init__).parameters
    given = [name for name in keywords if name in _options.TABLE and name not in known]
    if not given or isinstance(loader, base.DataLoader):
        return
    text = f"headrace: {', '.join(given)}: for an option of headrace use headrace.torch.DataLoader"
    if all(_options.is_for_install(name) for name in given):
        text += f", or set it for all loaders: headrace.torch.install({', '.join(f'{name}=...' for name in given)})"
    exception_text.add_text(error, text)
