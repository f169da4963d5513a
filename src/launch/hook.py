# SPDX-License-Identifier: Apache-2.0
"""Runs in the interpreter of each rank: a private `sitecustomize`, which the front puts first into PYTHONPATH.

libheadrace contains this file in an uncompressed zip (embed_hook.py). Before the user's code runs, it removes each
trace of itself from the import path and the environment and imports the next sitecustomize. It writes into the page of
the rank (page.h) what ended the main program, that it is over, and which threads are left. A signal makes the
interpreter append the stacks of its threads.

It must never change what the user sees: it swallows its own errors, and does nothing in an interpreter that it does not
know. It imports no module at the start that torch would not import, and the rest of it, what_ended.py, is not compiled
before something has ended.
"""

import os
import sys

_ARCHIVE = os.path.dirname(__file__)
_TOOL = 4  # for sys.monitoring, which gives 0 to 2 and 5 to debuggers, coverage, profilers and optimizers

# Offsets in the page: struct hr__page in page.h.
_MAGIC, _PID, _STACK_SIGNAL, _EXCEPTION_NS, _TEXT_BYTES, _OVER_NS, _KEEPERS_BYTES = range(0, 56, 8)
_IS_LOST_PEER, _IS_WATCHED, _OTHERS_OVER, _IS_KEEPING, _ENDED_WELL, _REASON_BYTES = range(64, 112, 8)
_MAGIC_WORD = 0x6B6E615261657248
_REASON_AT, _TEXT_AT, _KEEPERS_AT, _STACKS_AT = 1 << 10, 4 << 10, 32 << 10, 64 << 10


def _hide():
    """Puts sys.path and PYTHONPATH back, and returns the number in HEADRACE_RANK_FD or -1."""
    sys.path[:] = [entry for entry in sys.path if entry != _ARCHIVE]
    sys.path_importer_cache.pop(_ARCHIVE, None)
    before = os.environ.pop("HEADRACE_PYTHONPATH", None)
    # A script between the front and this interpreter may have changed PYTHONPATH.
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in entries if entry != _ARCHIVE]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    elif before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    return int(os.environ.pop("HEADRACE_RANK_FD", "-1"))


class _Page:
    """The page of this rank, which this interpreter has taken.

    The descriptor is not inherited by programs that this process starts, and they do not load this file, because
    PYTHONPATH is as it was. A forked child compares its process ID. A program that closes all descriptors may use the
    number for a file of its own: then the page is gone.
    """

    def __init__(self, fd):
        status = os.fstat(fd)
        self._fd = fd
        self._file = status.st_dev, status.st_ino
        self._pid = os.getpid()
        self._parent = os.getppid()
        if self.read(_MAGIC) != _MAGIC_WORD:
            raise ValueError("this is no page")
        os.set_inheritable(fd, False)
        # An earlier interpreter of this rank may have ended, as the first of `bash -c 'python a.py; python b.py'`.
        for word in (_STACK_SIGNAL, _EXCEPTION_NS, _TEXT_BYTES, _OVER_NS, _KEEPERS_BYTES):
            self._write(word, 0)
        for word in (_IS_LOST_PEER, _IS_KEEPING, _ENDED_WELL, _REASON_BYTES):
            self._write(word, 0)
        self._write(_PID, self._pid)
        os.lseek(fd, max(status.st_size, _STACKS_AT), os.SEEK_SET)

    def is_mine(self):
        if os.getpid() != self._pid:
            return False
        status = os.fstat(self._fd)
        return (status.st_dev, status.st_ino) == self._file and self.read(_PID) == self._pid

    def is_orphan(self):
        return os.getppid() != self._parent

    def read(self, word):
        return int.from_bytes(os.pread(self._fd, 8, word), sys.byteorder)

    def _write(self, word, value):
        os.pwrite(self._fd, value.to_bytes(8, sys.byteorder), word)

    def write_stacks_at(self, number):
        """Makes this signal append the stacks of all threads, even while C code holds the GIL. When the interpreter
        exits, faulthandler puts back what the signal did before, and it may arrive then: so that is to ignore it."""
        import _signal
        import faulthandler

        _signal.signal(number, _signal.SIG_IGN)
        faulthandler.register(number, file=self._fd, all_threads=True, chain=False)
        self._write(_STACK_SIGNAL, number)

    def write_exception(self, text, reason, is_lost_peer, ns):
        self._write(_REASON_BYTES, os.pwrite(self._fd, reason, _REASON_AT))
        self._write(_TEXT_BYTES, os.pwrite(self._fd, text, _TEXT_AT))
        self._write(_IS_LOST_PEER, int(is_lost_peer))
        self._write(_EXCEPTION_NS, ns)

    def write_over(self, keepers, ended_well, ns):
        self._write(_ENDED_WELL, int(ended_well))
        self._write(_KEEPERS_BYTES, os.pwrite(self._fd, keepers, _KEEPERS_AT))
        self._write(_OVER_NS, ns)

    def write_is_keeping(self):
        self._write(_IS_KEEPING, 1)


class _Watch:
    """Notices that the main program ends, and how."""

    def __init__(self, page, rest):
        import threading
        import time

        self._page = page
        self._rest = rest  # the source of what_ended.py
        self._count_threads = threading.active_count
        self._time_ns = time.monotonic_ns
        self._sleep = time.sleep
        self._has_failed = False  # an exception has ended the main program
        self._exit_status = None  # the arguments of the last call of sys.exit, or of SystemExit

        self._next_hook = sys.excepthook
        sys.excepthook = self._make_hook()
        self._shut_down = threading._shutdown
        threading._shutdown = self._end
        self._watch_exit(threading.get_ident, sys.exit)
        if sys.version_info >= (3, 14):
            self._watch_main(sys.monitoring)

    def _make_hook(self):
        def excepthook(kind, value, traceback):
            self._note_exception(kind, value, traceback)
            self._next_hook(kind, value, traceback)

        return excepthook

    def _watch_exit(self, get_ident, sys_exit):
        """Notes the status of sys.exit in the main thread: no other trace of it is left when the interpreter ends."""
        main = get_ident()

        def exit(*status):
            if get_ident() == main:
                self._exit_status = status
            sys_exit(*status)

        exit.__doc__ = sys_exit.__doc__
        sys.exit = exit

    def _watch_main(self, monitoring):
        """Notes the status of a SystemExit that leaves the main program: since CPython 3.14 no trace of it is left if
        it was raised without sys.exit. Costs a call for each frame that an exception ends."""

        def unwind(code, offset, error):
            if isinstance(error, SystemExit) and code.co_name == "<module>":
                if sys._getframe(1).f_globals is sys.modules["__main__"].__dict__:
                    self._exit_status = (error.code,)

        try:
            monitoring.use_tool_id(_TOOL, "headrace run")
            monitoring.register_callback(_TOOL, monitoring.events.PY_UNWIND, unwind)
            monitoring.set_events(_TOOL, monitoring.events.PY_UNWIND)
        except ValueError:  # another tool has this number
            pass

    def _load(self):
        names = {}
        exec(compile(self._rest, "what_ended.py", "exec"), names)
        return names

    def _note_exception(self, kind, value, traceback):
        try:
            ns = self._time_ns()
            if self._page.is_mine():
                self._has_failed = True
                rest = self._load()
                text = rest["write_traceback"](kind, value, traceback)
                is_lost_peer = rest["is_lost_peer"](value)
                reason = rest["write_reason"](kind, value, _TEXT_AT - _REASON_AT)
                text_end = rest["keep_end"](text, _KEEPERS_AT - _TEXT_AT)
                self._page.write_exception(text_end, reason, is_lost_peer, ns)
                rest["write_error_file"](kind, value, text)
        except BaseException:  # also a second Ctrl-C: the interpreter is about to show the exception
            pass

    def _end(self):
        """Runs instead of threading._shutdown, which waits for all threads that are not daemons, when main is over."""
        try:
            if self._note_over():
                while self._is_awaited():
                    self._sleep(0.05)
        finally:
            self._shut_down()

    def _note_over(self):
        """Returns True if this process has a store that the other ranks need."""
        try:
            ns = self._time_ns()
            if not self._page.is_mine():
                return False
            value = getattr(sys, "last_value", None)
            if value is not None and not self._has_failed:  # the program has a hook of its own
                self._note_exception(type(value), value, value.__traceback__)
            rest = self._load()
            keepers = rest["describe_threads"](_STACKS_AT - _KEEPERS_AT) if self._count_threads() > 1 else b""
            ended_well = not self._has_failed and rest["has_ended_well"](self._exit_status)
            self._page.write_over(keepers, ended_well, ns)
            if not ended_well or not self._page.read(_IS_WATCHED) or not rest["has_store"]():
                return False
            self._page.write_is_keeping()
        except Exception:
            return False
        return True

    def _is_awaited(self):
        try:
            return self._page.is_mine() and not self._page.read(_OTHERS_OVER) and not self._page.is_orphan()
        except Exception:
            return False


def _begin(rest):
    fd = _hide()
    if fd >= 0 and sys.version_info >= (3, 10):
        import _signal

        page = _Page(fd)
        _Watch(page, rest)
        page.write_stacks_at(_signal.SIGRTMAX - 6)  # SIGRTMAX - 5 does so in headrace's data workers


try:
    _begin(__loader__.get_data(_ARCHIVE + os.sep + "what_ended.py"))
except Exception:
    pass

# This module is not found any more: the next sitecustomize takes its place, or the import fails, which site expects.
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except BaseException:
    sys.modules["sitecustomize"] = _this  # the import that fails removes it: before Python 3.10 it must be there
    raise
