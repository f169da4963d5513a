# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of the fork server: starts it, asks it for workers, and reads what it says of itself.

The loaders call warm_up when they are made, so that the server imports while the model is being built. context.py asks
for workers.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import pathlib
import pickle
import select
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, spawn, util
from typing import Any

from headrace._base import exception_text, memory_file, program
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._loader.forkserver import needed_modules
from headrace._loader.forkserver.protocol import MAX_FDS, MAX_REQUEST_BYTES, NUMBER, STALE, ImportPaths, Setup, Verdict
from headrace._loader.start import contexts

_NO_FOLDER = (
    "headrace: the working directory of this process has been removed, and workers start in it; change to another one "
    "with os.chdir"
)
SLOW_S = 60.0  # a server that has not answered for so long is reported
_RETRIES = 3


class ServerGone(Exception):
    """The server has ended, or must be started again."""


class ServerProcess:
    """A fork server that was started by this process."""

    def __init__(self, setup: Setup) -> None:
        self.paths = setup.paths
        self.environment = dict(os.environ)
        self.owner = os.getpid()
        self.verdict = Verdict().as_dict()
        self._wanted = list(dict.fromkeys([*setup.modules, *setup.needed_modules]))
        self._has_started_workers = False
        self._is_closed = False
        self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alive_r, self._alive = os.pipe2(os.O_CLOEXEC)
        try:
            with there, memory_file.create("headrace-setup") as file:
                pickle.dump(list(self.paths.sys_path), file)  # so that the server finds headrace
                pickle.dump(setup, file)
                file.flush()
                file.seek(0)
                self.pid = _start([there.fileno(), alive_r, file.fileno(), _tracker()])
        except BaseException:
            self.close()
            raise
        finally:
            os.close(alive_r)
        self.verdict["pids"] = [self.pid]

    def is_current(self, paths: ImportPaths) -> bool:
        """Returns True if this process started it, and it imports from `paths`."""
        return self.owner == os.getpid() and self.paths == paths

    def changed_variables(self) -> dict[str, str | None]:
        """Returns the environment variables that have changed since the start. None: it is no longer set."""
        if os.environ == self.environment:
            return {}
        names = {*os.environ, *self.environment}
        return {name: os.environ.get(name) for name in names if os.environ.get(name) != self.environment.get(name)}

    def ask(self, fds: list[int]) -> None:
        """Asks for a worker. Raises ServerGone."""
        self._has_started_workers = True
        self._send(fds)

    def want(self, modules: list[str]) -> None:
        """Asks the server to import modules, if it has not. Raises ServerGone."""
        if new := [name for name in modules if name not in self._wanted]:
            self._wanted += new
            self._send([])

    def _send(self, fds: list[int]) -> None:
        changed = self.changed_variables()
        new = [name for name in changed if name not in self.environment]
        request = {"changed": sorted(changed.keys() - new), "new": new, "modules": self._wanted}
        data = json.dumps(request).encode()
        if len(data) > MAX_REQUEST_BYTES:
            raise ServerGone
        try:
            socket.send_fds(self._control, [data], fds, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise ServerGone from error

    def read_verdict(self) -> dict[str, Any]:
        """Returns the newest Verdict as a dict."""
        with contextlib.suppress(OSError, ValueError):
            while data := self._control.recv(MAX_REQUEST_BYTES, socket.MSG_DONTWAIT):
                self.verdict = json.loads(data)
        return self.verdict

    def retire(self) -> None:
        """Asks for no more workers. The server ends when those that it has started have ended."""
        self._control.close()
        if not self._has_started_workers:
            self.close()

    def has_ended(self) -> bool:
        """Reaps the server if it has ended."""
        status = 0
        with contextlib.suppress(ChildProcessError):  # another thread has reaped it
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return False
        if status == 0:  # else it was killed, and the process that it left must not take this process for ended
            self.close()
        return True

    def close(self) -> None:
        """Closes this process's ends. The server and its workers then see the trainer as ended."""
        self._control.close()
        if not self._is_closed:
            self._is_closed = True
            os.close(self._alive)


def _tracker() -> int:
    """Returns the descriptor of this process's resource tracker, which its children use too."""
    fd = resource_tracker._resource_tracker.getfd()
    assert fd is not None
    return fd


def prepare(name: str) -> dict[str, Any]:
    """Returns multiprocessing's preparation data for a process. Keeps the default start method open, so that the script
    can still set it; get_preparation_data would fix it."""
    default: Any = multiprocessing.context._default_context
    before = default._actual_context
    try:
        data = spawn.get_preparation_data(name)
    except FileNotFoundError as error:
        exception_text.add_text(error, _NO_FOLDER)
        raise
    finally:
        default._actual_context = before
    if os.path.basename(data.get("init_main_from_path") or "") == "<stdin>":
        del data["init_main_from_path"]  # a script on stdin is no file; releases before late 2025 take it for one
    return data


def _start(fds: list[int]) -> int:
    """Starts the server. The caller has blocked SIGINT, so that a Ctrl-C during the server's first imports prints no
    traceback. Raises RuntimeError in a frozen program, which would start itself."""
    if program.is_frozen():
        raise RuntimeError(
            f"headrace: {spawn.get_executable()} is a frozen program and no interpreter, so it cannot start headrace's "
            f'fork server; use multiprocessing_context="{program.frozen_method()}" or "fork"'
        )
    command = (
        f"import pickle, sys; file = open({fds[2]}, 'rb'); sys.path[:] = pickle.load(file); "
        f"from headrace._loader.forkserver import server; server.main({fds[0]}, {fds[1]}, file, {fds[3]})"
    )
    arguments = [*util._args_from_interpreter_flags(), "-c", command]  # type: ignore[attr-defined]
    executable = os.fsencode(spawn.get_executable())
    return int(util.spawnv_passfds(executable, [executable, *arguments], fds))


# ---- the server of this process ----

_lock = threading.RLock()
_current: list[ServerProcess] = []  # one, or none
_retired: list[ServerProcess] = []
_wanted: dict[str, list[str]] = {"modules": [], "needed_modules": []}


def warm_up(context: Any, modules: list[str], parts: list[Any]) -> None:
    """Starts the server if `context` will use it. `modules`: what headrace's workers need. `parts`: the dataset and
    other objects that are sent to workers. Never raises: an error appears when a worker is started."""
    process = multiprocessing.current_process()
    is_starting = getattr(process, "_inheriting", False)  # it imports the script's main module
    if is_starting or process.daemon or not contexts.uses_headrace_server(context):
        return
    with contextlib.suppress(OSError):
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
    with _lock, sigint_blocked() as is_interrupted, contextlib.suppress(Exception):
        found = needed_modules.list_modules(parts)
        _wanted["modules"] = list(dict.fromkeys([*_wanted["modules"], *modules]))
        _wanted["needed_modules"] = list(dict.fromkeys([*_wanted["needed_modules"], *found]))
        _ensure(ImportPaths.of(prepare("headrace")), is_interrupted).want([*modules, *found])


@contextlib.contextmanager
def sigint_blocked() -> Iterator[bool]:
    """Blocks SIGINT in this thread, so that a KeyboardInterrupt between two steps loses no descriptor. Gives False if
    it was blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield signal.SIGINT not in before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ensure(paths: ImportPaths, is_interrupted: bool) -> ServerProcess:
    """Returns a server that imports from `paths`. The caller holds the lock."""
    if _current and not _current[0].is_current(paths):
        _retire()
    if not _current:
        preload = [name for name in forkserver._forkserver._preload_modules if name != "__main__"]  # type: ignore[attr-defined]
        _current.append(
            ServerProcess(Setup(paths, preload, **_wanted, is_interrupted=is_interrupted, trainer=os.getpid()))
        )
    return _current[0]


def _retire() -> None:
    if _current:
        old = _current.pop()
        old.retire()
        _retired.append(old)
    _retired[:] = [old for old in _retired if not old.has_ended()]


def _discard(old: ServerProcess) -> None:
    with _lock:
        if old in _current:
            _retire()


def start_worker(fds: list[int], paths: ImportPaths, is_interrupted: bool) -> tuple[int, int, int]:
    """Starts a worker, whose descriptors will be copies of `fds`, from a server that imports from `paths`. Returns a
    descriptor from which its exit code can be read, one to which its pickled process is written, and its pid. Raises
    OSError and RuntimeError.

    The caller has blocked SIGINT, unless it was blocked before (`is_interrupted` is false then)."""
    if len(fds) + 3 > MAX_FDS:
        raise ValueError(
            f"headrace: the dataset and the other arguments of a worker contain {len(fds)} file descriptors (pipes, "
            f"queues, sockets or shared tensors), and at most {MAX_FDS - 3} can be sent; open them in the worker "
            "(worker_init_fn)"
        )
    for _ in range(_RETRIES):
        with contextlib.ExitStack() as stack:
            exit_r, data_w, old = _request(fds, paths, is_interrupted)
            stack.callback(os.close, exit_r)
            stack.callback(os.close, data_w)
            number = _read_number(exit_r, old, is_interrupted)
            if number is not None and number > 0:
                stack.pop_all()
                return exit_r, data_w, number
        if number is not None and number < STALE:
            code = -number - 1
            raise OSError(code, os.strerror(code))
        _discard(old)
    raise RuntimeError(
        "headrace: the fork server ended before it could start a worker, several times in a row; its own error is "
        "printed above, or the kernel's log says that it was killed because memory ran out" + help_on("fork-server")
    )


def _request(fds: list[int], paths: ImportPaths, is_interrupted: bool) -> tuple[int, int, ServerProcess]:
    exit_r, exit_w = os.pipe()
    data_r, data_w = os.pipe()
    try:
        with _lock:
            one = _ensure(paths, is_interrupted)
            try:
                one.ask([data_r, exit_w, _tracker(), *fds])
            except ServerGone:
                _discard(one)  # nothing answers, which the caller sees
    except BaseException:
        os.close(exit_r)
        os.close(data_w)
        raise
    finally:
        os.close(data_r)
        os.close(exit_w)
    return exit_r, data_w, one


def _wait(fd: int, seconds: float | None, is_interrupted: bool) -> bool:
    """Waits until a descriptor can be read. Returns False after this time. A Ctrl-C interrupts it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if is_interrupted:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    finally:
        if is_interrupted:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _read_number(fd: int, one: ServerProcess, is_interrupted: bool) -> int | None:
    """Returns the server's answer, or None if it has ended."""
    if not _wait(fd, SLOW_S, is_interrupted):
        warn_user(
            f"headrace: the fork server (pid {one.pid}) has not started a worker for {SLOW_S:.0f} s; it still imports "
            "the script's main module, or waits for something there (py-spy dump --subprocesses --pid shows what)"
            + help_on("fork-server")
        )
        _wait(fd, None, is_interrupted)
    data = os.read(fd, NUMBER.size)
    return NUMBER.unpack(data)[0] if len(data) == NUMBER.size else None


def changed_variables() -> dict[str, str | None]:
    """Returns the environment variables that a worker has to set."""
    with _lock:
        return _current[0].changed_variables() if _current else {}


def report() -> dict[str, Any] | None:
    """Returns what is known of the server of this process, or None if it has none."""
    with _lock:
        if not _current or _current[0].owner != os.getpid():
            return None
        verdict = dict(_current[0].read_verdict())
        pids = verdict.pop("pids")
    zygote = pids[1] if len(pids) > 1 else None
    return {"pid": pids[0], "pid_of_zygote": zygote, "memory_bytes": sum(map(_memory_of, pids)), **verdict}


def _memory_of(pid: int) -> int:
    """Returns the proportional memory of a process in bytes, or 0 if the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.partition("\nPss:")[2].split()[0]) << 10
    return 0


def _forget() -> None:
    """Runs in a forked child, which has a server of its own."""
    global _lock
    _lock = threading.RLock()
    for one in [*_current, *_retired]:
        one.close()
    _current.clear()
    _retired.clear()


@atexit.register
def _end() -> None:
    """Runs at the exit of the interpreter. The server itself ends with this process."""
    for one in _current:
        one.retire()


os.register_at_fork(after_in_child=_forget)
