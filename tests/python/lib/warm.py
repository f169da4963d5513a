# SPDX-License-Identifier: Apache-2.0
"""Starts scripts in processes that have imported torch: this takes 0.05 s instead of 1.5 s.

`pytestmark = pytest.mark.warm` in a test file asks for it. Scripts that set other variables than HEADRACE_..., or that
have a prefix, are started as new processes. A test that counts memory, or sets limits, needs a new process.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
USES_TORCH = re.compile(r"^\s*(?:import|from) (?:datasets|loaders|torch|headrace\.torch)\b", re.MULTILINE)
_libc = ctypes.CDLL(None)

forked = 0  # scripts, so far
is_wanted = False  # conftest.py sets it for a test with the mark
_server: subprocess.Popen[bytes] | None = None
_connection: socket.socket | None = None


def helpers() -> tuple[set[int], set[int]]:
    """Returns the server's process and the descriptor of its connection, which outlive a test."""
    if _server is None or _connection is None:
        return set(), set()
    return {_server.pid}, {_connection.fileno()}


def fits(code: str, prefix: list[str] | None, changes: dict[str, str | None]) -> bool:
    changed = [name for name, value in changes.items() if value is not None or name in os.environ]
    is_simple = not prefix and all(name.startswith("HEADRACE_") for name in changed)
    return is_wanted and is_simple and USES_TORCH.search(code) is not None


def _connect(environment: dict[str, str]) -> socket.socket:
    global _server, _connection
    if _connection is None:
        _connection, theirs = socket.socketpair()
        path = str(pathlib.Path(__file__).with_name("warm_server.py"))
        command = [sys.executable, path, str(theirs.fileno())]
        fds = (theirs.fileno(),)
        _server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment, start_new_session=True
        )
        theirs.close()
        atexit.register(_close)
    return _connection


def _close() -> None:
    if _server is not None and _connection is not None:
        _connection.close()
        _server.wait()


def _ask(request: dict[str, Any], descriptors: list[int]) -> int:
    """Returns the pid of the new process, a child of this one."""
    global forked
    connection = _connect(request["environment"])
    forked += 1
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        text = b""
        while not text.endswith(b"!\n"):
            text += connection.recv(100)
    finally:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    return int(text.split()[0])


class WarmPopen(subprocess.Popen[str]):
    """A Popen whose process is forked by the server: [python, script] only, with pipes or /dev/null."""

    def _execute_child(self, args: list[str], executable: Any, *others: Any) -> None:  # type: ignore[override]
        cwd, env = others[3], others[4]
        ends = others[8:14]
        p2cread, _, _, c2pwrite, _, errwrite = ends
        request = {"path": args[-1], "folder": os.fspath(cwd), "environment": env}
        self.pid = _ask(request, [p2cread, c2pwrite, errwrite])
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
