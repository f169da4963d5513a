# SPDX-License-Identifier: Apache-2.0
"""Starts multiprocessing's fork server early, with what workers need already imported in it.

A worker that the server forks then starts in milliseconds instead of importing torch anew. What the user preloads with
multiprocessing.set_forkserver_preload stays; this adds to it. A server that runs already is left alone.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, spawn, util
from typing import Any

from headrace._errors import exception_text

PRELOAD = "headrace._start.preload"
VARIABLE = "HEADRACE_PRELOAD"
_MOST_OF_ARGUMENTS = 1 << 15  # characters: the kernel takes variables of 128 KiB
_lock = threading.Lock()
_SOCKET_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # those with the shortest paths, where $TMPDIR cannot have a socket
_MOST_OF_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")  # bytes: what an address of a socket has room for
_NO_FOLDER = (
    f"headrace: the fork server needs a folder for its socket, and none of $TMPDIR, {', '.join(_SOCKET_FOLDERS)} can "
    f"have one; set TMPDIR to a folder that can be written to, whose path has at most {_MOST_OF_TMPDIR} bytes"
)
_SOCKET_GONE = (
    "headrace: the socket of multiprocessing's fork server, {}, has been removed, as by a job that cleans up temporary "
    "files; start the program again, with TMPDIR set to a folder that is not cleaned up"
)


def start_method_of(context: Any) -> str:
    """The start method that `context` (or None, the default) will use, without settling the default."""
    method = context.get_start_method() if context is not None else multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


@contextlib.contextmanager
def _default_method_left_open() -> Iterator[None]:
    """To ask for what multiprocessing tells a process that it starts settles the default start method, which the script
    may still set."""
    default: Any = multiprocessing.context._default_context
    is_settled = default._actual_context is not None
    try:
        yield
    finally:
        if not is_settled:
            default._actual_context = None


def _can_have_socket(folder: str) -> bool:
    """Tries it: a folder may be gone, full or read-only, or its path too long for the address of a socket."""
    path = os.path.join(folder, f"listener-{secrets.token_hex(4)}")  # as long as multiprocessing's own names
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
        os.unlink(path)
    except OSError:
        return False
    return True


def _has_socket_folder() -> bool:
    try:
        return _can_have_socket(util.get_temp_dir())
    except OSError:  # of making it
        return False


def ensure_sockets(context: Any) -> None:
    """Gives multiprocessing another folder if `context` uses the fork server and cannot bind its socket in the usual
    one, for example because the path of $TMPDIR is too long. CPython 3.14 does the same. Never raises."""
    if start_method_of(context) != "forkserver" or multiprocessing.current_process().daemon or _has_socket_folder():
        return
    for base in _SOCKET_FOLDERS:
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="pymp-", dir=base)
            util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)  # with True it never raises
            if _can_have_socket(folder):
                multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
                return


def explain_sockets(error: OSError, context: Any) -> None:
    """Adds what to do to the exception of a process that was not started, if the fork server's socket is the reason."""
    if start_method_of(context) != "forkserver":
        return
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    if address is not None:
        if not util.is_abstract_socket_namespace(address) and not os.path.exists(address):
            exception_text.add_text(error, _SOCKET_GONE.format(address))
    elif not _has_socket_folder():
        exception_text.add_text(error, _NO_FOLDER)


def _what_to_load(modules: list[str], is_interrupted: bool) -> str:
    data = spawn.get_preparation_data("headrace")
    if len(str(data.get("sys_argv"))) > _MOST_OF_ARGUMENTS:  # then workers import the main module, which may read them
        data = {"sys_path": data.get("sys_path")}
    return json.dumps(
        {
            "sys_path": data.get("sys_path"),
            "sys_argv": data.get("sys_argv"),
            "main_path": data.get("init_main_from_path"),
            "main_name": data.get("init_main_from_name"),
            "modules": modules,
            "is_interrupted": is_interrupted,
        },
        default=str,  # a path in sys.path or sys.argv
    )


def _start(server: Any, modules: list[str]) -> None:
    """The server is born with SIGINT blocked, so that its first imports end with no traceback: headrace._start.preload
    unblocks it."""
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ[VARIABLE] = _what_to_load(modules, signal.SIGINT not in before)
        server.ensure_running()
    finally:
        os.environ.pop(VARIABLE, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_a_child() -> bool:
    """Also while it still imports the script's main module."""
    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_starting or multiprocessing.parent_process() is not None


def warm_up(context: Any, modules: list[str]) -> None:
    """Starts the fork server if `context` will use one. Never raises: a failure shows when a worker is started."""
    if start_method_of(context) != "forkserver" or _is_a_child():
        return
    server: Any = forkserver._forkserver
    with _lock:
        if server._forkserver_pid is not None:
            return
        ensure_sockets(context)
        wanted = server._preload_modules
        # Newer CPythons load __main__ themselves, first and whatever comes of it: headrace._start.preload tries it.
        server.set_forkserver_preload([*(module for module in wanted if module != "__main__"), PRELOAD])
        with contextlib.suppress(OSError), _default_method_left_open():
            _start(server, modules)
        server.set_forkserver_preload(wanted)
