# SPDX-License-Identifier: Apache-2.0
"""The classes of Python and of well-known packages whose instances cannot be pickled: why, and what to do instead."""

from __future__ import annotations

from typing import NamedTuple

from headrace._base.lookup import static, static_dict, static_mro


class Known(NamedTuple):
    """reason, fix and repair of a headrace.doctor.Finding."""

    reason: str
    fix: str
    repair: str = ""


_LATE = "make it in the worker, on first use, and leave it out in __getstate__"
_LOCK = Known(
    "a lock belongs to the threads of one process",
    "leave it out in __getstate__, make it in __setstate__",
    "makes a new one in each worker",
)
_WITH_LOCK = Known("it holds a lock, and a lock belongs to the threads of one process", _LATE)
_SYNC = _WITH_LOCK._replace(repair="makes a new one in each worker")
_QUEUE = Known(
    "it holds locks, and reaches the threads of one process only",
    "use multiprocessing's Queue, or leave it out in __getstate__",
)
_POOL = Known("it owns threads or processes", _LATE)
_FILE = Known(
    "an open file: its position belongs to this process",
    "keep its path, and open it in the worker on first use",
)
READ_AGAIN = "opens it again at the same position, if it is only read"
_READ = _FILE._replace(repair=READ_AGAIN)
_GENERATOR = Known("a generator is code that is partly executed", "pass the function that makes it, or a list of it")
_COROUTINE = Known("a coroutine is code that is partly executed", "start it in the worker")
_VIEW = Known("a view of a dict", "list(...)", "sends a list of it")
_WEAK = Known(
    "a weak reference refers to an object of this process only",
    "keep the object itself, or leave it out in __getstate__",
)
_WEAK_MAP = Known(
    "it holds weak references, which refer to objects of this process only", "leave it out in __getstate__"
)
_LOOP = Known("an event loop and what runs in it belong to one thread", _LATE)
_DATABASE = Known("an open database", "keep its path, and open it in the worker on first use")
_POINTER = Known("an address in the memory of this process", "keep the values, as bytes or an array")
_HASH = Known("a computation inside a C library that is not finished", "keep the data or the digest")
_CSV = Known("it reads or writes an open file", "keep the file's path, and open it in the worker on first use")
_FRAME = Known("a frame of running code", "keep the text that you need (traceback.format_exc())")
_CONTEXT = Known("a variable of this thread's context", "keep its value")
_SHARED = Known(
    "multiprocessing's locks and queues can only be sent to a process that is being started, by their start method",
    "make it with multiprocessing.get_context(method), and put it into the dataset before the workers start",
)
_HANDLER = Known(
    "a logging handler holds a lock and a stream", "set up logging in worker_init_fn", "makes a new one in each worker"
)

KNOWN: dict[str, Known] = {
    "_thread.lock": _LOCK,
    "_thread.RLock": _LOCK,
    "threading._RLock": _LOCK,
    "threading.Condition": _SYNC,
    "threading.Event": _SYNC,
    "threading.Semaphore": _SYNC,
    "threading.Barrier": _WITH_LOCK,
    "threading.Thread": Known("a thread runs in one process", _LATE),
    "_thread._localdummy": _WITH_LOCK,
    "_thread._local": Known(
        "its values belong to the threads of one process", _LATE, "makes an empty one in each worker"
    ),
    "_thread._ThreadHandle": Known("a thread runs in one process", _LATE),
    "concurrent.futures._base.Executor": _POOL,
    "concurrent.futures._base.Future": Known("its result arrives in this process", "keep the result()"),
    "multiprocessing.pool.Pool": _POOL,
    "multiprocessing.process.BaseProcess": Known("a process belongs to its parent", _LATE),
    "multiprocessing.synchronize.SemLock": _SHARED,
    "multiprocessing.synchronize.Condition": _SHARED,
    "multiprocessing.synchronize.Event": _SHARED,
    "multiprocessing.queues.Queue": _SHARED,
    "multiprocessing.queues.SimpleQueue": _SHARED,
    "queue.Queue": _QUEUE,
    "_queue.SimpleQueue": _QUEUE,
    "_io._IOBase": _FILE,
    "_io.TextIOWrapper": _READ,
    "_io.BufferedReader": _READ,
    "_io.FileIO": _READ,
    "tempfile._TemporaryFileWrapper": Known("an open temporary file, which this process removes", _FILE.fix),
    "tempfile.TemporaryDirectory": Known("a folder that this process removes", "keep its name"),
    "zipfile.ZipFile": Known("an open archive", _FILE.fix),
    "tarfile.TarFile": Known("an open archive", _FILE.fix),
    "gzip.GzipFile": Known("an open file", _FILE.fix),
    "bz2.BZ2File": Known("an open file", _FILE.fix),
    "lzma.LZMAFile": Known("an open file", _FILE.fix),
    "mmap.mmap": Known("a file mapped into the memory of this process", "keep its path, and map it in the worker"),
    "_socket.socket": Known("an open connection", "connect in the worker, on first use"),
    "ssl.SSLContext": Known("the settings and secrets of a TLS library", _LATE),
    "os._Environ": Known("the environment of this process", "dict(os.environ), or read it in the worker"),
    "subprocess.Popen": Known("a running program belongs to its parent", "start it in the worker, on first use"),
    "select.epoll": Known("a descriptor of this process", _LATE),
    "sqlite3.Connection": _DATABASE,
    "sqlite3.Cursor": Known("a query of an open database", _DATABASE.fix),
    "h5py._hl.base.HLObject": Known(
        "an open HDF5 file or a part of one", "keep path and key, and open it in the worker"
    ),
    "h5py.h5.ObjectID": Known("a handle of the HDF5 library", "keep path and key, and open it in the worker"),
    "h5py._objects.ObjectID": Known("a handle of the HDF5 library", "keep path and key, and open it in the worker"),
    "lmdb.cpython.Environment": _DATABASE,
    "lmdb.cpython.Transaction": Known("a transaction of an open database", _DATABASE.fix),
    "lmdb.cpython.Cursor": Known("a cursor of an open database", _DATABASE.fix),
    "lmdb.cffi.Environment": _DATABASE,
    "lmdb.cffi.Transaction": Known("a transaction of an open database", _DATABASE.fix),
    "builtins.Environment": _DATABASE,  # lmdb's C classes do not have the name of their module
    "builtins.Transaction": Known("a transaction of an open database", _DATABASE.fix),
    "builtins.Cursor": Known("a cursor of an open database", _DATABASE.fix),
    "builtins._Database": Known("a handle of an open database", _DATABASE.fix),
    "_ctypes._Pointer": _POINTER,
    "_ctypes._SimpleCData": _POINTER,
    "_ctypes.CFuncPtr": Known(
        "a function of a C library, by its address", "load the library in the worker, on first use"
    ),
    "_ctypes.Structure": _POINTER,
    "_ctypes.Union": _POINTER,
    "_ctypes.Array": _POINTER,
    "ctypes.CDLL": Known("a C library that is loaded in this process", "load it in the worker, on first use"),
    "builtins.PyCapsule": _POINTER,
    "asyncio.events.AbstractEventLoop": _LOOP,
    "_asyncio.Future": _LOOP,
    "asyncio.futures.Future": _LOOP,
    "_contextvars.ContextVar": _CONTEXT,
    "_contextvars.Context": _CONTEXT,
    "_contextvars.Token": _CONTEXT,
    "builtins.ContextVar": _CONTEXT,
    "builtins.Context": _CONTEXT,
    "builtins.Token": _CONTEXT,
    "builtins.generator": _GENERATOR,
    "builtins.async_generator": _GENERATOR,
    "builtins.coroutine": _COROUTINE,
    "builtins.coroutine_wrapper": _COROUTINE,
    "builtins.frame": _FRAME,
    "builtins.traceback": _FRAME,
    "builtins.code": Known("compiled code", "keep the function, defined in a module"),
    "builtins.cell": Known("a variable of an enclosing function", "keep its value"),
    "weakref.ReferenceType": _WEAK,
    "builtins.weakref": _WEAK,
    "weakref.ProxyType": _WEAK,
    "weakref.CallableProxyType": _WEAK,
    "weakref.WeakValueDictionary": _WEAK_MAP,
    "weakref.WeakKeyDictionary": _WEAK_MAP,
    "_weakrefset.WeakSet": _WEAK_MAP,
    "weakref.finalize": _WEAK,
    "builtins.memoryview": Known("a view of another object's memory", "bytes(...)"),
    "builtins.dict_keys": _VIEW,
    "builtins.dict_values": _VIEW,
    "builtins.dict_items": _VIEW,
    "builtins.odict_keys": _VIEW,
    "builtins.odict_values": _VIEW,
    "builtins.odict_items": _VIEW,
    "builtins.mappingproxy": Known("a read-only view of a dict", "dict(...)", "sends a dict of it"),
    "re.Match": Known("a match refers to its text inside the re module", "keep its group() or span()"),
    "_hashlib.HASH": _HASH,
    "_hashlib.HMAC": _HASH,
    "zlib.Compress": _HASH,
    "zlib.Decompress": _HASH,
    "_csv.reader": _CSV,
    "_csv.writer": _CSV,
    "_csv.Reader": _CSV,
    "_csv.Writer": _CSV,
    "csv.DictReader": _CSV,
    "csv.DictWriter": _CSV,
    "builtins.module": Known(
        "a module is not data", "import it where it is used, instead of keeping it", "imports it by its name"
    ),
    "logging.Handler": _HANDLER,
    "logging.Logger": Known(
        "it is not the logger that logging.getLogger returns for its name",
        "call logging.getLogger(name) where it is used",
        "gets the logger of that name in each worker",
    ),
}


def _name_of(cls: type) -> str:
    module = static_dict(cls).get("__module__")
    if not isinstance(module, str):  # a class of a C extension; its descriptor has the name
        module = cls.__module__ if isinstance(cls.__module__, str) else "builtins"
    return f"{module}.{cls.__qualname__}"


def known(cls: type) -> Known | None:
    """Returns what is known of the instances of a class or of its bases, or None."""
    for one in static_mro(cls):
        if found := KNOWN.get(_name_of(one)):
            return found
    return None


def is_known(cls: type) -> bool:
    """Returns True if the class itself, not a base, is in the table."""
    return _name_of(cls) in KNOWN


def is_whole(cls: type) -> bool:
    """Returns True if the report should name such an instance, and not the lock inside it. If a subclass defines how it
    is pickled, the report names what that leaves."""
    for one in static_mro(cls):
        names = static_dict(one)
        if _name_of(one) in KNOWN:
            return static(cls, "__reduce_ex__") is object.__dict__["__reduce_ex__"] or "__reduce_ex__" in names
        if any(name in names for name in ("__getstate__", "__reduce__", "__reduce_ex__")):
            return False
    return False
