# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing.spawn, that says all that cannot be sent to the processes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from headrace import _options
from headrace._engine import start_errors
from headrace.torch import _internals

_ONLY_SPAWN = (  # in torch's words
    "This method only supports start_method=spawn (got: {}).\n"
    "To use a different start_method use:\n\t\t"
    " torch.multiprocessing.start_processes(...)"
)


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    repair: str | None = None,
) -> Any:
    """torch.multiprocessing.spawn: starts `nprocs` processes that call fn(i, *args).

    Where they cannot be started because something does not pickle, the exception says everything that is in the way.

    Args:
        repair: "auto": what can be made anew in the processes is; a warning lists it. None: it raises.

    Returns:
        None; with join=False torch's ProcessContext.
    """
    _options.check_repair(repair)
    if start_method != "spawn":
        warnings.warn(_ONLY_SPAWN.format(start_method), FutureWarning, stacklevel=2)
    start = functools.partial(_start, fn, args, nprocs, daemon)
    context = start_errors.started(start, [("fn", fn), ("args", args)], "spawn", repair)
    if not join:
        return context
    while not context.join():
        pass
    return None


def _start(fn: Any, args: tuple[Any, ...], nprocs: int, daemon: bool, is_repaired: bool) -> Any:
    if is_repaired:
        fn, args = _call, (start_errors.repaired_pickle((fn, args)),)
    return _internals.start_processes(fn, args, nprocs, join=False, daemon=daemon, start_method="spawn")


def _call(number: int, sent: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = sent
    fn(number, *args)
