# SPDX-License-Identifier: Apache-2.0
"""Starts scripts and the workers of tests in processes that are forked from one that has imported what they need: this
takes 0.05 s instead of 0.2 to 4 s.

All tests do so, except those with `@pytest.mark.cold("reason")`. A server is started for each of SERVERS when it is
first needed. A process whose variables have to be set before Python starts, or that has a prefix, is new in any case.
These processes end without the destructors of libraries, except in tests with `@pytest.mark.destructors("reason")`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing import util
from typing import Any

from process_table import all_pids, children

PR_SET_CHILD_SUBREAPER = 36
TORCH = ["torch.utils.data", "pytest"]  # loaders.py imports pytest
# What a script imports -> the modules that its server has imported. The first row that matches counts.
SERVERS = [
    (r"datasets|loaders|torch|headrace\.torch|resumed", TORCH),
    (r"headrace|numpy|without_torch", ["numpy"]),
]
IMPORTS = [(re.compile(rf"^\s*(?:import|from) (?:{names})\b", re.MULTILINE), modules) for names, modules in SERVERS]
# What workers of pytest's own process import: pytest is their main module. tests/other_pythons.sh has no torch.
WORKERS = TORCH if find_spec("torch") else ["numpy", "pytest"]
_WORKER = re.compile(r"from multiprocessing\.(spawn|forkserver) |.*from headrace\._loader\.forkserver ")
_METHOD = re.compile(r"spawn|forkserver|multiprocessing_context=.headrace")
# Variables that libraries or Python read when they start. The one of torch's that is left out is set by an import of
# lightning: in pytest's own process it would make the scripts of all later tests new processes.
_EARLY = re.compile(
    r"PYTHON(?!PATH$)|LD_|MALLOC|GLIBC|OMP_|MKL_|KMP_|OPENBLAS|TORCH_|PYTORCH(?!_NVML_BASED_CUDA_CHECK$)|CUDA|LANG|LC_|TZ$"
)
_libc = ctypes.CDLL(None)
_environment: dict[str, str] = {}  # of the servers, before tests change it
_spawn_new = util.spawnv_passfds  # type: ignore[attr-defined]

forked = 0  # processes, so far
is_wanted = False  # conftest.py sets it for each test
skips_destructors = True  # so, too
_owner = 0  # the process that called install(): only to it do servers give children


class Server:
    """A process that forks others, and the descriptor of the connection to it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes] | None) -> None:
        self.descriptor, self.process = descriptor, process
        self._lock = threading.Lock()  # threads of a script may start workers at the same time

    def start(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Returns the pid of the new process, a child of this one."""
        with self._lock:
            return self._ask(request, descriptors)

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        global forked
        connection = socket.socket(fileno=self.descriptor)
        before = children(os.getpid())
        others, text = all_pids() - before, b""
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
            while not text.endswith(b"!\n"):
                text += (piece := connection.recv(100))
                assert piece, "the warm server has died; its own error is printed above"
        finally:
            connection.detach()  # a socket that a script never closes would be a warning at its end
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            new = children(os.getpid()) - before - {int(pid) for pid in text.split()[:1]}
            # A process that is new too is an orphan, unless another thread has started it.
            _adopted.update(new if threading.active_count() == 1 else new & others)
        forked += 1
        return int(text.split()[0])

    def close(self) -> None:
        os.close(self.descriptor)
        if self.process is not None:
            self.process.wait()


# Children whose parent has died while this process was a subreaper. No other part of it knows of them.
_adopted: set[int] = set()


def reap_adopted() -> None:
    for pid in [*_adopted]:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _adopted.remove(pid)


_servers: dict[str, Server] = {}
_of_script: list[Server] = []  # in a script that a server has forked: the server for its workers


def _started(modules: list[str]) -> Server:
    connection, theirs = socket.socketpair()
    path = str(pathlib.Path(__file__).with_name("warm_server.py"))
    command = [sys.executable, path, str(theirs.fileno()), *modules]
    fds = (theirs.fileno(),)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=_environment)
    theirs.close()
    return Server(connection.detach(), process)


def use_server(descriptor: int) -> None:
    """Makes multiprocessing start the workers of this script by the server at the other end of a connection."""
    global is_wanted
    is_wanted = True
    _of_script[:] = [Server(descriptor, None)]
    install()


def helpers() -> tuple[set[int], set[int]]:
    """Returns the servers' processes and the descriptors of their connections, which outlive a test."""
    servers = _servers.values()
    return {one.process.pid for one in servers if one.process}, {one.descriptor for one in servers}


def _server(modules: list[str]) -> Server:
    if _of_script:
        return _of_script[0]
    key = " ".join(modules)
    if key not in _servers:
        _servers[key] = _started(modules)
    return _servers[key]


def _modules(code: str) -> list[str] | None:
    return next((modules for pattern, modules in IMPORTS if pattern.search(code)), None)


def _fits_environment(environment: dict[str, str]) -> bool:
    changed = {name for name, _ in set(environment.items()) ^ set(_environment.items())}
    return not any(_EARLY.match(name) for name in changed)


@dataclasses.dataclass
class Program:
    """A process of Python: its words, its code, and the code that tells which server fits."""

    argv: list[str]
    code: str
    path: str  # the first entry of sys.path
    command: str | None  # None: the script argv[0]

    @classmethod
    def of(cls, words: Sequence[str], folder: str) -> Program | None:
        """Returns None for words that a server does not understand."""
        first, *others = words
        if first == "-c":
            return cls(["-c", *others[1:]], others[0], "", others[0])
        if first == "-m":
            command = f"import runpy; runpy.run_module({others[0]!r}, run_name='__main__', alter_sys=True)"
            return cls(["-m", *others[1:]], "import torch", folder, command)
        if first.startswith("-"):
            return None
        script = pathlib.Path(folder, first)
        return cls([str(script), *others], script.read_text(), str(script.parent), None)


def fits(words: Sequence[str], folder: str, environment: dict[str, str]) -> bool:
    """Returns True if `python WORDS...` can be forked by a server."""
    program = Program.of(words, folder) if is_wanted else None
    return program is not None and _modules(program.code) is not None and _fits_environment(environment)


def _request(argv: list[str], environment: dict[str, str], **others: Any) -> dict[str, Any]:
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    orig_argv = [sys.executable, *argv]
    request = {"argv": argv, "orig_argv": orig_argv, "environment": environment, "blocked": blocked}
    return {**request, "skips_destructors": skips_destructors, **others}


def _python_path(first: str, environment: dict[str, str]) -> list[str]:
    return [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


class WarmPopen(subprocess.Popen[str]):
    """A Popen whose process is forked by a server: [python, WORD, ...] that fits, in a folder."""

    def _execute_child(self, args: list[str], executable: Any, *others: Any) -> None:  # type: ignore[override]
        folder, env = os.fspath(others[3]), others[4]
        ends = others[8:14]
        p2cread, _, _, c2pwrite, _, errwrite = ends
        program = Program.of(args[1:], folder)
        assert program is not None
        request = _request(program.argv, env, folder=folder, code=program.command)
        request |= {"path": _python_path(program.path, env), "has_session": others[19], "numbers": [0, 1, 2]}
        request["starts_workers"] = program.command is not None or _METHOD.search(program.code) is not None
        server = _server(_modules(program.code) or [])
        streams = [own if given == -1 else given for own, given in enumerate([p2cread, c2pwrite, errwrite])]
        self.pid = server.start(request, streams)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _start_worker(path: bytes, args: Sequence[str | bytes], fds: Sequence[int]) -> int:
    """Replaces multiprocessing.util.spawnv_passfds, which starts spawned workers and fork servers."""
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    words = [os.fsdecode(word) for word in args[len(flags) :]]
    environment = dict(os.environ)
    is_simple = len(words) > 2 and words[1] == "-c" and _WORKER.match(words[2]) is not None
    is_usual = os.fsdecode(path) == sys.executable and _fits_environment(environment)
    if not (is_wanted and os.getpid() == _owner and is_simple and is_usual):
        return int(_spawn_new(path, args, fds))
    numbers = [0, 1, 2, *sorted(map(int, fds))]
    request = _request(["-c", *words[3:]], environment, folder=os.getcwd(), code=words[2])
    request |= {"path": _python_path("", environment), "has_session": False, "numbers": numbers}
    request["starts_workers"] = False
    return _server(WORKERS).start(request, numbers)


def install() -> None:
    """Makes multiprocessing start the workers of this process by a server."""
    global _owner
    _owner = os.getpid()
    _environment.clear()
    _environment.update(os.environ)
    util.spawnv_passfds = _start_worker  # type: ignore[attr-defined]


def close() -> None:
    """Ends the servers of this process."""
    for server in _servers.values():
        server.close()
