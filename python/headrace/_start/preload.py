# SPDX-License-Identifier: Apache-2.0
"""Loads the modules that workers need. The fork server imports this module when it starts, so workers are forked with
them.

The script's main module is loaded too, if that is safe: a child process tries it first, and the server does the same
only if the try raised no exception, started no thread, opened no file and used no accelerator. (multiprocessing loads
it without a try, and its releases before late 2025 never pass on the path of the module. _start.forkserver turns this
off.)
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, spawn, util
from types import FrameType
from typing import Any

from headrace import _core
from headrace._start import gc_pause

TRY_S = 60  # the child may take this long to import the script's main module


def _import_main(what: dict[str, Any]) -> None:
    process = multiprocessing.current_process()
    process._inheriting = True  # type: ignore[attr-defined]  # a script without a main guard raises, as in a worker
    try:
        if what["main_name"]:
            spawn._fixup_main_from_name(what["main_name"])  # type: ignore[attr-defined]
        else:
            spawn.import_main_path(what["main_path"])
    finally:
        del process._inheriting  # type: ignore[attr-defined]


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_files() -> set[tuple[str, str]]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def _accelerator_is_used() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized())


def _trainers_pipe() -> int | None:
    """Returns the descriptor by which multiprocessing's server, once it serves, notices that the trainer has ended."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == forkserver.__name__ and "alive_r" in frame.f_locals:
            return int(frame.f_locals["alive_r"])
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _ended_with_trainer() -> Iterator[None]:
    """Makes the kernel kill this process if the trainer ends during the block, as it kills workers."""
    pipe, fd = _trainers_pipe(), None
    with contextlib.suppress(OSError):  # without the guard, it ends after everything is loaded
        if pipe is not None:
            # No other process shares this new file description.
            fd = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK)
            _core.Loader.guard(fd, os.getpid())
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _try_main(what: dict[str, Any]) -> None:
    """Imports the main module in a child. Its exit code 0 means that the server can do the same."""
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        signal.alarm(TRY_S)
        with _ended_with_trainer():
            threads, files = _thread_count(), _open_files()
            _import_main(what)
            # If all workers inherit a file, they share one position in it.
            code = 0 if (_thread_count(), _open_files()) == (threads, files) and not _accelerator_is_used() else 1
    finally:
        os._exit(code)


def _main_is_safe(what: dict[str, Any]) -> bool:
    if not (what["main_path"] or what["main_name"]) or not os.path.isdir("/proc/self/task"):
        return False
    inherited = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the trainer ignores it, there is no exit code
    child = os.fork()
    if child == 0:
        _try_main(what)
    try:
        return os.waitpid(child, 0)[1] == 0
    finally:
        signal.signal(signal.SIGCHLD, inherited)


def _end(server: int) -> None:
    """Ends the server at once. Clearing torch module by module would take a second after the end of the trainer."""
    if os.getpid() == server:
        os._exit(0)


def _load(what: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server itself does this later
    if what["is_interrupted"]:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # drops an earlier Ctrl-C
    try:
        with _ended_with_trainer():
            _load_modules(what)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the script has set no handler of its own
            signal.signal(signal.SIGINT, signal.default_int_handler)  # the children of the server get this handler


def _load_modules(what: dict[str, Any]) -> None:
    util._close_stdin()  # type: ignore[attr-defined]  # of the server, before the user's code can read it
    if what["sys_path"]:
        sys.path[:] = what["sys_path"]
    gc_pause.pause()
    for module in what["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    sys.argv = what["sys_argv"] or sys.argv
    if _main_is_safe(what):
        with contextlib.suppress(Exception):
            _import_main(what)
    gc_pause.freeze()
    gc_pause.resume()
    atexit.register(_end, os.getpid())


if os.environ.get("HEADRACE_PRELOAD"):
    _load(json.loads(os.environ.pop("HEADRACE_PRELOAD")))
