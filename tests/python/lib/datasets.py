# SPDX-License-Identifier: Apache-2.0
"""Datasets, samplers, collate and init functions for the tests: importable, so that spawn and forkserver work."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import multiprocessing
import os
import pathlib
import random
import threading
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import without_torch
from torch._utils import ExceptionWrapper
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from without_torch import (  # noqa: F401 (they are the tests')
    Dying,
    Unchangeable,
    act_close_all,
    act_fork,
    act_fork_that_returns,
    act_leave_a_child,
    act_pool,
    act_process,
    act_raise_unchangeable,
    act_reuse_numbers,
    act_reuse_numbers_for_pipes,
    act_subprocess,
    act_thread,
    close_all,
    init_allows_no_more_address_space,
)

DEADLINE_S = 60.0


def identity(batch: Any) -> Any:
    return batch


def worker_id() -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


# ---- types that travel ----


class Point(typing.NamedTuple):
    x: Any
    y: Any


OldPoint = collections.namedtuple("OldPoint", ["x", "y"])


class MadeTuple(tuple):  # type: ignore[type-arg]
    """A named tuple that does not come from collections.namedtuple, and counts its fields when it is made."""

    __slots__ = ()
    _fields = ("x", "y")

    def __new__(cls, x: Any, y: Any) -> MadeTuple:
        return super().__new__(cls, (x, [y, "made"]))  # type: ignore[type-var]

    def __getnewargs__(self) -> tuple[Any, Any]:
        return self[0], self[1][0]


@dataclasses.dataclass
class Pair:
    image: torch.Tensor
    label: int


class Plain:
    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyList(list):  # type: ignore[type-arg]
    pass


class MyTuple(tuple):  # type: ignore[type-arg]
    pass


class MyStr(str):
    pass


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyBytes(bytes):
    pass


class MyArray(np.ndarray):  # type: ignore[type-arg]
    pass


class MyTensor(torch.Tensor):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


# ---- the zoo: one of everything that a batch may hold ----

DTYPES = [
    name
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
        "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    ).split()
    if hasattr(torch, name)
]

NUMPY_DTYPES = "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16 g >i4 >f8 U7 S5 M8[s] m8[us] O".split()


def filled(dtype: str, *shape: int, start: int = 0) -> torch.Tensor:
    """A tensor whose bytes count upwards from `start` (0 and 1 alternate for bool)."""
    kind = getattr(torch, dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if kind is torch.bool:
        return (torch.arange(start, start + count) % 2 == 1).reshape(shape)
    data = (torch.arange(start, start + count * kind.itemsize) % 251).to(torch.uint8)
    return data.view(kind).reshape(shape) if count else torch.empty(shape, dtype=kind)


def numpy_filled(dtype: str, *shape: int) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "O":
        out = np.empty(count, dtype=object)
        out[:] = [f"object {i}" for i in range(count)]
        return out.reshape(shape)
    return np.arange(count).astype(dtype).reshape(shape)


def sparse_coo(coalesced: bool) -> torch.Tensor:
    out = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([3.0, 4.0, 5.0]), (2, 3))
    return out.coalesce() if coalesced else out


def two_views() -> list[torch.Tensor]:
    base = torch.arange(60000.0)
    return [base[100:40000:3], base[20000:].view(200, 200).t()]


def one_twice() -> list[torch.Tensor]:
    tensor = torch.arange(7)
    return [tensor, tensor]


def read_only() -> np.ndarray:
    out = np.arange(5)
    out.flags.writeable = False
    return out


def nested(depth: int) -> list[Any]:
    out: list[Any] = ["core"]
    for _ in range(depth):
        out = [out]
    return out


def self_referential() -> list[Any]:
    out: list[Any] = [1, torch.arange(3)]
    out.append(out)
    return out


ZOO: dict[str, Callable[[], Any]] = {
    **{f"torch {d}": (lambda d=d: filled(d, 3, 5)) for d in DTYPES},
    **{f"large torch {d}": (lambda d=d: filled(d, 300, 211)) for d in ("bool", "uint8", "bfloat16", "float64")},
    "0-d": lambda: torch.tensor(2.5),
    "0-d bool": lambda: torch.tensor(True),
    "empty": lambda: torch.empty(0),
    "empty in the middle": lambda: torch.empty(2, 0, 3, dtype=torch.int32),
    "empty with strides of its own": lambda: torch.arange(12.0).reshape(3, 4).t()[1:1],
    "empty over numpy": lambda: torch.as_tensor(np.empty((0,), dtype=bool)),
    "one element of many dimensions": lambda: torch.ones(1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    "expanded": lambda: torch.arange(3.0)[:, None].expand(3, 4),
    "large expanded": lambda: torch.arange(3000.0)[:, None].expand(3000, 40),
    "expanded 0-d": lambda: torch.tensor(1).expand(5, 5),
    "strided": lambda: torch.arange(40)[3:35:4],
    "large strided": lambda: torch.arange(400_000)[7::3],
    "transposed": lambda: torch.arange(12.0).view(3, 4).t(),
    "large transposed": lambda: torch.arange(120_000.0).view(300, 400).t(),
    "channels last": lambda: torch.arange(3 * 64 * 64.0).view(1, 3, 64, 64).to(memory_format=torch.channels_last),
    "overlapping": lambda: torch.arange(9.0).as_strided((4, 3), (1, 2)),
    "strides of dimensions of size 1": lambda: [
        torch.arange(12.0)[3:8:5],
        torch.arange(12.0).view(2, 2, 3)[:1, :1],
        torch.arange(60_000.0).view(2, 3, 10_000)[:1, :2],
    ],
    "empty and expanded": lambda: torch.empty(0, 4).expand(3, 0, 4),
    "offset": lambda: torch.arange(100.0)[90:],
    "requires_grad": lambda: torch.arange(3.0).requires_grad_(),
    "large requires_grad": lambda: torch.ones(300, 300).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(4.0)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.arange(4.0), requires_grad=False),
    "sparse coo": lambda: sparse_coo(True),
    "sparse coo, uncoalesced": lambda: sparse_coo(False),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, 4, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.5, 3, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)]),
    "nested jagged": lambda: torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=torch.jagged),
    "subclass": lambda: torch.arange(6.0).view(2, 3).as_subclass(MyTensor),
    "two views of one storage": two_views,
    "one tensor twice": one_twice,
    "packed sequence": lambda: pack_sequence([torch.arange(5.0), torch.arange(3.0)]),
    **{f"numpy {d}": (lambda d=d: numpy_filled(d, 2, 3)) for d in NUMPY_DTYPES},
    "large numpy": lambda: numpy_filled("f8", 200, 300),
    "large numpy, fortran": lambda: np.asfortranarray(numpy_filled("f4", 200, 300)),
    "numpy 0-d": lambda: np.array(3.5),
    "numpy empty": lambda: np.empty((0, 4), dtype=np.int16),
    "numpy fortran": lambda: np.asfortranarray(numpy_filled("i4", 3, 4)),
    "numpy strided": lambda: np.arange(30)[2::5],
    "numpy negative stride": lambda: np.arange(12).reshape(3, 4)[::-1, ::-2],
    "numpy broadcast": lambda: np.broadcast_to(np.arange(3), (4, 3)),
    "numpy structured": lambda: np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], dtype="i4,f8,S3"),
    "numpy aligned structure": lambda: np.zeros(3, dtype=np.dtype([("a", "u1"), ("b", "f8", (2,))], align=True)),
    "numpy record": lambda: np.rec.array([(1, "x")], dtype=[("n", "i4"), ("s", "U2")]),
    "numpy masked": lambda: np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
    "numpy subclass": lambda: np.arange(4).view(MyArray),
    "numpy read-only": read_only,
    "numpy scalars": lambda: [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("s"), np.datetime64("2020-01-02")],
    "none": lambda: None,
    "booleans": lambda: [True, False],
    "integers": lambda: [0, 1, -1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 2**200, -(2**200)],
    "floats": lambda: [0.0, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")],
    "complex": lambda: [1 + 2j, complex("nan"), -0.0j],
    "strings": lambda: ["", "a", "naïve", "日本語", "\U0001f600", "nul\0inside", "x" * 100_000],
    "lone surrogate": lambda: "\udc80",
    "bytes": lambda: [b"", b"\0\xff", b"y" * 100_000, bytearray(b"abc")],
    "containers": lambda: [[], (), {}, set(), frozenset(), [[]], ((),), {"": {}}],
    "sets": lambda: [{1, 2, 3}, frozenset({"a", "b"})],
    "dict": lambda: {"b": 1, "a": torch.arange(2), 3: None, None: [1.5], (1, 2): {"x": b"y"}, True: "t"},
    "mappings": lambda: [
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, a=[1]),
        collections.Counter("abba"),
        MyDict(a=torch.ones(2)),
        collections.UserDict(a=1),
        collections.ChainMap({"a": 1}, {"b": 2}),
    ],
    "sequences": lambda: [
        MyList([torch.ones(2), 1]),
        MyTuple((1, "a")),
        collections.deque([1, 2], maxlen=3),
        range(3, 9, 2),
        torch.Size([2, 3]),
    ],
    "named tuples": lambda: [Point(torch.arange(2), 1), OldPoint("a", Point(None, 2.0)), MadeTuple(1, 2)],
    "subclasses of scalars": lambda: [MyStr("s"), MyInt(3), MyFloat(2.5), MyBytes(b"b"), Level.LOW],
    "dataclass": lambda: Pair(torch.arange(4), 3),
    "objects": lambda: [Plain(a=1, b=torch.ones(3)), Slotted(1, [2])],
    "library objects": lambda: [
        datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
        datetime.timedelta(seconds=3),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        pathlib.PurePosixPath("/a/b"),
        Colour.RED,
        slice(1, None, 2),
        Ellipsis,
        NotImplemented,
        ValueError("an exception as a value", 3),
    ],
    "types and functions": lambda: [int, Point, identity, torch.float32, torch.device("cpu"), np.dtype("i4,f8")],
    "fifty deep": lambda: nested(50),
    "mixed": lambda: {
        "image": filled("uint8", 3, 120, 120),
        "boxes": [filled("float32", n, 4) for n in (0, 1, 3)],
        "meta": {"name": "a.png", "size": (120, 120), "tags": ["x", None], "score": 0.25},
        "mask": np.eye(5, dtype=bool),
    },
}

ZOO_NAMES = list(ZOO)


class Zoo(Dataset):  # type: ignore[type-arg]
    """Index -> one item of the zoo."""

    def __init__(self, names: list[str] | None = None) -> None:
        self.names = names or ZOO_NAMES

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return ZOO[self.names[index]]()


# ---- samples for the default collate function: kind -> function of the index ----

SAMPLES: dict[str, Callable[[int], Any]] = {
    **{f"torch {d}": (lambda i, d=d: filled(d, 2, 3, start=i)) for d in DTYPES},
    "image": lambda i: filled("uint8", 3, 64, 64, start=i),
    "0-d tensor": lambda i: torch.tensor(i),
    "empty tensor": lambda i: torch.empty(0, 3),
    "transposed tensor": lambda i: torch.arange(i, i + 6).view(2, 3).t(),
    "expanded tensor": lambda i: torch.tensor(float(i)).expand(2, 2),
    "tensor that requires grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    "one tensor that requires grad": lambda i: torch.full((2,), float(i)).requires_grad_(i == 1),
    "conjugated tensor": lambda i: torch.tensor([1 + 2j, i]).conj(),
    "one conjugated tensor": lambda i: torch.tensor([1 + 2j, i]).conj() if i == 1 else torch.tensor([1 + 2j, i]),
    "negated tensor": lambda i: torch.tensor([1 + 2j, i]).conj().imag,
    "tensor subclass": lambda i: torch.full((2,), float(i)).as_subclass(MyTensor),
    "sparse tensor": lambda i: (torch.eye(2) * i).to_sparse(),
    "quantized tensor": lambda i: torch.quantize_per_tensor(torch.full((2,), float(i)), 0.5, 3, torch.quint8),
    "meta tensor": lambda i: torch.empty(2, 3, device="meta"),
    "nested tensor": lambda i: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), float(i))]),
    "packed sequence": lambda i: pack_sequence([torch.arange(i + 2.0), torch.arange(i + 1.0)]),
    "mixed dtypes": lambda i: torch.ones(2, dtype=torch.float64 if i % 2 else torch.float32),
    "mixed dtypes of numpy": lambda i: np.ones(2, dtype="i4" if i % 2 else "f8"),
    "unequal tensors": lambda i: torch.ones(i % 3 + 1),
    "unequal dimensions": lambda i: torch.ones((2,) * (i % 2 + 1)),
    **{f"numpy {d}": (lambda i, d=d: numpy_filled(d, 2, 3)) for d in NUMPY_DTYPES},
    "unequal numpy": lambda i: np.ones(i % 3 + 1),
    "numpy 0-d": lambda i: np.array(i * 0.5),
    "numpy 0-d string": lambda i: np.array("text"),
    "numpy negative stride": lambda i: np.arange(i, i + 5)[::-1],
    "numpy fortran": lambda i: np.asfortranarray(np.arange(i, i + 6).reshape(2, 3)),
    "numpy float32": lambda i: np.float32(i),
    "numpy int8": lambda i: np.int8(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "numpy str": lambda i: np.str_(f"s{i}"),
    "numpy bytes": lambda i: np.bytes_(b"b%d" % i),
    "numpy date": lambda i: np.datetime64("2020-01-02") + i,
    "numpy time": lambda i: np.timedelta64(i, "s"),
    "numpy void": lambda i: np.void(b"ab"),
    "numpy record": lambda i: np.array([(i, 2.5)], dtype="i4,f8")[0],
    "numpy long double": lambda i: np.longdouble(i),
    "numpy uint64": lambda i: np.uint64(i),
    "numpy float16": lambda i: np.float16(i),
    "numpy float64 then float": lambda i: float(i) if i % 2 else np.float64(i),
    "numpy matrix": lambda i: np.arange(i, i + 4).reshape(2, 2).view(MyArray),
    "numpy masked": lambda i: np.ma.masked_array([i, 2], mask=[0, 1]),
    "int": lambda i: i,
    "large int": lambda i: 2**62 + i,
    "huge int": lambda i: 2**70 + i,
    "bool": lambda i: i % 2 == 0,
    "float": lambda i: i / 3,
    "nan": lambda i: float("nan"),
    "int then float": lambda i: i if i % 2 == 0 else i / 3,
    "float then int": lambda i: i if i % 2 == 1 else i / 3,
    "bool then int": lambda i: i if i % 2 else False,
    "complex": lambda i: complex(i, 1),
    "int subclass": lambda i: MyInt(i),
    "float subclass": lambda i: MyFloat(i),
    "int enum": lambda i: Level.LOW,
    "enum": lambda i: Colour.RED,
    "str": lambda i: f"item {i}",
    "bytes": lambda i: b"item %d" % i,
    "str subclass": lambda i: MyStr(i),
    "str then int": lambda i: i if i % 2 else "s",
    "int then str": lambda i: "s" if i % 2 else i,
    "none": lambda i: None,
    "none in the middle": lambda i: None if i == 1 else i,
    "bytearray": lambda i: bytearray(b"abc"),
    "set": lambda i: {i},
    "tuple": lambda i: (i, float(i), f"{i}"),
    "list": lambda i: [i, torch.tensor([i, i])],
    "empty tuple": lambda i: (),
    "empty dict": lambda i: {},
    "unequal lists": lambda i: [1] * (i % 2 + 1),
    "string of characters in a list": lambda i: ["ab", "c"],
    "range": lambda i: range(i, i + 3),
    "dict": lambda i: {"b": i, "a": np.ones(2), 3: f"{i}"},
    "dicts with unequal keys": lambda i: {"a": 1, f"only {i}": 2},
    "dict with one more key in the second": lambda i: {"a": 1, **({"b": 2} if i % 2 else {})},
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=1),
    "default dict": lambda i: collections.defaultdict(int, a=i),
    "counter": lambda i: collections.Counter("a" * (i + 1)),
    "dict subclass": lambda i: MyDict(a=i),
    "list subclass": lambda i: MyList([i, 2]),
    "tuple subclass": lambda i: MyTuple((i, 2)),
    "user dict": lambda i: collections.UserDict(a=i),
    "deque": lambda i: collections.deque([i, 2]),
    "named tuple": lambda i: Point(i, Point(torch.ones(2), "s")),
    "old named tuple": lambda i: OldPoint(i, [1.5]),
    "named tuple made otherwise": lambda i: MadeTuple(i, "s"),
    "dataclass": lambda i: Pair(torch.ones(2), i),
    "object": lambda i: Plain(a=1),
    "nested": lambda i: {"x": [(i, {"y": filled("float32", 2, start=i)}), Point("s", (b"b", 1.5))], "z": i},
    "tuple of a dict and a list": lambda i: ({"a": i}, [i, [i, (i,)]]),
}


class Samples(Dataset):  # type: ignore[type-arg]
    def __init__(self, kind: str, count: int = 5) -> None:
        self.kind, self.count = kind, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.kind](index)


class SamplesOfKinds(Dataset):  # type: ignore[type-arg]
    """`count` samples of the first kind, then those of the second, and so on."""

    def __init__(self, kinds: list[str], count: int = 5) -> None:
        self.kinds, self.count = kinds, count

    def __len__(self) -> int:
        return len(self.kinds) * self.count

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.kinds[index // self.count]](index % self.count)

    def batches(self, size: int) -> list[list[int]]:
        """Returns the indices of batches that have samples of one kind each."""
        firsts = range(0, len(self), self.count)
        return [
            list(range(at, min(at + size, first + self.count)))
            for first in firsts
            for at in range(first, first + self.count, size)
        ]


class Tagged:
    """A type that only a user's addition to default_collate_fn_map can collate."""

    def __init__(self, value: int) -> None:
        self.value = value


def collate_tagged(batch: list[Tagged], *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.tensor([-tagged.value for tagged in batch])


# ---- map-style ----


class Calls(Dataset):  # type: ignore[type-arg]
    """A dataset whose samples are the results of a function."""

    def __init__(self, make: Callable[[int], Any], count: int = 4) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Squares(Dataset):  # type: ignore[type-arg]
    """index -> (index, index squared as a tensor)."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([index * index])


class Images(without_torch.Images):
    def make(self, index: int) -> torch.Tensor:
        return torch.full((self.side, self.side), index, dtype=torch.int32)


class Draws(Dataset):  # type: ignore[type-arg]
    """Random numbers of every generator, the worker and its seed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        self.calls += 1
        return {
            "index": index,
            "torch": torch.rand(2),
            "random": random.random(),
            "numpy": float(np.random.rand()),
            "worker": (info.id, info.num_workers, info.seed) if info else None,
            "calls": self.calls,
        }


class Surroundings(Dataset):  # type: ignore[type-arg]
    """Returns what a worker can see of itself."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        assert info is not None
        process = multiprocessing.current_process()
        return {
            "threads": torch.get_num_threads(),
            "daemon": process.daemon,
            "is main": threading.current_thread() is threading.main_thread(),
            "parent": multiprocessing.parent_process() is not None,
            "same dataset": info.dataset is self,
            "method": info.worker_method if hasattr(info, "worker_method") else None,
            "grad": torch.is_grad_enabled(),
            "pid differs": os.getpid() != int(os.environ.get("HEADRACE_TEST_TRAINER", "0")),
        }


class Getitems(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ takes precedence")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list, type(indices)
        return [(i, torch.full((2,), i), len(indices)) for i in indices]


class Echo(Dataset):  # type: ignore[type-arg]
    """Any index -> its type and repr."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> list[str]:
        return [type(index).__module__, type(index).__name__, repr(index)]


class Setting(Dataset):  # type: ignore[type-arg]
    """A dataset with a setting that the trainer changes between epochs."""

    def __init__(self, count: int = 4) -> None:
        self.count, self.value = count, 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.value = epoch

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.value


class Pids(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Lies(Dataset):  # type: ignore[type-arg]
    """`true` items, but says that it has `claimed`."""

    def __init__(self, true: int, claimed: Any) -> None:
        self.items, self.claimed = list(range(true)), claimed

    def __len__(self) -> Any:
        return self.claimed

    def __getitem__(self, index: int) -> int:
        return self.items[index]


class TwoArguments(Exception):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(f"{first} and {second}")


class KeywordMessage(Exception):
    message = "a class attribute called message"

    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class Noted(ValueError):
    pass


class Obliging(Exception):
    """Answers None for every attribute that it does not have."""

    def __getattr__(self, name: str) -> None:
        return None


def chained() -> None:
    try:
        {}["inner"]
    except KeyError as error:
        raise Noted("outer") from error


def with_note() -> None:
    error = ValueError("noted")
    if hasattr(error, "add_note"):
        error.add_note("a note of the user's own")
    raise error


def _raise(error: BaseException) -> None:
    raise error


FAILURES: dict[str, Callable[[], None]] = {
    "value error": lambda: _raise(ValueError("bad value")),
    "several lines": lambda: _raise(RuntimeError("first\nsecond\n  third")),
    "no text": lambda: _raise(ValueError()),
    "key error": lambda: {}["missing"],  # type: ignore[func-returns-value]
    "key error of a tuple": lambda: {}[(1, "a")],  # type: ignore[func-returns-value]
    "index error": lambda: [][3],  # type: ignore[func-returns-value]
    "zero division": lambda: 1 / 0,  # type: ignore[func-returns-value]
    "two arguments": lambda: _raise(TwoArguments(1, 2)),
    "keyword message": lambda: _raise(KeywordMessage(message="by keyword")),
    "unicode decode error": lambda: b"\xff".decode(),  # type: ignore[func-returns-value]
    "os error": lambda: _raise(FileNotFoundError(2, "No such file", "a.png")),
    "stop iteration": lambda: _raise(StopIteration("from the dataset")),
    "assertion": lambda: _raise(AssertionError("claimed")),
    "not implemented": lambda: _raise(NotImplementedError()),
    "torch error": lambda: torch.ones(2) @ torch.ones(3),  # type: ignore[func-returns-value]
    "recursion": lambda: FAILURES["recursion"](),
    "chained": chained,
    "with a note": with_note,
    "timeout": lambda: _raise(TimeoutError("slow disk")),
    "eof": lambda: _raise(EOFError("short file")),
    "unicode text": lambda: _raise(ValueError("日本語 \U0001f600")),
    "memory": lambda: _raise(MemoryError("big")),
    "any attribute": lambda: _raise(Obliging("it has them all")),
}


class Failing(Dataset):  # type: ignore[type-arg]
    """Fails at the given indices."""

    def __init__(self, count: int, at: tuple[int, ...], failure: str = "value error") -> None:
        self.count, self.at, self.failure = count, at, failure

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index in self.at:
            FAILURES[self.failure]()
        return index, worker_id()


def collate_that_fails(batch: list[Any]) -> Any:
    if any(index == 3 for index, _ in batch):
        raise ValueError(f"cannot collate {len(batch)}")
    return batch


def collate_to_exception(batch: list[Any]) -> Any:
    """A batch that is what torch sends exceptions in."""
    if batch[0][0] != 4:
        return batch
    try:
        raise ValueError("from far away")
    except ValueError:
        return ExceptionWrapper(where="somewhere")


class CollateOnce:
    """A callable object as collate_fn, with state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: list[Any]) -> tuple[int, list[Any]]:
        self.calls += 1
        return self.calls, batch


def collate_to_pair(batch: list[tuple[int, torch.Tensor]]) -> Pair:
    return Pair(torch.stack([square for _, square in batch]), sum(index for index, _ in batch))


def collate_to_numpy(batch: list[tuple[int, torch.Tensor]]) -> dict[str, Any]:
    return {"index": np.array([i for i, _ in batch]), "names": np.array([f"n{i}" for i, _ in batch])}


# ---- iterable ----


class Count(IterableDataset):  # type: ignore[type-arg]
    """Every worker yields all of range(count), with its own number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.count):
            yield i, worker_id()


class Configured(Count):
    """Looks unknown attributes up in a dict, and lets its KeyError through."""

    def __init__(self, count: int) -> None:
        self.config = {"count": count}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["config"][name]


class Tidy(Count):
    """Leaves a file in a folder for each worker that goes through it, and takes it away in the end."""

    def __init__(self, folder: Any) -> None:
        super().__init__(1000)
        self.folder = folder

    def __iter__(self) -> Iterator[Any]:
        mark = self.folder / f"worker {worker_id()}"
        mark.touch()
        try:
            yield from super().__iter__()
        finally:
            mark.unlink()


class SizedCount(Count):
    def __init__(self, count: int, claimed: int) -> None:
        super().__init__(count)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed

    def __repr__(self) -> str:
        return "SizedCount"


class Sharded(IterableDataset):  # type: ignore[type-arg]
    """Workers share range(count) by get_worker_info; `uneven` gives worker 0 everything but one per other worker."""

    def __init__(self, count: int, uneven: bool = False) -> None:
        self.count, self.uneven = count, uneven

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        if not self.uneven:
            mine = list(range(first, self.count, step))
        elif first == 0:
            mine = list(range(step - 1, self.count))
        else:
            mine = [first - 1]
        for i in mine:
            yield i, torch.full((2,), i), float(np.random.rand())


class FailingIter(IterableDataset):  # type: ignore[type-arg]
    """Fails in __iter__ itself, or (at >= 0) at that item."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[int]:
        if self.at < 0:
            raise OSError("no such stream")
        return self._items()

    def _items(self) -> Iterator[int]:
        for i in range(6):
            if i == self.at:
                raise ValueError(f"broken at {i}")
            yield i


class Resumable(IterableDataset):  # type: ignore[type-arg]
    """An iterator object that can go on after it raised."""

    def __init__(self) -> None:
        self.i = 0

    def __iter__(self) -> Resumable:
        self.i = 0
        return self

    def __next__(self) -> int:
        self.i += 1
        if self.i == 3:
            raise ValueError("three")
        if self.i > 6:
            raise StopIteration
        return self.i


# ---- worker_init_fn ----


def init_adds(number: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == number
    info.dataset.calls = 1000 * (number + 1) + random.randrange(100)  # type: ignore[attr-defined]


def init_raises(number: int) -> None:
    raise LookupError(f"worker {number} cannot start")


def init_raises_in_1(number: int) -> None:
    if number == 1:
        raise LookupError("worker 1 cannot start")


# ---- samplers ----


class CountingSampler:
    """Counts how often it was asked for an iterator, and how many indices were drawn."""

    def __init__(self, count: int) -> None:
        self.count, self.iters, self.drawn = count, 0, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.iters += 1
        return self._draw()

    def _draw(self) -> Iterator[int]:
        for i in range(self.count):
            self.drawn += 1
            yield i


class EagerSampler:
    """Draws from torch's default generator in __iter__ itself."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count).tolist())


class GrowingSampler:
    """Two indices in the first epoch, four in the second, and so on."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.count += 2
        return iter(range(self.count))


class BrokenSampler:
    """Yields `good` indices, then raises."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        yield from range(self.good)
        raise ValueError("the sampler broke")


# ---- waiting ----


class Gate(Dataset):  # type: ignore[type-arg]
    """Items from `closed_from` on wait for an event (fork only: a multiprocessing event is inherited)."""

    def __init__(self, count: int, closed_from: int, event: Any, reached: Any = None) -> None:
        self.count, self.closed_from, self.event, self.reached = count, closed_from, event, reached

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index >= self.closed_from:
            if self.reached is not None:
                self.reached.set()
            if not self.event.wait(DEADLINE_S):
                raise TimeoutError("the gate stayed closed")
        return index


def collate_to_lambda(batch: list[Any]) -> Any:
    return (lambda: batch) if 1 in batch else batch


def collate_to_lock(batch: list[Any]) -> Any:
    return {"data": batch, "deep": [threading.Lock()]} if 1 in batch else batch


def collate_to_generator(batch: list[Any]) -> Any:
    return (item for item in batch) if 1 in batch else batch


def collate_to_non_leaf(batch: list[Any]) -> Any:
    return torch.ones(3, requires_grad=True) * 2 if 1 in batch else batch


class Tensors(Dataset):  # type: ignore[type-arg]
    """index -> `tensors` tensors of `size` float32."""

    def __init__(self, count: int, tensors: int, size: int) -> None:
        self.count, self.tensors, self.size = count, tensors, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.full((self.size,), float(index + t)) for t in range(self.tensors)]


class Slices(Dataset):  # type: ignore[type-arg]
    """Small slices of one large tensor."""

    def __init__(self, total_bytes: int, count: int) -> None:
        self.large = torch.zeros(total_bytes, dtype=torch.uint8)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.large[index * 1000 : index * 1000 + 1000]


class Deep(Dataset):  # type: ignore[type-arg]
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[Any]:
        return nested(self.depth if index == 1 else 3)


class Held(Dataset):  # type: ignore[type-arg]
    """Holds batches that another loader delivered; reads them when the gate opens (fork only)."""

    def __init__(self, batches: list[torch.Tensor], event: Any) -> None:
        self.batches, self.event = batches, event

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[int, int]:
        if not self.event.wait(DEADLINE_S):
            raise TimeoutError("the gate stayed closed")
        values = self.batches[index].unique()
        return int(values.min()), int(values.max())


# ---- drawn by hypothesis: a structure is plain JSON, so that a failing example can be read ----


def build(structure: Any, index: int) -> Any:
    """A sample from a structure: ["tensor", dtype, shape], ["numpy", dtype, shape], ["int"], ..., ["dict", {...}]."""
    kind, *rest = structure
    if kind == "tensor":
        return filled(rest[0], *rest[1], start=index)
    if kind == "numpy":
        return numpy_filled(rest[0], *rest[1])
    if kind in ("list", "tuple"):
        items = [build(part, index + k) for k, part in enumerate(rest[0])]
        return items if kind == "list" else tuple(items)
    if kind == "point":
        return Point(build(rest[0], index), build(rest[1], index + 1))
    if kind == "dict":
        return {key: build(part, index) for key, part in rest[0].items()}
    scalars: dict[str, Any] = {
        "int": index * 7 - 3,
        "float": index / 3,
        "bool": index % 2 == 0,
        "str": f"s{index}" * (index % 3),
        "bytes": b"b%d" % index,
        "npfloat": np.float32(index / 7),
        "rand": torch.rand(2),
        "pyrand": random.random(),
        "ragged": torch.ones(index % 2 + 1),
        "worker": worker_id(),
    }
    return scalars[kind]


class Drawn(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int, structure: Any, failing: tuple[int, ...], failure: str) -> None:
        self.count, self.structure, self.failing, self.failure = count, structure, failing, failure

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.failing:
            FAILURES[self.failure]()
        return build(self.structure, index)

    def __repr__(self) -> str:
        return f"Drawn({self.count}, {json.dumps(self.structure)}, {self.failing}, {self.failure!r})"


class DrawnGetitems(Drawn):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class DrawnIterable(IterableDataset):  # type: ignore[type-arg]
    """Like Drawn; worker w takes shares[w % len(shares)] of every sum(shares) items."""

    def __init__(self, drawn: Drawn, shares: tuple[int, ...]) -> None:
        self.drawn, self.shares = drawn, shares

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        owners = [w for w in range(info.num_workers) for _ in range(self.shares[w % len(self.shares)])]
        for index in range(self.drawn.count):
            if owners and owners[index % len(owners)] == info.id:
                yield self.drawn[index]


# ---- datasets that change the state of their worker ----


class Acts(without_torch.Acts):
    def make(self, index: int) -> torch.Tensor:
        return torch.full((self.side, self.side), float(index))


class Mixture(Dataset):  # type: ignore[type-arg]
    """Another type for each index."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return [0, torch.ones(2, 2), "s", {"a": 3}, None, np.ones(5), (6, 6), b"x"][index]


class CollateInPlace:
    """Returns the same objects each time, with another content."""

    def __init__(self) -> None:
        self.large, self.small, self.list = torch.zeros(200, 200), torch.zeros(2), [0]
        self.array = np.zeros(9000)

    def __call__(self, batch: list[Any]) -> list[Any]:
        for tensor in (self.large, self.small, self.array):
            tensor += 1
        self.list[0] += 1
        return [self.large, self.small, self.list, self.array]


class Huge(Dataset):  # type: ignore[type-arg]
    """One tensor of `total_bytes`, zero except for its last byte and the one at 4 GiB."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        out = torch.zeros(self.total_bytes, dtype=torch.uint8)
        out[-1], out[1 << 32] = 7, 5
        return out
