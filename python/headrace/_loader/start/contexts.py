# SPDX-License-Identifier: Apache-2.0
"""Says what a multiprocessing context starts: by which method, and whether from headrace's fork server. Checks that a
worker is a process, and a child of the process that iterates.

The loaders check a context, and the crew checks each process that it starts.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
import types
from multiprocessing.context import DefaultContext, ForkServerContext
from multiprocessing.process import BaseProcess, current_process
from typing import Any

from headrace._base import exception_text, program
from headrace._base.help_key import help_on

_DAEMON = (
    "headrace: this process is a daemon (a process of multiprocessing.Pool, or a worker of another loader). A daemon "
    "cannot start processes. Use num_workers=0 here, or start this process with "
    "concurrent.futures.ProcessPoolExecutor, whose processes are not daemons" + help_on("daemon")
)


def start_method_of(context: Any) -> str:
    """Returns the start method that `context` (None: the default) will use, without fixing the default."""
    method = context.get_start_method() if context is not None else multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


def main_has_file() -> bool:
    """Returns False if workers that do not start by fork cannot import the main module: in a notebook, for example. The
    processes of a frozen program have the main module, whose file may be in the program."""
    if program.is_frozen():
        return True
    main = sys.modules.get("__main__")
    own = vars(main) if isinstance(main, types.ModuleType) else {}
    path = own.get("__file__")
    return bool(getattr(own.get("__spec__"), "name", None)) or (isinstance(path, str) and os.path.isfile(path))


def uses_headrace_server(context: Any) -> bool:
    """Returns True if headrace's fork server starts the workers of `context`: the one that is called "headrace", and
    multiprocessing's own forkserver context. In a frozen program, only multiprocessing's server can be started."""
    if program.is_frozen() or start_method_of(context) != "forkserver":
        return False
    is_default = context is None or isinstance(context, (DefaultContext, types.ModuleType))
    return is_default or type(context) is ForkServerContext or is_headrace(context)


def is_headrace(context: Any) -> bool:
    """Returns True for the context of headrace's fork server, which is called "headrace"."""
    return getattr(context, "is_headrace", False) is True


def foreign_class(context: Any) -> str | None:
    """Returns the name of the class that `context` starts workers with if it is not a class of processes, else None.

    A context may start threads instead: the one of MONAI's ThreadDataLoader does."""
    kind = getattr(context, "Process", None)
    if not isinstance(kind, type) or issubclass(kind, BaseProcess):
        return None  # if it is a function, check_process checks what it returns
    return f"{kind.__module__}.{kind.__qualname__}"


def check_context(context: Any) -> None:
    """Raises TypeError if `context` starts workers that are not processes."""
    if name := foreign_class(context):
        raise _refusal(name)


def _refusal(name: str) -> TypeError:
    return TypeError(
        f"headrace: multiprocessing_context starts workers as {name}, which is not a process of multiprocessing, and "
        'headrace needs processes; give "fork", "forkserver", "spawn" or a context whose Process is derived from '
        "multiprocessing.process.BaseProcess, or use num_workers=0"
    )


def check_process(process: Any) -> None:
    """Raises TypeError if an object that a context made, and that is not started yet, is not a process."""
    if not isinstance(process, BaseProcess):
        raise _refusal(f"{type(process).__module__}.{type(process).__qualname__}")


def check_child(pid: Any) -> None:
    """Raises RuntimeError unless `pid` is a descendant of this process, because headrace sends signals to a worker and
    makes the kernel kill it when this process ends. With the start method forkserver, the parent of a worker is the
    fork server."""
    is_possible = isinstance(pid, int) and 0 < pid < 1 << 31 and pid != os.getpid()
    if not is_possible or not (_is_child(pid) or _may_descend(pid)):
        raise RuntimeError(
            f"headrace: multiprocessing_context started a worker with pid {pid}, which is not a child of this process "
            f'(pid {os.getpid()}), so headrace does not use it; give "fork", "forkserver" or "spawn"'
        )


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # multiprocessing can still read its exit code
    except OSError:
        return False
    return True


def _may_descend(pid: int) -> bool:
    """Returns False if /proc shows that process `pid` runs and does not descend from this process."""
    own = os.getpid()
    try:
        if os.readlink("/proc/self") != str(own):
            return True  # /proc belongs to an outer namespace, and shows other pids
        while pid not in (0, own):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    except OSError:  # there is no /proc, or the process has ended and another thread read its exit code
        return True
    return pid == own


def explain_daemon(error: AssertionError) -> None:
    """Adds advice to the exception that multiprocessing raises if a daemon starts a process."""
    if current_process().daemon:
        exception_text.add_text(error, _DAEMON)
