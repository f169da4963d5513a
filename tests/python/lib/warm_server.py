# SPDX-License-Identifier: Apache-2.0
"""A process that has imported modules, and forks one for each script or command that a test asks for; see warm.py.

It imports nothing of headrace, so each process still imports headrace itself, with its own environment.

    warm_server.py DESCRIPTOR MODULE...: the descriptor of its connection, and what it imports
"""

import builtins
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import types

import huge_pages
import warm

HIGH = 500  # descriptors are put here while those below are closed
PR_SET_PDEATHSIG = 1


def answer(connection: socket.socket, request: dict, descriptors: list[int]) -> bool:
    """Forks twice, so that the new process becomes a child of pytest, which is a subreaper. Returns True in it."""
    ready, is_orphan = os.pipe()
    middle = os.fork()
    if middle == 0:
        child = os.fork()
        if child:
            connection.sendall(b"%d\n" % child)
            os._exit(0)
        os.close(is_orphan)
        os.read(ready, 1)  # ends when pytest is its parent
        prepare(request, descriptors)
        return True
    for descriptor in [*descriptors, ready]:
        os.close(descriptor)
    os.waitpid(middle, 0)
    os.close(is_orphan)
    connection.sendall(b"!\n")
    return False


def place_descriptors(descriptors: list[int], numbers: list[int]) -> None:
    """Gives the descriptors these numbers, and closes all others."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for descriptor in descriptors]
    os.closerange(0, HIGH)
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
    os.closerange(HIGH, max(high) + 1)


def prepare(request: dict, descriptors: list[int]) -> None:
    """Makes this process look like a new one: session, files, signals, environment, arguments, import path and random
    numbers."""
    if request["has_session"]:
        os.setsid()
    place_descriptors(descriptors, request["numbers"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    sys.orig_argv = request["orig_argv"]
    sys.path[:] = [*request["path"], *installed]
    sys.excepthook = show
    # The streams of the server remember whether its own files can seek.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if coverage := sys.modules.get("follow_coverage"):  # make choose-tests
        coverage.follow_test()
    if request["skips_destructors"]:
        skip_destructors()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def skip_destructors() -> None:
    """Makes the process end as soon as Python has ended: the destructors of torch's libraries take as long as a script.

    exit() calls what is registered last first, so functions that the script or headrace registers still run.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # called with the exit status


def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Prints an exception without the frame of this file."""
    sys.__excepthook__(kind, error.with_traceback(trace.tb_next if trace else None), trace)


def become_main(request: dict) -> types.CodeType:
    """Empties the main module for the script or command, and returns its code."""
    names = {"__name__": "__main__", "__builtins__": builtins, "__spec__": None}
    source, file = request["code"], "<string>"
    if source is None:
        file = names["__file__"] = request["argv"][0]
        with open(file, "rb") as stream:
            source = stream.read()
    sys.modules["__main__"].__dict__.clear()
    sys.modules["__main__"].__dict__.update(names)
    return compile(source, file, "exec")


def load(modules: list[str]) -> None:
    global installed
    for module in modules:
        importlib.import_module(module)
    if "torch" in sys.modules:
        sys.modules["torch"].utils.data.DataLoader([0])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [entry for entry in sys.path[1:] if entry not in given]
    gc.collect()
    gc.freeze()  # a collection in a new process would write to all of this memory
    huge_pages.collapse()


def serve(connection: socket.socket) -> types.CodeType:
    """Answers requests until the other end is closed. Returns in a new process, with the code that it has to run."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 18, 100)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if answer(connection, request, descriptors):
            connection.detach()  # the descriptor was closed
            return fork_server_of_script(request) or become_main(request)


def fork_server_of_script(request: dict) -> types.CodeType | None:
    """Forks a server for the workers that the script starts, if it may start some. It dies with the script. Returns in
    the script, with None, and in processes that the server has forked, with the code that they have to run."""
    if not request["starts_workers"]:
        return None
    theirs, connection = socket.socketpair()
    if os.fork():
        connection.close()
        warm.use_server(fcntl.fcntl(theirs.detach(), fcntl.F_DUPFD_CLOEXEC, HIGH))
        return None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    theirs.close()
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(devnull, number)
    return serve(connection)


if __name__ == "__main__":
    import warm_server  # again, as a module of its own: the names of this one become the script's

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends this process
    warm_server.load(sys.argv[2:])
    exec(warm_server.serve(socket.socket(fileno=int(sys.argv[1]))), globals())
