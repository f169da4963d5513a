# SPDX-License-Identifier: Apache-2.0
"""Imported by the fork server when it starts: loads what workers need, so that they are forked with it.

The script's own main module is loaded too, where that is safe: a child process tries it first, and the server follows
only if the try raised nothing, started no thread, opened no file and touched no accelerator. (multiprocessing's own way
has no such try, and before late 2025's releases never passes the module's path on: _start.forkserver turns it off.)
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

TRY_S = 60  # for the script's main module to be imported


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
        with contextlib.suppress(OSError):  # the listing's own
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def _accelerator_is_used() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized())


def _trainers_pipe() -> int | None:
    """The descriptor by which multiprocessing's main tells, once it serves, that the trainer is gone."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == forkserver.__name__ and "alive_r" in frame.f_locals:
            return int(frame.f_locals["alive_r"])
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _ended_with_trainer() -> Iterator[None]:
    """The kernel kills this process when the trainer is gone, as it kills workers."""
    pipe, fd = _trainers_pipe(), None
    with contextlib.suppress(OSError):  # then it ends when all is loaded
        if pipe is not None:
            fd = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK)  # a description that nobody shares
            _core.Loader.guard(fd, os.getpid())
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _try_main(what: dict[str, Any]) -> None:
    """Runs in a child: exit code 0 means that the server can do the same."""
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        signal.alarm(TRY_S)
        with _ended_with_trainer():
            threads, files = _thread_count(), _open_files()
            _import_main(what)
            # A file opened once and inherited by all would have one position for all.
            code = 0 if (_thread_count(), _open_files()) == (threads, files) and not _accelerator_is_used() else 1
    finally:
        os._exit(code)


def _main_is_safe(what: dict[str, Any]) -> bool:
    if not (what["main_path"] or what["main_name"]) or not os.path.isdir("/proc/self/task"):
        return False
    inherited = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the trainer ignores it, there is no exit code
    child = os.fork()
    if child == 0:
        _try_main(what)
    try:
        return os.waitpid(child, 0)[1] == 0
    finally:
        signal.signal(signal.SIGCHLD, inherited)


def _end(server: int) -> None:
    """Ends the server at once: taking torch down module by module would keep it for a second after the trainer."""
    if os.getpid() == server:
        os._exit(0)


def _load(what: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the server itself does, after this
    if what["is_interrupted"]:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a Ctrl-C of earlier is forgotten
    try:
        with _ended_with_trainer():
            _load_modules(what)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # and not a handler of the script's
            signal.signal(signal.SIGINT, signal.default_int_handler)  # what the server gives its children


def _load_modules(what: dict[str, Any]) -> None:
    util._close_stdin()  # type: ignore[attr-defined]  # the server's own, before anything of the user's can read it
    if what["sys_path"]:
        sys.path[:] = what["sys_path"]
    gc_pause.rest()
    for module in what["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    sys.argv = what["sys_argv"] or sys.argv
    if _main_is_safe(what):
        with contextlib.suppress(Exception):
            _import_main(what)
    gc_pause.keep()
    gc_pause.work()
    atexit.register(_end, os.getpid())


if os.environ.get("HEADRACE_PRELOAD"):
    _load(json.loads(os.environ.pop("HEADRACE_PRELOAD")))
