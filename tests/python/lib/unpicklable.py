# SPDX-License-Identifier: Apache-2.0
"""Objects for the doctor: each with the paths of what does not pickle in it."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextvars
import copyreg
import csv
import ctypes
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import io
import itertools
import logging
import mmap
import multiprocessing
import os
import pathlib
import queue
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import types
import typing
import weakref
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


class WithAttributes:
    """An object with the given attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("_Slotted__hidden", "inner", "unset")

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.__hidden = 0


class Both(Slotted):
    def __init__(self, inner: Any) -> None:
        super().__init__(None)
        self.own = inner


class Drops:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}


class States:
    """Says by itself what it always was."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value}


class RaisesLate:
    """The iterator that its reduction has raises."""

    def __reduce__(self) -> Any:
        return list, (), None, (1 // number for number in (1, 0))


class Arguments(tuple):  # type: ignore[type-arg]
    pass


class Renames:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"made": threading.Lock()}


class ReducesToAttribute:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __reduce__(self) -> Any:
        return ReducesToAttribute, (self.lock,)


class Says:
    """Its __reduce__ returns the value that it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __reduce__(self) -> Any:
        return self.answer


class Poses:
    """Says that it is a dict."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return dict


class SaysAnew(Says):
    """Its answer is made each time."""

    def __reduce__(self) -> Any:
        return self.answer()


class Raises:
    def __getstate__(self) -> Any:
        raise ValueError("no state today")


class RaisesInNew:
    def __getnewargs_ex__(self) -> Any:
        raise KeyError("arguments")


class BadNewArguments:
    def __getnewargs_ex__(self) -> Any:
        return [1]


class Trap:
    """An object that raises if anything except its state is read."""

    def __init__(self) -> None:
        self.plain = 1

    @property
    def looked_at(self) -> Any:
        raise AssertionError("a property was run")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise AssertionError("its truth was asked")

    def __len__(self) -> int:
        raise AssertionError("its length was asked")

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated")

    def __repr__(self) -> str:
        raise AssertionError("it was shown")


class Shadowed:
    """Its class has a property under the name of what __dict__ holds."""

    def __init__(self, value: Any) -> None:
        self.__dict__["value"] = value

    @property
    def value(self) -> Any:
        raise AssertionError("a property was run")


class ListOf(list):  # type: ignore[type-arg]
    pass


class DictOf(dict):  # type: ignore[type-arg]
    pass


class TupleOf(tuple):  # type: ignore[type-arg]
    pass


class SetOf(set):  # type: ignore[type-arg]
    pass


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Data:
    value: Any


@dataclasses.dataclass(slots=True, frozen=True)
class SlottedData:
    value: Any


class Color(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # pickle asks for __slots__
        raise AssertionError("a metaclass was asked")


class WithMeta(metaclass=Meta):
    def __init__(self, value: Any) -> None:
        self.value = value


class Registered:
    def __init__(self, lock: Any) -> None:
        self.lock = lock


class RegisteredBadly:
    def __init__(self, lock: Any) -> None:
        self.lock = lock


copyreg.pickle(Registered, lambda one: (Registered, (None,)))
copyreg.pickle(RegisteredBadly, lambda one: (RegisteredBadly, (one.lock,)))

T = typing.TypeVar("T")
Hidden = typing.TypeVar("HiddenUnderAnotherName")  # type: ignore[misc]


def plain(x: Any = None) -> Any:
    return x


def undecorated(x: Any) -> Any:
    return x


_kept_undecorated = undecorated
undecorated = functools.lru_cache(undecorated)  # type: ignore[assignment]


def bare_decorator(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@wrapping
def wrapped(x: Any) -> Any:
    return x


@bare_decorator
def bare(x: Any) -> Any:
    return x


def nested() -> Any:
    lock = threading.Lock()

    def inner() -> Any:
        return lock

    return inner


def local_class() -> Any:
    class Local:
        pass

    return Local


def local_enum() -> Any:
    class Shade(enum.Enum):
        DARK = 1

    return Shade.DARK


def local_named_tuple() -> Any:
    return collections.namedtuple("Pair", "a b")(1, 2)


class Unloadable(Exception):
    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(f"{a} {b}")


class BreaksOnLoad:
    def __init__(self) -> None:
        self.a = 1

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("cannot be made again")


class Handles:
    """A class with a method."""

    def __init__(self) -> None:
        self.lk = threading.Lock()

    def method(self) -> None:
        pass

    @staticmethod
    def static() -> None:
        pass

    @classmethod
    def of_class(cls) -> None:
        pass


async def routine() -> None:
    pass


async def agen() -> Any:
    yield 1


def _coroutine() -> Any:
    made = routine()
    made.close()
    return made


def _frame() -> Any:
    return sys._getframe()


def _traceback() -> Any:
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__


def _capsule() -> Any:
    return np.zeros(2).__dlpack__()


def _loop() -> Any:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def _popen() -> Any:
    running = subprocess.Popen(["true"])
    running.wait()
    return running


def _cell() -> Any:
    return nested().__closure__[0]


class MyThread(threading.Thread):
    pass


class CarefulThread(threading.Thread):
    """Says what is pickled."""

    def __getstate__(self) -> Any:
        return {"held": self.held}

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


def _deep(levels: int) -> Any:
    made: Any = []
    for _ in range(levels):
        made = [made]
    return made


def _cycle() -> Any:
    box = WithAttributes(lock=threading.Lock())
    box.itself = [box, {"box": box}]
    return box


def _broken_logger() -> Any:
    return logging.Logger("headrace.unregistered")


def _exception(value: Any) -> Exception:
    error = ValueError("x", value)
    error.extra = 1  # type: ignore[attr-defined]
    return error


def _queue_of(context: str) -> Any:
    return multiprocessing.get_context(context).Queue()


Lost = type("Lost", (), {"__module__": "patients", "__qualname__": "Vanished"})

# name -> (how to make it, the paths that must be reported). "{}" is replaced by the folder.
BAD: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "lambda": (lambda: lambda: 0, ["obj"]),
    "lambda in an attribute": (lambda: WithAttributes(f=lambda: 0), ["obj.f"]),
    "nested function": (nested, ["obj"]),
    "cell": (lambda: WithAttributes(c=_cell()), ["obj.c"]),
    "default factory": (lambda: WithAttributes(d=collections.defaultdict(lambda: 0)), ["obj.d.default_factory"]),
    "partial": (lambda: WithAttributes(f=functools.partial(plain, threading.Lock())), ["obj.f.args[0]"]),
    "partial function": (lambda: WithAttributes(f=functools.partial(lambda: 0)), ["obj.f.func"]),
    "partial keyword": (
        lambda: WithAttributes(f=functools.partial(plain, x=threading.Lock())),
        ["obj.f.keywords['x']"],
    ),
    "bound method": (lambda: WithAttributes(m=Handles().method), ["obj.m.__self__.lk"]),
    "builtin method": (lambda: WithAttributes(m=[threading.Lock()].append), ["obj.m.__self__[0]"]),
    "method of a lock": (lambda: WithAttributes(m=threading.Lock().acquire), ["obj.m.__self__"]),
    "undecorated": (lambda: WithAttributes(f=_kept_undecorated), ["obj.f"]),
    "decorated without wraps": (lambda: WithAttributes(f=bare), ["obj.f"]),
    "local class": (lambda: WithAttributes(c=local_class()), ["obj.c"]),
    "instance of a local class": (lambda: WithAttributes(c=local_class()()), ["obj.c"]),
    "member of a local enum": (lambda: WithAttributes(c=local_enum()), ["obj.c"]),
    "local named tuple": (lambda: WithAttributes(c=local_named_tuple()), ["obj.c"]),
    "class under another name": (lambda: WithAttributes(c=Lost), ["obj.c"]),
    "instance of a class under another name": (lambda: WithAttributes(c=Lost()), ["obj.c"]),
    "type variable under another name": (lambda: WithAttributes(t=Hidden), ["obj.t"]),
    "module": (lambda: WithAttributes(m=os), ["obj.m"]),
    "key": (lambda: WithAttributes(d={("k", 1): threading.Lock()}), ["obj.d[('k', 1)]"]),
    "tuple key": (lambda: {("k", 1): threading.Lock()}, ["obj[('k', 1)]"]),
    "object as a key": (lambda: WithAttributes(d={threading.Lock(): 1}), ["list(obj.d)[0]"]),
    "value of a strange key": (lambda: WithAttributes(d={Color.RED: threading.Lock()}), ["list(obj.d.values())[0]"]),
    "element of a set": (lambda: WithAttributes(s={threading.Lock()}), ["list(obj.s)[0]"]),
    "element of a subclass of set": (lambda: WithAttributes(s=SetOf([threading.Lock()])), ["list(obj.s)[0]"]),
    "list, tuple": (lambda: [1, (2, [threading.Lock()])], ["obj[1][1][0]"]),
    "subclass of list": (lambda: WithAttributes(x=ListOf([1, threading.Lock()])), ["obj.x[1]"]),
    "subclass of dict": (lambda: WithAttributes(x=DictOf(a=threading.Lock())), ["obj.x['a']"]),
    "subclass of tuple": (lambda: WithAttributes(x=TupleOf([1, threading.Lock()])), ["obj.x[1]"]),
    "ordered dict": (lambda: WithAttributes(x=collections.OrderedDict(a=threading.Lock())), ["obj.x['a']"]),
    "namespace": (lambda: WithAttributes(x=types.SimpleNamespace(a=threading.Lock())), ["obj.x.a"]),
    "user's dict": (lambda: WithAttributes(x=collections.UserDict(a=threading.Lock())), ["obj.x.data['a']"]),
    "method of a class without pickle": (lambda: WithAttributes(x=property(len)), ["obj.x"]),
    "cached function": (lambda: WithAttributes(x=functools.lru_cache(lambda x: x)), ["obj.x"]),
    "deque": (lambda: WithAttributes(x=collections.deque([1, threading.Lock()])), ["obj.x[1]"]),
    "named tuple": (lambda: WithAttributes(x=Point(1, threading.Lock())), ["obj.x.y"]),
    "dataclass": (lambda: Data(threading.Lock()), ["obj.value"]),
    "dataclass with slots": (lambda: WithAttributes(x=SlottedData(threading.Lock())), ["obj.x.value"]),
    "slots": (lambda: Slotted(threading.Lock()), ["obj.inner"]),
    "slots and dict": (lambda: Both(threading.Lock()), ["obj.own"]),
    "metaclass": (lambda: WithMeta(threading.Lock()), ["obj.value"]),
    "shadowed by a property": (lambda: Shadowed(threading.Lock()), ["obj.__dict__['value']"]),
    "no identifier": (lambda: WithAttributes(**{"a b": threading.Lock()}), ["obj.__dict__['a b']"]),
    "getstate makes it": (lambda: WithAttributes(x=Renames()), ["obj.x.__getstate__()['made']"]),
    "reduce gives an attribute": (lambda: WithAttributes(x=ReducesToAttribute(threading.Lock())), ["obj.x.lock"]),
    "copyreg": (lambda: WithAttributes(x=RegisteredBadly(threading.Lock())), ["obj.x.lock"]),
    "reduce to a number": (lambda: WithAttributes(x=Says(7)), ["obj.x"]),
    "reduce to a list": (lambda: WithAttributes(x=Says([plain, ()])), ["obj.x"]),
    "reduce to one part": (lambda: WithAttributes(x=Says((plain,))), ["obj.x"]),
    "reduce to seven parts": (lambda: WithAttributes(x=Says((plain, (), None, None, None, None, None))), ["obj.x"]),
    "reduce without arguments": (lambda: WithAttributes(x=Says((plain, None))), ["obj.x"]),
    "reduce to no function": (lambda: WithAttributes(x=Says((7, ()))), ["obj.x"]),
    "reduce with a list for an iterator": (lambda: WithAttributes(x=Says((plain, (), None, [1]))), ["obj.x"]),
    "reduce to an unknown name": (lambda: WithAttributes(x=Says("unknown")), ["obj.x"]),
    "reduce to a lambda": (lambda: WithAttributes(x=Says((lambda: 0, ()))), ["obj.x.__reduce__()[0]"]),
    "reduce with a lock": (lambda: WithAttributes(x=Says((plain, (threading.Lock(),)))), ["obj.x.__reduce__()[1][0]"]),
    "reduce with an iterator that raises": (lambda: [WithAttributes(x=RaisesLate())], ["obj[0].x"]),
    "reduce with a subclass of tuple": (
        lambda: WithAttributes(x=Says((plain, Arguments([threading.Lock()])))),
        ["obj.x.__reduce__()[1][0]"],
    ),
    "reduce with items": (
        lambda: [WithAttributes(x=SaysAnew(lambda: (list, (), None, iter([1, [threading.Lock()]]))))],
        ["list(obj[0].x.__reduce__()[3])[1][0]"],
    ),
    "reduce with pairs": (
        lambda: [WithAttributes(x=SaysAnew(lambda: (dict, (), None, None, iter([("k", threading.Lock())]))))],
        ["list(obj[0].x.__reduce__()[4])[0][1]"],
    ),
    "state in parts": (lambda: [States([1, {"a": threading.Lock()}])], ["obj[0].value[1]['a']"]),
    "reduction of a reduction": (
        lambda: [ReducesToAttribute(ListOf([DictOf(a=Point(1, States(threading.Lock())))]))],
        ["obj[0].lock[0]['a'].y.value"],
    ),
    "another class": (lambda: WithAttributes(x=Poses()), ["obj.x"]),
    "environment": (lambda: WithAttributes(x=os.environ), ["obj.x"]),
    "weak proxy": (lambda: WithAttributes(x=weakref.proxy(plain)), ["obj.x"]),
    "ctypes buffer": (lambda: WithAttributes(x=ctypes.create_string_buffer(3)), ["obj.x"]),
    "getstate raises": (lambda: WithAttributes(x=Raises()), ["obj.x"]),
    "getnewargs_ex raises": (lambda: WithAttributes(x=RaisesInNew()), ["obj.x"]),
    "getnewargs_ex is nonsense": (lambda: WithAttributes(x=BadNewArguments()), ["obj.x"]),
    "argument of an exception": (lambda: WithAttributes(x=_exception(threading.Lock())), ["obj.x.args[1]"]),
    "text file": (lambda: WithAttributes(f=open(__file__)), ["obj.f"]),  # noqa: SIM115
    "binary file": (lambda: WithAttributes(f=open(__file__, "rb")), ["obj.f"]),  # noqa: SIM115
    "unbuffered file": (lambda: WithAttributes(f=open(__file__, "rb", buffering=0)), ["obj.f"]),  # noqa: SIM115
    "temporary file": (lambda: WithAttributes(f=tempfile.NamedTemporaryFile()), ["obj.f"]),  # noqa: SIM115
    "mmap": (lambda: WithAttributes(f=mmap.mmap(-1, 4096)), ["obj.f"]),
    "popen": (lambda: WithAttributes(p=_popen()), ["obj.p"]),
    "sqlite3": (lambda: WithAttributes(c=sqlite3.connect(":memory:")), ["obj.c"]),
    "ctypes pointer": (lambda: WithAttributes(p=ctypes.pointer(ctypes.c_int(1))), ["obj.p"]),
    "ctypes array": (lambda: WithAttributes(p=(ctypes.c_int * 3)(1, 2, 3)), ["obj.p"]),
    "ctypes library": (lambda: WithAttributes(p=ctypes.CDLL(None)), ["obj.p"]),
    "capsule": (lambda: WithAttributes(p=_capsule()), ["obj.p"]),
    "Lock": (lambda: WithAttributes(x=threading.Lock()), ["obj.x"]),
    "RLock": (lambda: WithAttributes(x=threading.RLock()), ["obj.x"]),
    "Condition": (lambda: WithAttributes(x=threading.Condition()), ["obj.x"]),
    "Event": (lambda: WithAttributes(x=threading.Event()), ["obj.x"]),
    "Semaphore": (lambda: WithAttributes(x=threading.BoundedSemaphore()), ["obj.x"]),
    "Barrier": (lambda: WithAttributes(x=threading.Barrier(2)), ["obj.x"]),
    "local": (lambda: WithAttributes(x=threading.local()), ["obj.x"]),
    "Thread": (lambda: WithAttributes(x=threading.Thread(target=plain)), ["obj.x"]),
    "subclass of Thread": (lambda: WithAttributes(x=MyThread()), ["obj.x"]),
    "Thread that says its state": (lambda: WithAttributes(x=CarefulThread(lambda: 0)), ["obj.x.held"]),
    "ThreadPoolExecutor": (lambda: WithAttributes(x=concurrent.futures.ThreadPoolExecutor(1)), ["obj.x"]),
    "ProcessPoolExecutor": (lambda: WithAttributes(x=concurrent.futures.ProcessPoolExecutor(1)), ["obj.x"]),
    "Future": (lambda: WithAttributes(x=concurrent.futures.Future()), ["obj.x"]),
    "queue": (lambda: WithAttributes(x=queue.Queue()), ["obj.x"]),
    "priority queue": (lambda: WithAttributes(x=queue.PriorityQueue()), ["obj.x"]),
    "simple queue": (lambda: WithAttributes(x=queue.SimpleQueue()), ["obj.x"]),
    "event loop": (lambda: WithAttributes(x=_loop()), ["obj.x"]),
    "context variable": (lambda: WithAttributes(x=contextvars.ContextVar("x")), ["obj.x"]),
    "context": (lambda: WithAttributes(x=contextvars.copy_context()), ["obj.x"]),
    "generator": (lambda: WithAttributes(x=(i for i in ())), ["obj.x"]),
    "coroutine": (lambda: WithAttributes(x=_coroutine()), ["obj.x"]),
    "asynchronous generator": (lambda: WithAttributes(x=agen()), ["obj.x"]),
    "frame": (lambda: WithAttributes(x=_frame()), ["obj.x"]),
    "traceback": (lambda: WithAttributes(x=_traceback()), ["obj.x"]),
    "code": (lambda: WithAttributes(x=plain.__code__), ["obj.x"]),
    "weak reference": (lambda: WithAttributes(x=weakref.ref(plain)), ["obj.x"]),
    "weak dict": (lambda: WithAttributes(x=weakref.WeakValueDictionary()), ["obj.x"]),
    "weak key dict": (lambda: WithAttributes(x=weakref.WeakKeyDictionary()), ["obj.x"]),
    "weak set": (lambda: WithAttributes(x=weakref.WeakSet()), ["obj.x"]),
    "memoryview": (lambda: WithAttributes(x=memoryview(b"x")), ["obj.x"]),
    "dict keys": (lambda: WithAttributes(x={}.keys()), ["obj.x"]),
    "dict values": (lambda: WithAttributes(x={}.values()), ["obj.x"]),
    "dict items": (lambda: WithAttributes(x={}.items()), ["obj.x"]),
    "ordered dict's keys": (lambda: WithAttributes(x=collections.OrderedDict().keys()), ["obj.x"]),
    "mapping proxy": (lambda: WithAttributes(x=types.MappingProxyType({})), ["obj.x"]),
    "match": (lambda: WithAttributes(x=re.match("a", "a")), ["obj.x"]),
    "hash": (lambda: WithAttributes(x=hashlib.sha256()), ["obj.x"]),
    "zlib": (lambda: WithAttributes(x=zlib.compressobj()), ["obj.x"]),
    "csv reader": (lambda: WithAttributes(x=csv.reader([])), ["obj.x"]),
    "csv writer": (lambda: WithAttributes(x=csv.writer(io.StringIO())), ["obj.x"]),
    "logger that is not registered": (lambda: WithAttributes(x=_broken_logger()), ["obj.x"]),
    "logging handler": (lambda: WithAttributes(x=logging.StreamHandler()), ["obj.x"]),
    "cycle": (_cycle, ["obj.lock"]),
    "array of objects": (lambda: WithAttributes(x=np.array([1, threading.Lock()], dtype=object)), ["obj.x.flat[1]"]),
    "two": (lambda: WithAttributes(a=threading.Lock(), b=1, c={"x": lambda: 0}), ["obj.a", "obj.c['x']"]),
    "deep": (lambda: WithAttributes(tree=_deep(100_000)), ["obj.tree"]),
    "deep with an unpicklable object": (
        lambda: WithAttributes(tree=_deep(100_000), lock=threading.Lock()),
        ["obj.lock"],
    ),
}

GOOD: dict[str, Callable[[], Any]] = {
    "numbers and texts": lambda: [
        1,
        2.5,
        "x",
        b"x",
        None,
        True,
        3j,
        ...,
        NotImplemented,
        range(3),
        slice(1),
        bytearray(),
    ],
    "functions": lambda: [plain, len, [].append, "x".join, str.upper, Handles.static, Handles.of_class, os.path.join],
    "wrapped": lambda: [wrapped, undecorated],
    "classes": lambda: [WithAttributes, int, Color, Point, type(None), list[int], int | None, T],
    "enums": lambda: [Color.RED, Flags.A | Flags.B, re.IGNORECASE],
    "drops": Drops,
    "registered": lambda: Registered(threading.Lock()),
    "slots": lambda: [Slotted(1), Both(2), SlottedData(3), Data(4), Point(5, 6)],
    "trap": lambda: [Trap(), {"trap": Trap()}],
    "shadowed": lambda: Shadowed(1),
    "metaclass": lambda: [WithMeta(1), WithMeta],
    "containers": lambda: [ListOf([1]), DictOf(a=1), TupleOf([1]), SetOf([1]), collections.Counter("aab")],
    "more containers": lambda: [collections.ChainMap({}), collections.deque([1], 3), collections.defaultdict(list)],
    "paths and patterns": lambda: [pathlib.Path("."), re.compile("a")],
    "iterators": lambda: [
        iter([1]),
        iter({1: 2}),
        iter(range(3)),
        reversed([1]),
        enumerate([1]),
        zip((), (), strict=False),
    ],
    "counters": lambda: itertools.chain([1], [2]) if sys.version_info < (3, 12) else None,
    "partial": lambda: functools.partial(plain, 1, x=2),
    "methods": lambda: [Data(1).__repr__, Point(1, 2)._asdict, functools.partial(WithAttributes().__init__, a=1)],
    "streams in memory": lambda: [io.BytesIO(b"x"), io.StringIO("x")],
    "loggers": lambda: [logging.getLogger("headrace.test"), logging.getLogger()],
    "exceptions": lambda: [ValueError("x"), _exception(1), OSError(2, "x")],
    "arrays": lambda: [np.arange(9), np.array(["a"]), np.array([1, "x"], dtype=object), np.float32(1), np.dtype("i4")],
    "odd arrays": lambda: [
        np.ma.masked_array([1, 2], [0, 1]),
        np.zeros(2, "i4,f8"),
        np.zeros(2, "M8[s]"),
        np.void(b"x"),
    ],
    "random": lambda: [np.random.default_rng(1), __import__("random").Random(1)],
    "ctypes": lambda: [ctypes.c_int(1)],
    "socket": lambda: socket.socket(),
    "lock of multiprocessing's": lambda: multiprocessing.get_context("spawn").Lock(),
    "event of multiprocessing's": lambda: multiprocessing.get_context("spawn").Event(),
    "queue of multiprocessing's": lambda: _queue_of("spawn"),
    "pipe": lambda: multiprocessing.Pipe()[0],
    "cycle": lambda: (lambda box: box.__dict__.update(box=box, boxes=[box]) or box)(WithAttributes()),
    "empty": lambda: WithAttributes(),
    "late": lambda: WithAttributes(**{str(number): number for number in range(1000)}),
    "half deep": lambda: _deep(150),
    "types": lambda: [types.SimpleNamespace(a=1), types.GenericAlias(list, (int,))],
}


if hasattr(multiprocessing.get_context("fork").Lock(), "_is_fork_ctx"):  # else it pickles, and does not load
    BAD["lock of fork's"] = (lambda: WithAttributes(x=multiprocessing.get_context("fork").Lock()), ["obj.x"])
    BAD["event of fork's"] = (lambda: WithAttributes(x=multiprocessing.get_context("fork").Event()), ["obj.x"])

if torch is not None:

    class MyTensor(torch.Tensor):
        pass

    def _my_tensor(**attributes: Any) -> Any:
        made = torch.zeros(3).as_subclass(MyTensor)
        made.__dict__.update(attributes)
        return made

    BAD |= {
        "tensor without a storage": (lambda: WithAttributes(x=torch.ones(2, 2).to_mkldnn()), ["obj.x"]),
        "non-leaf tensor": (lambda: WithAttributes(x=torch.ones(2, requires_grad=True) * 2), ["obj.x"]),
        "tensor with attributes": (lambda: WithAttributes(x=_my_tensor(note=threading.Lock())), ["obj.x.note"]),
    }
    GOOD |= {
        "tensors": lambda: [torch.zeros(3), torch.nn.Parameter(torch.ones(2)), torch.zeros(2, requires_grad=True)],
        "odd tensors": lambda: [
            torch.zeros(2).to_sparse(),
            torch.zeros(2, device="meta"),
            torch.zeros(0),
            torch.float32,
        ],
        "storage": lambda: [torch.zeros(3).untyped_storage(), torch.Size([1]), torch.device("cpu")],
        "tensor subclass": lambda: _my_tensor(note="fine"),
        "module of torch's": lambda: torch.nn.Linear(2, 2),
    }
