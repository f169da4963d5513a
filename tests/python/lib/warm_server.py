# SPDX-License-Identifier: Apache-2.0
"""A process that has imported torch, and forks one for each script that a test asks for; see warm.py.

It imports nothing of headrace, so each script still imports headrace itself, with its own environment.
"""

import builtins
import json
import os
import socket
import sys
import types

import numpy  # noqa: F401
import torch.utils.data


def answer(connection: socket.socket, request: dict, descriptors: list[int]) -> bool:
    """Forks twice, so that the script becomes a child of pytest, which is a subreaper. Returns True in the script."""
    middle = os.fork()
    if middle == 0:
        script = os.fork()
        if script:
            connection.sendall(b"%d\n" % script)
            os._exit(0)
        prepare(request, descriptors)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    os.waitpid(middle, 0)
    connection.sendall(b"!\n")
    return False


def prepare(request: dict, descriptors: list[int]) -> None:
    """Makes this process look like a new one: session, files, environment, arguments and import path."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["path"]]
    sys.orig_argv = [sys.executable, request["path"]]
    sys.path[0] = request["folder"]
    sys.excepthook = show
    # The streams of the server remember whether its own files can seek.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Prints an exception without the frame of this file."""
    sys.__excepthook__(kind, error.with_traceback(trace.tb_next if trace else None), trace)


def serve(connection: socket.socket) -> types.CodeType:
    """Answers requests until pytest ends. Returns in the process of a script, with its code."""
    torch.utils.data.DataLoader([0])
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if answer(connection, request, descriptors):
            connection.close()
            names = {"__name__": "__main__", "__file__": request["path"], "__builtins__": builtins, "__spec__": None}
            with open(request["path"], "rb") as file:
                code = compile(file.read(), request["path"], "exec")
            sys.modules["__main__"].__dict__.clear()
            sys.modules["__main__"].__dict__.update(names)
            return code


if __name__ == "__main__":
    import warm_server  # again, as a module of its own: the names of this one become the script's

    exec(warm_server.serve(socket.socket(fileno=int(sys.argv[1]))), globals())
