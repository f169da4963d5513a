# SPDX-License-Identifier: Apache-2.0
"""Starts multiprocessing's fork server early, with the modules that workers need already imported.

Without this, each worker imports torch again. A worker that is forked from the prepared server starts in milliseconds.
Modules that the user preloads with multiprocessing.set_forkserver_preload are kept, and headrace adds its own. A server
that already runs is not changed. The loaders call warm_up(), and the crew calls the other functions.
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
_MAX_ARGUMENTS = 1 << 15  # characters; the kernel allows environment variables of 128 KiB
_lock = threading.Lock()
_SOCKET_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # the shortest paths, tried if $TMPDIR cannot hold a socket
_MAX_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")  # bytes: the address of a socket is limited
_NO_FOLDER = (
    f"headrace: the fork server needs a folder for its socket, and none of $TMPDIR, {', '.join(_SOCKET_FOLDERS)} can "
    f"hold one; set TMPDIR to a writable folder whose path has at most {_MAX_TMPDIR} bytes"
)
_SOCKET_GONE = (
    "headrace: the socket of multiprocessing's fork server, {}, has been removed, for example by a job that cleans up "
    "temporary files; start the program again with TMPDIR set to a folder that is not cleaned up"
)


def start_method_of(context: Any) -> str:
    """Returns the start method that `context` (None: the default) will use, without fixing the default."""
    method = context.get_start_method() if context is not None else multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


@contextlib.contextmanager
def _default_method_left_open() -> Iterator[None]:
    """Keeps the default start method open, so that the script can still set it. get_preparation_data() of
    multiprocessing would fix it."""
    default: Any = multiprocessing.context._default_context
    is_settled = default._actual_context is not None
    try:
        yield
    finally:
        if not is_settled:
            default._actual_context = None


def _can_have_socket(folder: str) -> bool:
    """Tries to create a socket. It fails if the folder does not exist, is full or read-only, or has a path that is too
    long for the address of a socket."""
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
    except OSError:  # the folder cannot be created
        return False


def ensure_sockets(context: Any) -> None:
    """Gives multiprocessing another folder if `context` uses the fork server and cannot bind its socket in the usual
    one, for example because the path of $TMPDIR is too long. CPython 3.14 does the same. Never raises."""
    if start_method_of(context) != "forkserver" or multiprocessing.current_process().daemon or _has_socket_folder():
        return
    for base in _SOCKET_FOLDERS:
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="pymp-", dir=base)
            util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)  # True: errors are ignored
            if _can_have_socket(folder):
                multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
                return


def explain_sockets(error: OSError, context: Any) -> None:
    """Adds advice to the exception of a process that could not be started, if the fork server's socket is the
    reason."""
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
    if len(str(data.get("sys_argv"))) > _MAX_ARGUMENTS:
        # The workers import the main module then, because it may read the arguments.
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
        default=str,  # for path objects in sys.path or sys.argv
    )


def _start(server: Any, modules: list[str]) -> None:
    """Starts the server with SIGINT blocked, so that a Ctrl-C during its first imports prints no traceback.
    headrace._start.preload unblocks it."""
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ[VARIABLE] = _what_to_load(modules, signal.SIGINT not in before)
        server.ensure_running()
    finally:
        os.environ.pop(VARIABLE, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_a_child() -> bool:
    """Returns True in a child process of multiprocessing, even while it still imports the script's main module."""
    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_starting or multiprocessing.parent_process() is not None


def warm_up(context: Any, modules: list[str]) -> None:
    """Starts the fork server if `context` will use one. Never raises: an error appears when a worker is
    started."""
    if start_method_of(context) != "forkserver" or _is_a_child():
        return
    server: Any = forkserver._forkserver
    with _lock:
        if server._forkserver_pid is not None:
            return
        ensure_sockets(context)
        wanted = server._preload_modules
        # Newer versions of CPython load __main__ themselves, first and without a check that this is safe.
        # headrace._start.preload tries it in a child first.
        server.set_forkserver_preload([*(module for module in wanted if module != "__main__"), PRELOAD])
        with contextlib.suppress(OSError), _default_method_left_open():
            _start(server, modules)
        server.set_forkserver_preload(wanted)
