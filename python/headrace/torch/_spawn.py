# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.spawn: torch.multiprocessing.spawn, which lists all objects that cannot be sent to the processes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from headrace import _options
from headrace._engine import start_errors
from headrace.torch import _internals

_ONLY_SPAWN = (  # torch's text
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
    """Starts `nprocs` processes that call fn(i, *args), as torch.multiprocessing.spawn does.

    If they cannot be started because objects cannot be pickled, the exception lists all of these objects.

    Args:
        repair: "auto": make such objects again in the processes where headrace knows how, and list them in a warning.
            None: raise the exception.

    Returns:
        None, or with join=False torch's ProcessContext.
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
