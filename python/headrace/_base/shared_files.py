# SPDX-License-Identifier: Apache-2.0
"""Finds the open files, archives, databases and connections that a dataset holds and forked workers, or threads, would
share.

A forked process has the same open file description: if one worker seeks and reads, it moves the position of all. The
loaders warn of that before they fork (_loader/start/fork_hazards.py), and so do headrace doctor and doctor.check.
Threads share the object itself, and iterators too (_samples/shareable.py). The search runs no code of the user's, and
looks at a limited number of objects, because it comes before each start of workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import itertools
import mmap
import os
import stat
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace._base import code, growth
from headrace._base.attributes import own_attributes
from headrace._base.lookup import has_special, is_a, static_dict, static_module, static_mro, static_name

_MOST = 500  # objects in one search
_MOST_LEVELS = 6
_ENTRIES = 32  # so many of each container are looked at
_ARCHIVE_LEVELS = 4  # from an archive to its file
_A_PIPE, _A_SOCKET = "a pipe", "a socket"
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type, types.ModuleType,
    types.BuiltinFunctionType, types.CodeType, types.GeneratorType,
)  # fmt: skip
_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
_NOT_FOLLOWED = frozenset("asyncio concurrent logging multiprocessing queue threading weakref".split())
# Code that names one of these does not use the position, or opens the file again in each process.
_SAFE_NAMES = frozenset({"pread", "preadv", "getpid", "register_at_fork"})
_POSITIONED = frozenset({"pread", "preadv"})
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Classes with locks of their own, or that need none.
_LOCKED = frozenset({"zipfile.ZipFile", "numpy.NpzFile", "h5py.HLObject", "lmdb.Environment"})
_WITH_POSITION = (io.BytesIO, io.StringIO)
_MOVING = frozenset({"seek", "read", "read_byte", "readline"})  # what uses the position of a map
_OF_LMDB = frozenset({"lmdb.Transaction", "lmdb.Cursor"})
_OTHER_METHODS = frozenset("__init__ __new__ __del__ __enter__ __exit__ close __getstate__ __setstate__".split())
# Classes that hold a file, by package and name, and what opens one again.
_ARCHIVES = {
    "zipfile.ZipFile": "zipfile.ZipFile({})",
    "tarfile.TarFile": "tarfile.open({})",
    "gzip.GzipFile": "gzip.open({})",
    "bz2.BZ2File": "bz2.open({})",
    "lzma.LZMAFile": "lzma.open({})",
    "numpy.NpzFile": "numpy.load({})",
    "tempfile._TemporaryFileWrapper": 'open({}, "rb")',
    "socket.SocketIO": "...",
    "subprocess.Popen": "...",
}


# The members of Python's files that are the file in them.
_INNER: dict[type, Any] = {
    io.TextIOWrapper: vars(io.TextIOWrapper)["buffer"],
    io.BufferedReader: vars(io.BufferedReader)["raw"],
    io.BufferedRandom: vars(io.BufferedRandom)["raw"],
}


class SharedFile(NamedTuple):
    """An open file. path: the expression that leads to it. what: its type, and its name. opening: opens it again."""

    path: str
    what: str
    opening: str


def find_for_threads(roots: dict[str, Any]) -> list[SharedFile]:
    """Returns what threads that call the dataset at the same time would share: files and the like, without those that
    have a lock of their own, and iterators."""
    try:
        return _ThreadSearch(roots).found()
    except Exception:  # another thread changes a container meanwhile
        return []


class _Part(NamedTuple):
    """An object that a search has met. name: of the attribute or variable that holds it. owner: holds the attribute."""

    path: str
    value: Any
    name: str
    owner: Any
    level: int


def find(roots: dict[str, Any], workers: object = None) -> list[SharedFile]:
    """Returns what the objects hold. roots: a dataset, a collate function and so on by the names of a loader's
    arguments; worker_init_fn may open files again. workers: how many; one may be meant to have the end of a pipe or a
    socket. If that is no number, they are several."""
    if type(workers) is not int:
        workers = 2
    try:
        found = _Search(roots).found()
        return [one for one in found if workers > 1 or not one.what.endswith((_A_PIPE, _A_SOCKET))]
    except Exception:  # another thread changes a container meanwhile
        return []


class _Search:
    _passed_by: tuple[type, ...] = _PLAIN

    def __init__(self, roots: dict[str, Any]) -> None:
        self._opened_again = {name for one in _functions(roots.get("worker_init_fn")) for name in _names_in(one)}
        self._streams = _standard_streams()
        self._open: list[tuple[_Part, SharedFile]] = []
        self._names: set[str] = set()  # that the code of the objects uses, after it has made them
        self._seen: dict[int, Any] = {}
        self._classes: dict[int, tuple[type, list[str]]] = {}  # of the objects, with their names
        self._left = deque(_Part(name, value, name, None, 0) for name, value in roots.items())
        while self._left and len(self._seen) < _MOST:
            self._look(self._left.popleft())

    def _opened(self, value: Any) -> tuple[str, str] | None:
        return _opened(value, self._names_of(value))

    def found(self) -> list[SharedFile]:
        return [file for part, file in self._open if part.name in self._names and not self._is_safe(part)]

    def _look(self, part: _Part) -> None:
        value = part.value
        if type(value) in self._passed_by or id(value) in self._seen or id(value) in self._streams:
            return
        self._seen[id(value)] = value
        if (file := self._opened(value)) is not None:
            self._open.append((part, SharedFile(part.path, *file)))
        elif not is_a(value, io.IOBase) and part.level < _MOST_LEVELS:
            self._left.extend(self._parts(part))

    def _parts(self, part: _Part) -> Iterator[_Part]:
        value, level = part.value, part.level + 1
        for function in _functions(value):
            if function.__name__ not in _OTHER_METHODS:
                self._names |= _names_in(function)
            yield from self._outer_parts(function, level)
        if is_a(value, types.MethodType):
            yield _Part(part.path, value.__self__, part.name, part.owner, level)
        elif is_a(value, dict):
            for key, entry in list(itertools.islice(dict.items(value), _ENTRIES)):
                shown = repr(key) if type(key) in (str, int) else "..."
                yield _Part(f"{part.path}[{shown}]", entry, part.name, part.owner, level)
        elif is_a(value, (list, tuple, deque)):
            base: Any = next(base for base in (list, tuple, deque) if is_a(value, base))
            for at, entry in enumerate(list(itertools.islice(base.__iter__(value), _ENTRIES))):
                yield _Part(f"{part.path}[{at}]", entry, part.name, part.owner, level)
        if not growth.is_opaque(type(value)) and _top(type(value)) not in _NOT_FOLLOWED:
            for name, entry, _ in own_attributes(value):
                yield _Part(f"{part.path}.{name}", entry, name, value, level)
            for cls in static_mro(type(value)):
                for name, entry in list(static_dict(cls).items()) if not growth.is_opaque(cls) else ():
                    if self._may_be_open(entry):
                        yield _Part(f"{part.path}.{name}", entry, name, value, level)

    def _outer_parts(self, function: types.FunctionType, level: int) -> Iterator[_Part]:
        """Yields open files in the global variables that code names."""
        module = str(function.__globals__.get("__name__"))
        if module.startswith("torch."):
            return
        for name, value in code.globals_named(function):
            if self._may_be_open(value):
                yield _Part(f"{module}.{name}", value, name, None, level)

    def _may_be_open(self, value: Any) -> bool:
        """Returns True for files and the like, and containers of them: other variables of modules and classes are left
        out."""
        if type(value) in _PLAIN or is_a(value, (type, types.FunctionType, property, staticmethod, classmethod)):
            return False
        names = self._names_of(value)
        is_file = is_a(value, (io.IOBase, list, tuple, dict)) or bool(_archive(names))
        return is_file or _library_object(value, names) is not None

    def _names_of(self, value: Any) -> list[str]:
        cls = type(value)
        if id(cls) not in self._classes:
            self._classes[id(cls)] = cls, _names_of(cls)
        return self._classes[id(cls)][1]

    def _is_safe(self, part: _Part) -> bool:
        """Returns True if the file is opened again in each worker, is read without its position, or under a lock."""
        if part.name in self._opened_again or _top(type(part.owner)) == "headrace":
            return True
        held = [value for _, value, _ in own_attributes(part.owner)] if part.owner is not None else []
        locks = getattr(sys.modules.get("multiprocessing.synchronize"), "SemLock", ())
        if any(is_a(value, mmap.mmap) or is_a(value, locks) for value in held):
            return True
        return any(not _SAFE_NAMES.isdisjoint(_names_in(function)) for function in _functions(part.owner))


class _ThreadSearch(_Search):
    """The search for threads of one process."""

    _passed_by = (*(one for one in _PLAIN if one is not types.GeneratorType), threading.local)

    def _opened(self, value: Any) -> tuple[str, str] | None:
        names = self._names_of(value)
        if not _LOCKED.isdisjoint(names):
            return None
        if "sqlite3.Cursor" in names:
            return f"{type(value).__name__}, a cursor of SQLite", "sqlite3.connect(...).cursor()"
        if names[0] in _OF_LMDB:
            return f"{names[0]}, of lmdb", "environment.begin()"
        if is_a(value, mmap.mmap):
            return "mmap, with a position", "mmap.mmap(...)"
        if is_a(value, _WITH_POSITION):
            return f"{type(value).__name__}, with a position", f"io.{type(value).__name__}(...)"
        if not is_a(value, io.IOBase) and has_special(value, "__next__"):
            return f"{type(value).__name__}, an iterator", "..."
        return _opened(value, names)

    def _parts(self, part: _Part) -> Iterator[_Part]:
        yield from super()._parts(part)
        held: list[tuple[str, Any]] = []
        if is_a(part.value, functools.partial):
            keywords = part.value.keywords
            held = [(part.name, part.value.func), *((part.name, one) for one in (*part.value.args, *keywords.values()))]
        for function in _functions(part.value):
            held += code.cells(function)
        self._names.update(name for name, _ in held)
        yield from (_Part(f"{part.path}: {name}", value, name, None, part.level + 1) for name, value in held)

    def _is_safe(self, part: _Part) -> bool:
        """Returns True if each function that names the file reads it with a lock of its owner, or without its
        position."""
        if _top(type(part.owner)) == "headrace":
            return True
        own = {one.__name__: one for one in reversed(_functions(part.owner)) if one.__name__ not in _OTHER_METHODS}
        users = [names for names in map(_names_in, own.values()) if part.name in names]
        if is_a(part.value, mmap.mmap):
            return all(names.isdisjoint(_MOVING) for names in users)
        held = [] if part.owner is None else list(own_attributes(part.owner))
        if any(is_a(value, mmap.mmap) for _, value, _ in held) and not is_a(part.value, _WITH_POSITION):
            return True  # it is kept open for the map
        safe = {name for name, value, _ in held if is_a(value, _LOCKS)} | _POSITIONED
        return bool(users) and all(not safe.isdisjoint(names) for names in users)


def _functions(value: Any) -> list[types.FunctionType]:
    return [] if value is None else growth.functions_of(value)


def _names_in(function: types.FunctionType) -> set[str]:
    return {*code.names(function.__code__), *function.__code__.co_freevars}


def _top(cls: type) -> str:
    return static_module(cls).partition(".")[0]


def _standard_streams() -> set[int]:
    """Returns the identities of the streams of this process, and of their buffers."""
    streams = [getattr(sys, name, None) for name in _STREAMS]
    buffers = [_or_closed(_INNER[io.TextIOWrapper].__get__, one) for one in streams if is_a(one, io.TextIOWrapper)]
    return {id(one) for one in (*streams, *buffers) if one is not None}


# ---- what is open ----


def _names_of(cls: type) -> list[str]:
    """Returns the names of a class and its bases, with their packages."""
    return [static_name(one) for one in static_mro(cls)]


def _opened(value: Any, names: list[str]) -> tuple[str, str] | None:
    """Returns what a value has open, and what opens it again; None if it is no file, is closed, or is only written.
    names: of its classes."""
    kind = names[0].partition(".")[2]
    if archive := _archive(names):
        name = _name_below(value, _ARCHIVE_LEVELS)
        return None if name is None else (f"{kind}, {name}", archive.format(name))
    if is_a(value, (io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper)):
        name = _name_below(value, _ARCHIVE_LEVELS)
        mode = "" if is_a(value, io.TextIOWrapper) else ', "rb"'
        return None if name is None else (f"{kind}, {name}", f"open({name}{mode})" if name[0] in "'\"" else "...")
    return _library_object(value, names)


def _archive(names: list[str]) -> str:
    return next((_ARCHIVES[name] for name in names if name in _ARCHIVES), "")


def _name_below(value: Any, levels: int) -> str | None:
    """Returns the name of the file, pipe or socket that an object reads from; None: it reads from no such."""
    if is_a(value, io.FileIO):
        return _name_of_descriptor(_or_closed(io.FileIO.fileno, value))
    inner: list[Any] = []
    if member := next((member for cls, member in _INNER.items() if is_a(value, cls)), None):
        inner = [_or_closed(member.__get__, value)]
    elif (sockets := getattr(sys.modules.get("_socket"), "socket", None)) and is_a(value, sockets):
        return _name_of_descriptor(sockets.fileno(value))
    elif _archive(_names_of(type(value))) or _top(type(value)) in sys.stdlib_module_names:
        inner = [part for _, part, _ in own_attributes(value)]
    found = (_name_below(part, levels - 1) for part in inner if part is not None and levels > 0)
    return next((name for name in found if name is not None), None)


def _or_closed(ask: Any, value: Any) -> Any:
    """Returns ask(value), or None if the file is closed or detached."""
    with contextlib.suppress(ValueError):
        return ask(value)
    return None


def _name_of_descriptor(fd: int | None) -> str | None:
    """Returns what a descriptor is open for; None if that has no position and no end that processes share: a device, a
    file that is only written, or appended to."""
    if fd is None or fd <= 2:
        return None
    try:
        mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return None
    if stat.S_ISSOCK(mode):
        return _A_SOCKET
    if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_APPEND:
        return None
    if stat.S_ISFIFO(mode):
        return _A_PIPE
    return repr(os.readlink(f"/proc/self/fd/{fd}")) if stat.S_ISREG(mode) else None


# ---- objects of libraries ----


def _library_object(value: Any, names: list[str]) -> tuple[str, str] | None:
    """Returns what _opened does, for sockets, pipes of multiprocessing and databases."""
    kind = names[0].partition(".")[2]
    with contextlib.suppress(Exception):  # it is closed, or of another thread or version
        if "_socket.socket" in names:
            name = _name_of_descriptor(sys.modules["_socket"].socket.fileno(value))
            return None if name is None else (f"{kind}, {name}", "...")
        if "multiprocessing.Connection" in names:
            held = {name: part for name, part, _ in own_attributes(value)}
            return (f"{kind}, {_A_PIPE}", "...") if held["_handle"] is not None and held["_readable"] else None
        if "sqlite3.Connection" in names:
            sys.modules["sqlite3"].Connection.total_changes.__get__(value)
            return f"{kind}, a database of SQLite", "sqlite3.connect(...)"
        if "h5py.HLObject" in names:
            return _of_h5py(value, kind)
        lmdb = sys.modules.get("lmdb")
        if lmdb is not None and is_a(value, lmdb.Environment):
            path = lmdb.Environment.path(value)
            return f"{kind}, {path!r}", f"lmdb.open({path!r}, readonly=True, lock=False)"
    return None


def _of_h5py(value: Any, kind: str) -> tuple[str, str] | None:
    handle = next(part for name, part, _ in own_attributes(value) if name == "_id")
    if not handle.valid:
        return None
    h5py = sys.modules["h5py"]
    name, place = h5py.h5f.get_name(handle).decode(), h5py.h5i.get_name(handle).decode()
    return f"{kind}, {name!r}", f'h5py.File({name!r}, "r")' + ("" if place == "/" else f"[{place!r}]")


# ---- in words ----


def in_words(found: list[SharedFile]) -> str:
    """Names the first ones."""
    return ", ".join(f"{one.path} ({one.what})" for one in found[:3]) + (", ..." if len(found) > 3 else "")


def lines_per_thread(one: SharedFile) -> list[str]:
    """Returns the lines that open a file again in each thread."""
    return [
        "local = threading.local()  # in the module of the dataset: it cannot be pickled",
        "def opened():",
        f'    if not hasattr(local, "file"): local.file = {one.opening}',
        "    return local.file",
    ]


def lines_that_open(one: SharedFile, is_torchs: bool) -> list[str]:
    """Returns the three lines of a worker_init_fn that opens a file again."""
    module = "torch.utils.data" if is_torchs else "headrace"
    variable = one.path.partition(".")[0].partition("[")[0]
    ways = {
        "dataset": f"dataset = {module}.get_worker_info().dataset",
        "collate_fn": "collate_fn = loader.collate_fn",
    }
    return [
        "def open_files(worker):",
        f"    {ways.get(variable, f'import {variable}')}",
        f"    {one.path} = {one.opening}",
    ]


def how_to_open(one: SharedFile) -> str:
    """Returns the same in one line."""
    lines = "; ".join(line.strip() for line in lines_that_open(one, "torch" in sys.modules)[1:])
    return f"open it in each worker, in a worker_init_fn: {lines}"
