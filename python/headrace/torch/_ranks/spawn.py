# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.spawn: torch.multiprocessing.spawn, which lists all objects that cannot be sent to the processes, and
raises the first failure."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from headrace import _options
from headrace._loader.trainer import start_errors
from headrace.torch._own import workers
from headrace.torch._ranks import first_failure

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

    If processes fail, it raises the earliest failure that is not the consequence of another, where torch raises the one
    that it notices first: an exception of torch.distributed which says that another process was lost, and SIGABRT,
    count only if there is nothing else. The exception also shows the stacks of processes that still run (a note, from
    Python 3.11 on). They are ended then, as with torch.

    Args:
        repair: "auto": make such objects again in the processes where headrace knows how, and list them in a warning.
            None: raise the exception.

    Returns:
        None, or with join=False a ProcessContext of torch, whose `join` does the same.

    Raises:
        torch.multiprocessing.ProcessRaisedException: the function raised in the process `error_index`.
        torch.multiprocessing.ProcessExitedException: the process `error_index` died, or its exit code was not 0.
    """
    _options.check_repair("repair", repair)
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
    start = functools.partial(workers.start_processes, nprocs=nprocs, join=False, daemon=daemon, start_method="spawn")
    try:
        notes = first_failure.Notes(nprocs)
    except OSError:  # a limit on the size of files, or on their number
        return start(fn, args)
    return first_failure.Context(start(first_failure.Noting(fn, notes), args), notes)


def _call(number: int, sent: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = sent
    fn(number, *args)
