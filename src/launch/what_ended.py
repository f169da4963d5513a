# SPDX-License-Identifier: Apache-2.0
"""Describes how the main program of a rank has ended.

libheadrace contains this file for ranks of `headrace run`: hook.py compiles and runs it in the rank when its main
program has ended. It imports nothing of headrace. It is installed as headrace._ranks.what_ended, too, which
headrace.torch.spawn imports.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

# How torch.distributed reports that another rank, or the store in rank 0, has gone or does not answer: the classes of
# its exceptions, and the texts of those whose class says nothing. A RuntimeError counts only if its text also names
# what raised it, because other libraries use the same words.
_LOST_CLASSES = ("DistNetworkError", "DistStoreError")
_OWN_FAULTS = ("server socket", "EADDRINUSE")  # of a DistNetworkError: rank 0 cannot listen
_OTHER_CLASSES = ("DistError", "DistBackendError")
_SPEAKERS = ("gloo", "c10d", "TCPStore", "ProcessGroup", "NCCL", "onitoredBarrier")
_LOST_TEXTS = (
    "onnection closed by",
    "onnection reset by peer",
    "onnection refused",
    "Broken pipe",
    "Socket closed",
    "Socket Timeout",
    "imed out",
    "imeout",
    "got 0 bytes",
    "failed to recv",
    "failed to pass monitoredBarrier",
    "remote process exited",
    "ncclRemoteError",
    "was aborted",
)
_TRACEBACK = "Traceback (most recent call last):"
_MARGIN = " |+"  # groups are drawn with bars
_MOST_LEAVES = 1000  # exceptions of a group that are looked at


def write_traceback(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> str:
    """Returns the text that Python prints for an exception by default, without colours.

    The lines of the source are missing for Ctrl-C: modules that `traceback` imports call eval, and after that CPython
    would exit with 1 instead of ending itself by SIGINT.
    """
    if not issubclass(kind, KeyboardInterrupt):
        try:
            from traceback import format_exception

            return "".join(format_exception(kind, value, traceback))
        except Exception:
            pass
    lines = [_TRACEBACK]
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
        traceback = traceback.tb_next
    return "\n".join([*lines, _write_line(kind, value), ""])


def _write_line(kind: type[BaseException], value: BaseException) -> str:
    text = _write_text(value)
    return f"{kind.__name__}: {text}" if text else kind.__name__


def _write_text(value: BaseException) -> str:
    try:
        return str(value)
    except Exception:
        return "<exception str() failed>"


def write_reason(kind: type[BaseException], value: BaseException, size: int) -> bytes:
    """Returns one line about an exception in UTF-8: its class and the first line of its message that says something. Of
    a group it is the first exception in it that is no group, and how many there are."""
    try:
        line = _reason_with_group(value)
    except Exception:  # an exception whose attributes or texts raise
        line = kind.__name__
    return line.encode("utf-8", "backslashreplace")[:size].decode("utf-8", "ignore").encode()


def _reason_with_group(value: BaseException) -> str:
    leaves = _leaves_of(value)
    line = _reason_of(leaves[0])
    if leaves[0] is value:
        return line
    return f"{line} (the first of {len(leaves)} exceptions in {_reason_of(value)})"


def _leaves_of(value: BaseException) -> list[BaseException]:
    """Returns the exceptions in a group that are no groups themselves, in their order, or the exception itself."""
    leaves: list[BaseException] = []
    waiting, seen = [value], 0
    while waiting and seen < _MOST_LEAVES:
        one, seen = waiting.pop(0), seen + 1
        inner = getattr(one, "exceptions", None)  # there may be no class of groups before Python 3.11
        is_group = type(inner) is tuple and inner and all(isinstance(each, BaseException) for each in inner)
        if is_group and any(base.__name__ == "BaseExceptionGroup" for base in type(one).__mro__):
            waiting[:0] = inner or ()
        else:
            leaves.append(one)
    return leaves or [value]


def _reason_of(value: BaseException) -> str:
    """Returns the line of the exception itself, and of another one whose traceback its text has, as those of worker
    processes have."""
    lines = _write_alone(value).splitlines()
    inner = _line_after_traceback(lines)
    line = _first_line(lines, type(value).__name__)
    return f"{line} ({inner})" if inner and inner not in line else line


def _first_line(lines: list[str], name: str) -> str:
    said = [line.strip() for line in lines if any(map(str.isalnum, line))]  # no rules of ===
    heads = [line.rstrip() for line in lines if line[:1].strip()]  # those that are not indented: a SyntaxError has both
    head = heads[0] if heads else name
    if not head.endswith(":"):
        return head
    rest = said[said.index(head) + 1 :] if head in said else []
    is_said = bool(rest) and not head.endswith(_TRACEBACK) and not rest[0].endswith(_TRACEBACK)
    return f"{head} {rest[0]}" if is_said else head.removesuffix(_TRACEBACK).rstrip(" :")


def _write_alone(value: BaseException) -> str:
    """Returns what Python prints for an exception after its traceback."""
    if not isinstance(value, KeyboardInterrupt):  # see write_traceback
        try:
            from traceback import format_exception_only

            return "".join(format_exception_only(type(value), value))
        except Exception:
            pass
    return _write_line(type(value), value)


def _line_after_traceback(lines: list[str]) -> str:
    """Returns the line after the frames of the newest traceback in a message, or nothing. Other processes send their
    exceptions as such messages, which may be indented as a whole."""
    starts = [number for number, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    if not starts:
        return ""
    margin = _indent_of(lines[starts[-1]])
    ends = (
        line.strip(_MARGIN) for line in lines[starts[-1] + 1 :] if line.strip(_MARGIN) and _indent_of(line) <= margin
    )
    return next(ends, "").rstrip(":")


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(_MARGIN))


def keep_end(text: str, size: int) -> bytes:
    """Returns the end of a text in UTF-8, in whole characters."""
    data = text.encode("utf-8", "backslashreplace")[-size:]
    start = 0
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def is_lost_peer(value: BaseException) -> bool:
    """Returns True if the exception, or the first one that led to it, says that another rank was lost."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        earlier = value.__cause__
        if earlier is None and not value.__suppress_context__:
            earlier = value.__context__
        value = value if earlier is None else earlier
    return _says_lost(type(value), _write_text(value))


def _says_lost(kind: type[BaseException], text: str) -> bool:
    names = [one.__name__ for one in kind.__mro__ if one.__module__.partition(".")[0] == "torch"]
    if any(name in names for name in _LOST_CLASSES):
        return not any(one in text for one in _OWN_FAULTS)
    if kind is not RuntimeError and not any(name in names for name in _OTHER_CLASSES):
        return False
    return any(one in text for one in _SPEAKERS) and any(one in text for one in _LOST_TEXTS)


def write_error_file(kind: type[BaseException], value: BaseException, text: str) -> None:
    """Writes the file that torchrun's agent reads, as torch's decorator @record does, unless it has written it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or not issubclass(kind, Exception):
        return
    import json
    import time

    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    data = json.dumps({"message": {"message": f"{kind.__name__}: {_write_text(value)}", "extraInfo": extra}}).encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(fd).st_size == 0:
            while data:
                data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def describe_threads(size: int) -> bytes:
    """Returns one line for each thread that Python waits for: its name, and the function that it runs."""
    import threading

    lines = []
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread() and thread.is_alive():
            target = getattr(thread, "_target", None) or type(thread).run
            target = getattr(target, "func", target)  # of a functools.partial
            name = getattr(target, "__qualname__", type(target).__qualname__)
            line = "{} ({}.{})\n".format(thread.name, getattr(target, "__module__", "?"), name)
            lines.append(line.encode("utf-8", "backslashreplace"))
    while sum(map(len, lines)) > size:
        lines.pop()
    return b"".join(lines)


def has_ended_well(exit_status: tuple[object, ...] | None) -> bool:
    """Returns False if the main program has called sys.exit with an error, or may have raised SystemExit with one.

    CPython before 3.14 removes __file__ from the names of a script that has run to its end, but not if SystemExit ended
    it.
    """
    if exit_status is not None:
        return exit_status in ((), (None,), (0,))
    main = sys.modules.get("__main__")
    return main is None or getattr(main, "__spec__", None) is not None or "__file__" not in vars(main)


def has_store() -> bool:
    """Returns True if this process listens at MASTER_PORT, as rank 0 does for torch's TCPStore."""
    if "_socket" not in sys.modules or "torch" not in sys.modules:
        return False
    import socket

    port = int(os.environ["MASTER_PORT"])
    for name in os.listdir("/proc/self/fd"):
        try:
            own = os.dup(int(name))
            try:
                one = socket.socket(fileno=own)
            except OSError:  # this is no socket
                os.close(own)
                continue
            with one:
                is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
                if is_tcp and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    if one.getsockname()[1] == port:
                        return True
        except OSError:  # it was closed meanwhile, or is a kind of socket that Python does not know
            continue
    return False
