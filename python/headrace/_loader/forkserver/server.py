# SPDX-License-Identifier: Apache-2.0
"""The fork server: imports what workers need, once, and forks them. client.py starts it and sends it requests.

    trainer --- requests ---> root --- requests ---> zygote ---> workers
                                \\-- one request --> a process that is unfit to be forked, and becomes a worker

The root imports the modules of headrace and torch, which are safe. It never imports the user's modules itself, because
that cannot be undone. A process that is forked from it imports the script's main module and the modules of the dataset.
If that process is fit to be forked (see fitness.py), it is the zygote, from which all workers are forked. If it is not,
it becomes the first worker, so that its imports are of use, and a second process imports only the modules that do not
need a module with a hazard. If that one is fit, it is the zygote. Without a zygote, or before it is ready, workers are
forked from the root, and import the rest themselves, as with multiprocessing's fork server.

A request carries the descriptors that multiprocessing's fork server would get. The answers go through them: the pid of
the worker, and when it has ended its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, spawn, util
from typing import IO, NoReturn

from headrace import _core
from headrace._base import memory_file
from headrace._loader.forkserver.import_watch import ANY_NEW, SCRIPT, ImportWatch
from headrace._loader.forkserver.protocol import MAX_FDS, MAX_REQUEST_BYTES, NUMBER, STALE, Setup, Verdict
from headrace._loader.start import blocking, gc_pause
from headrace._loader.worker import inherited

WORKER_MODULES = ("headrace._loader.forkserver.context", "headrace._loader.worker.main")  # each worker needs them
END_S = 5  # the finalizers of a process that has imported the script may take so long
MAX_HAZARDS = 20  # the report names so many
MAX_ERROR = 2000  # characters of an exception in the report
MAX_DEATHS = 3  # a process that imports the script and is killed so often is not started again
# Libraries written in C read these, or modules look for all variables with such a beginning.
READ_BY_LIBRARIES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "ATEN_", "DNNL_", "ONEDNN_"),
    *("PYTORCH_", "TORCH", "ARROW_", "MALLOC_", "JE_", "LD_", "GLIBC_", "PYTHON", "TQDM_", "FSSPEC_", "OPENCV_"),
    *("TF_", "XLA_", "JAX_", "GDAL_", "NPY_", "LC_", "LANG"),
)


@dataclass
class Imported:
    """The facts that a process which has imported the user's modules tells the root, besides its verdict.

    to_try: lists of modules; another process that imports one of them may be fit. variables: the environment variables
    that were read. loaded: all modules that it has.
    """

    to_try: list[list[str]]
    variables: set[str]
    loaded: list[str]


# ---- children, in the root and in the zygote ----


def send_number(fd: int, number: int) -> None:
    """Sends a pid or an exit code to the trainer, which may have ended or may not be interested any more."""
    with contextlib.suppress(OSError):
        os.write(fd, NUMBER.pack(number))


def receive(source: socket.socket, flags: int = 0) -> tuple[bytes, list[int]] | None:
    """Returns the next message and its descriptors, or None if the other end is closed or there is no message yet."""
    try:
        data, fds, _, _ = socket.recv_fds(source, MAX_REQUEST_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC | flags)
    except (ConnectionError, BlockingIOError):
        return None
    return (data, list(fds)) if data else None


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def exit_code_of(error: SystemExit) -> int:
    """Returns the exit code that Python would end with, and prints which line asked for it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    paths = f"{frame.filename}:{frame.lineno}"
    text = f"headrace: {paths} ends the worker, because it calls sys.exit({error.code!r}) when the script is imported; "
    print(text + "put the call under if __name__ == '__main__':", file=sys.stderr)
    return 0 if error.code is None else error.code if isinstance(error.code, int) else 1


def fork_with_tracker() -> int:
    """Forks. The child goes on with the resource tracker of this process, also on a CPython (3.14.10, 3.15) that takes
    it from any child that multiprocessing has not forked. With a tracker of its own, what the child registers would be
    called leaked, and removed, at its end."""
    intent = getattr(resource_tracker, "_fork_intent", None)
    if intent is None:
        return os.fork()
    intent.preserve_fd = True
    try:
        return os.fork()
    finally:
        intent.preserve_fd = False


class Forker:
    """Forks processes, and sends their exit codes when they have ended."""

    def __init__(self, alive: int, trainer: int, list_fds: Callable[[], list[int]]) -> None:
        self.alive = alive  # a pipe that closes when the trainer ends
        self.trainer = trainer  # its process ID
        self.list_fds = list_fds  # gives further descriptors that a child closes
        self.exit_pipes: dict[int, int] = {}  # pid -> the descriptor for its exit code
        self.wakeup, wakeup_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wakeup_fds = [self.wakeup, wakeup_w]
        self.handlers = {
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGPIPE: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
        }
        signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
        self.mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def fork(self, run: Callable[[], int], keeps_alive: bool = False) -> int:
        """Forks a child that calls run() and ends with its result as exit code. The child closes all descriptors of
        this object, but with `keeps_alive` not the pipe `alive`. Returns its pid."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocking.GROUP)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # CPython warns of any thread; those that are here are safe
                pid = fork_with_tracker()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return pid
        code = 1
        try:
            self._become_child(keeps_alive)
            code = run()
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT  # without a traceback, because the trainer raises KeyboardInterrupt too
        except SystemExit as error:  # the script calls sys.exit when it is imported
            code = exit_code_of(error)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    def _become_child(self, keeps_alive: bool) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        _core.Loader.ignore_others(self.trainer, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        close_all([*self.wakeup_fds, *self.exit_pipes.values(), *self.list_fds()])
        if not keeps_alive:
            os.close(self.alive)

    def start_worker(self, fds: list[int]) -> None:
        """Forks a worker for a request, and closes the request's descriptors."""
        child_r, child_w, *rest = fds
        try:
            pid = self.fork(lambda: run_worker(child_r, child_w, rest))
        except OSError as error:  # a limit on processes, or memory
            send_number(child_w, -(error.errno or 1) - 1)
            close_all(fds)
            return
        close_all([child_r, *rest])
        self.adopt(pid, child_w)

    def adopt(self, pid: int, exit_pipe: int) -> None:
        """Sends the pid of a child to the trainer, and later its exit code."""
        send_number(exit_pipe, pid)
        self.exit_pipes[pid] = exit_pipe

    def reap(self) -> Iterator[tuple[int, int]]:
        """Gives the pids and exit codes of children that have ended and are no workers."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                code = os.waitstatus_to_exitcode(status)
                if pid in self.exit_pipes:
                    pipe = self.exit_pipes.pop(pid)
                    send_number(pipe, code)
                    os.close(pipe)
                else:
                    yield pid, code

    def wait(self, sources: list[int]) -> list[int]:
        """Waits until one of the descriptors is ready or a child has ended. Ends this process with the trainer."""
        poll = select.poll()
        for fd in [self.alive, self.wakeup, *sources]:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll()]
        if self.alive in ready:
            end()
        return ready


def end() -> NoReturn:
    """Ends this process. multiprocessing's own finalizers run, which remove for example the semaphores of locks that
    the script has made. Clearing torch module by module would take a second."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_S)
    with contextlib.suppress(Exception):
        util._exit_function()  # type: ignore[attr-defined]
    os._exit(0)


def run_worker(child_r: int, child_w: int, fds: list[int]) -> int:
    """Runs a worker in a process that was forked for it, as multiprocessing's fork server does. Returns its exit
    code."""
    os.close(child_w)
    blocking.block()  # until the worker ignores a SIGINT that its trainer has not sent
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the script has set no handler of its own
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not has_data(child_r):
        return 1  # the trainer no longer wants it
    resource_tracker._resource_tracker._fd, *inherited = fds  # type: ignore[attr-defined]
    forkserver._forkserver._inherited_fds = inherited  # type: ignore[attr-defined]
    if not hasattr(forkserver, "atexit"):
        return spawn._main(child_r, os.dup(child_r))
    # Later multiprocessing calls the atexit handlers of a worker, and its finalizers are one of them.
    atexit._clear()
    atexit.register(util._exit_function)  # type: ignore[attr-defined]
    try:
        return spawn._main(child_r, os.dup(child_r))
    finally:
        atexit._run_exitfuncs()


def has_data(pipe: int) -> bool:
    """Waits for the first bytes in a pipe. Returns False if it is closed without any."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll()[0][1] & select.POLLIN)


# ---- the root ----


class Root:
    """The process that the trainer starts. It passes each request on to the process that can answer it."""

    def __init__(self, control: socket.socket, alive: int, setup: Setup, variables: set[str]) -> None:
        self.control: socket.socket | None = control
        self.setup = setup
        self.variables = variables
        self.forker = Forker(alive, setup.trainer, self._list_fds)
        self.zygote: Child | None = None
        self.unfit: Child | None = None  # waits for the first request
        self.importing: Child | None = None  # has sent no verdict yet
        self.to_try: list[list[str]] = []  # the modules that the next child imports, if the one before is not fit
        self.verdict = Verdict()
        self.wanted: set[str] = set()  # the modules of headrace and of the batch makers of all loaders
        self.loaded: set[str] = set()  # the modules that the process which imported the script had
        self.deaths = 0  # of processes that import the script
        self.helpers: set[int] = set()  # pids of the processes that import, and of their successors

    def _list_fds(self) -> list[int]:
        sockets = [self.control, *(child.socket for child in (self.zygote, self.unfit, self.importing) if child)]
        return [one.fileno() for one in sockets if one]

    def serve(self) -> None:
        """Serves until the trainer ends, or until it has closed the control socket and all workers have ended."""
        paths = self.setup.paths
        if paths.main_path or paths.main_name or self.setup.needed_modules:
            self.importing = self._start_child(None)
        else:
            self.loaded.update(sys.modules)
        while self.control or self.forker.exit_pipes or self.helpers:
            # The first process is worth waiting for, because a worker would import the same. Later ones are not.
            takes_requests = self.importing is None or self.importing.is_second or self.zygote or self.unfit
            sources = [self.control.fileno()] if self.control and takes_requests else []
            ready = self.forker.wait(sources + ([self.importing.socket.fileno()] if self.importing else []))
            if self.importing and self.importing.socket.fileno() in ready and not self._hear():
                os.kill(self.importing.pid, signal.SIGKILL)  # the script has closed its descriptors; _forget comes next
            for pid, code in self.forker.reap():
                self._forget(pid, code)
            if self.control and self.control.fileno() in ready:
                self._pass_on(receive(self.control))

    def _start_child(self, kept: list[str] | None) -> Child:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alive = self.forker.alive

        def run() -> int:
            here.close()
            return import_and_serve(there, alive, self.setup, kept)

        pid = self.forker.fork(run, keeps_alive=True)
        there.close()
        self.helpers.add(pid)
        return Child(pid, here, kept is not None)

    def _hear(self) -> bool:
        """Handles the verdict of the child that imports. Returns False if it has sent none."""
        child = self.importing
        message = receive(child.socket, socket.MSG_DONTWAIT) if child else None
        if child is None or message is None:
            return False
        self.importing = None
        with open(message[1][0], "rb") as file:
            verdict, imported = pickle.load(file)
        self.variables |= imported.variables
        if not child.is_second and not verdict.error:
            self.loaded.update(imported.loaded)
        if verdict.is_fit:
            drop(self.zygote)
            self.zygote = child
        elif not verdict.error and not child.is_second:
            drop(self.unfit)
            self.unfit = child
        else:
            child.socket.close()
        if not child.is_second:
            self.to_try = imported.to_try
        if not verdict.is_fit and self.to_try:
            self.importing = self._start_child(self.to_try.pop(0))
        self._report(verdict, child)
        self._want(())
        return True

    def _report(self, verdict: Verdict, child: Child) -> None:
        if child.is_second:
            self.verdict.kept = "part" if verdict.is_fit else "nothing"
            verdict = self.verdict
        self.verdict = verdict
        verdict.pids = [os.getpid(), *([self.zygote.pid] if self.zygote else [])]
        if self.control:
            with contextlib.suppress(OSError):  # the trainer does not read, or has ended
                self.control.send(json.dumps(verdict.as_dict()).encode(), socket.MSG_DONTWAIT)

    def _forget(self, pid: int, code: int) -> None:
        """Handles the end of a child that is no worker."""
        self.helpers.discard(pid)
        if self.importing and self.importing.pid == pid:
            self._hear()  # it may have sent its verdict just before
        for name in ("zygote", "unfit", "importing"):
            child = getattr(self, name)
            if child and child.pid == pid:
                child.socket.close()
                setattr(self, name, None)
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                self._report(Verdict(error=f"the process that imports the script {how}"), child)
                self.deaths += 1
                if name != "unfit" and self.deaths < MAX_DEATHS and self.control and not self.importing:
                    self.importing = self._start_child(None)

    def _pass_on(self, message: tuple[bytes, list[int]] | None) -> None:
        """Gives a request to the process that answers it."""
        if message is None:
            self._close()
            return
        data, fds = message
        request = json.loads(data)
        self._want(request["modules"])
        if not fds:
            return
        if self._has_read(request["changed"], request["new"]):
            send_number(fds[1], STALE)
            close_all(fds)
            return
        if self.unfit:
            child, self.unfit = self.unfit, None
            exit_pipe = os.dup(fds[1])
            if child.pass_on(data, fds):
                child.socket.close()
                close_all(fds)
                self.helpers.discard(child.pid)
                self.forker.adopt(child.pid, exit_pipe)
                return
            os.close(exit_pipe)
        if self.zygote and self.zygote.pass_on(data, fds):
            close_all(fds)
            return
        self.forker.start_worker(fds)

    def _want(self, modules: Iterable[str]) -> None:
        """Imports everything in another process if a later loader needs modules that the first one has not."""
        self.wanted.update(modules)
        if not self.loaded or self.importing:
            return
        new = sorted(self.wanted - self.loaded - set(self.setup.needed_modules))
        self.setup.needed_modules += new
        if new:
            self.importing = self._start_child(None)

    def _has_read(self, changed: list[str], new: list[str]) -> bool:
        """Returns True if imports may have read one of the variables that have changed, or that were not set then."""
        if new and ANY_NEW in self.variables:
            return True
        return any(name in self.variables or name.startswith(READ_BY_LIBRARIES) for name in changed + new)

    def _close(self) -> None:
        """The trainer sends no more requests."""
        for child in (self.unfit, self.importing, self.zygote):
            drop(child)
        self.unfit = self.importing = self.zygote = None
        assert self.control
        self.control.close()
        self.control = None


@dataclass
class Child:
    """A process that the root has forked to import the user's modules. is_second: it imports a part of them."""

    pid: int
    socket: socket.socket
    is_second: bool

    def pass_on(self, data: bytes, fds: list[int]) -> bool:
        """Gives it a request. Returns False if it has ended."""
        try:
            socket.send_fds(self.socket, [data], fds, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True


def drop(child: Child | None) -> None:
    """Asks a child for no more workers. It ends with those that it has started."""
    if child:
        child.socket.close()


# ---- the process that imports the user's modules ----


def import_and_serve(source: socket.socket, alive: int, setup: Setup, kept: list[str] | None) -> int:
    """Imports the user's modules (with `kept`: only these), tells the root whether workers can be forked from this
    process, and does what the root then asks for."""
    start = time.perf_counter()
    watch = ImportWatch()
    with ended_with_trainer(alive), watch.watching():
        error = import_modules(setup, kept)
    verdict, imported = judge(watch, error)
    verdict.seconds = time.perf_counter() - start
    if not send_verdict(source, verdict, imported):
        return 0
    if error or (not verdict.is_fit and kept is not None):
        return 0
    if not verdict.is_fit:
        os.close(alive)
        return become_worker(source)
    gc_pause.freeze()
    serve_zygote(source, alive, setup.trainer)


def send_verdict(source: socket.socket, verdict: Verdict, imported: Imported) -> bool:
    """Sends it in a file, because it may be too long for a message. Returns False if the root has ended."""
    with memory_file.create("headrace-verdict") as file:
        pickle.dump((verdict, imported), file)
        file.flush()
        file.seek(0)
        try:
            socket.send_fds(source, [b"verdict"], [file.fileno()], socket.MSG_NOSIGNAL)
        except OSError:
            return False
    return True


def import_modules(setup: Setup, kept: list[str] | None) -> str:
    """Returns the exception that the import raised, as text, or ""."""
    process = multiprocessing.current_process()
    # A script without a main guard raises, as in a worker, and a loader that is made here starts no server of its own.
    process._inheriting = True  # type: ignore[attr-defined]
    gc_pause.pause()
    try:
        if kept is not None:
            for name in kept:
                importlib.import_module(name)
            return ""
        import_main(setup)
        for name in setup.needed_modules:
            with contextlib.suppress(Exception):  # the worker raises it, if it needs the module
                importlib.import_module(name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR]
    finally:
        gc_pause.resume()
        del process._inheriting  # type: ignore[attr-defined]
        util._flush_std_streams()  # type: ignore[attr-defined]  # or each worker would print it again
    return ""


def import_main(setup: Setup) -> None:
    """Imports the script's main module as a worker does: without running what is under its main guard."""
    if setup.paths.main_name:
        spawn._fixup_main_from_name(setup.paths.main_name)  # type: ignore[attr-defined]
    elif setup.paths.main_path:
        spawn._fixup_main_from_path(setup.paths.main_path)  # type: ignore[attr-defined]


def judge(watch: ImportWatch, error: str) -> tuple[Verdict, Imported]:
    found, to_try = watch.judge()
    hazards = found[:MAX_HAZARDS]
    kept = "nothing" if found or error else "all"
    verdict = Verdict(kept=kept, hazards=[hazard.describe() for hazard in hazards], error=error)
    seconds = {hazard.module: watch.seconds.get(hazard.module, 0.0) for hazard in hazards}
    verdict.unkept = {name: round(seconds[name], 3) for name in seconds if name not in ("", SCRIPT)}
    return verdict, Imported(to_try if found and not error else [], watch.variables, list(sys.modules))


def become_worker(source: socket.socket) -> int:
    """Waits for a request and runs its worker in this process."""
    message = receive(source)
    source.close()
    if message is None:
        return 0
    child_r, child_w, *rest = message[1]
    return run_worker(child_r, child_w, rest)


def serve_zygote(source: socket.socket, alive: int, trainer: int) -> NoReturn:
    """Forks workers until the root closes its end and all of them have ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # The script's belong to the trainer. SIGINT stays blocked until it is ignored.
    inherited.drop_handlers(before, True, trainer)
    forker = Forker(alive, trainer, lambda: [source.fileno()])
    signal.pthread_sigmask(signal.SIG_SETMASK, before - {signal.SIGCHLD})
    is_open = True
    while is_open or forker.exit_pipes:
        ready = forker.wait([source.fileno()] if is_open else [])
        for _ in forker.reap():
            pass  # a process that the script started when it was imported
        if is_open and source.fileno() in ready:
            message = receive(source)
            is_open = message is not None
            if message is not None:
                forker.start_worker(message[1])
    end()


@contextlib.contextmanager
def ended_with_trainer(alive: int) -> Iterator[None]:
    """Makes the kernel kill this process if the trainer ends during the block, as it kills workers."""
    fd = None
    with contextlib.suppress(OSError):  # without the guard, it ends after everything is imported
        # No other process shares this new file description.
        fd = os.open(f"/proc/self/fd/{alive}", os.O_RDONLY | os.O_NONBLOCK)
        _core.Loader.guard(fd, os.getpid())
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def main(control: int, alive: int, file: IO[bytes], tracker: int) -> None:
    """Runs the root, from its start to its end. `file` has its Setup. `tracker`: the descriptor of the trainer's
    resource tracker; without it, a lock that a module makes would start another tracker."""
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with file:
        setup = pickle.load(file)
    _core.Loader.ignore_others(setup.trainer, False)  # it ignores SIGINT
    if setup.is_interrupted:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # drops an earlier Ctrl-C
    util._close_stdin()  # type: ignore[attr-defined]  # before the user's code can read it
    sys.argv = list(setup.paths.sys_argv)
    with contextlib.suppress(OSError):  # the folder is gone, and workers say so
        os.chdir(setup.paths.folder)
    watch = ImportWatch()
    gc_pause.pause()
    with ended_with_trainer(alive), watch.watching():
        for name in [*setup.preload, *WORKER_MODULES, *setup.modules]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc_pause.freeze()
    gc_pause.resume()
    Root(socket.socket(fileno=control), alive, setup, watch.variables).serve()
    end()
