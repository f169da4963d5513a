# SPDX-License-Identifier: Apache-2.0
"""Classes for the tests of frozen data: importable, so that images can name them in other processes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import threading
import typing
from typing import Any


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Reader(enum.Enum):
    TEXT = (lambda path: path.read_text(), "r")
    BYTES = (lambda path: path.read_bytes(), "rb")


class Named(enum.Enum):
    ONE = 1
    TWO = 2

    @property
    def name(self) -> str:  # type: ignore[override]
        return "TWO"

    @property
    def value(self) -> int:
        return 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(typing.NamedTuple):
    x: Any
    y: Any = 0


OldPoint = collections.namedtuple("OldPoint", ["x", "y"])


class LongPoint(OldPoint):  # its instances have a __dict__
    def norm(self) -> float:
        return (self.x**2 + self.y**2) ** 0.5


@dataclasses.dataclass
class Scan:
    name: str
    points: Any
    tags: Any = None

    def count(self) -> int:
        return len(self.points)


@dataclasses.dataclass(frozen=True)
class Key:
    a: Any
    b: Any = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: Any
    b: Any


class Both(Slotted):
    """Slots and a __dict__."""

    def __init__(self, a: Any, b: Any, **more: Any) -> None:
        super().__init__(a, b)
        self.__dict__.update(more)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Both) and (self.a, self.b, self.__dict__) == (other.a, other.b, other.__dict__)


class HidesSlot(Slotted):  # a property hides the slot of the base
    @property
    def a(self) -> Any:  # type: ignore[override]
        return 1


class Node:
    """Plain; may go in circles."""

    made = 0

    def __init__(self, value: Any = None, next: Any = None) -> None:
        Node.made += 1
        self.value, self.next = value, next

    @property
    def twice(self) -> Any:
        return 2 * self.value

    @functools.cached_property
    def thrice(self) -> Any:
        return 3 * self.value


class Guarded:
    """Refuses every set from outside, and hides a field behind a property."""

    def __init__(self, hidden: Any) -> None:
        self.__dict__["hidden"] = hidden

    @property
    def hidden(self) -> Any:
        return self.__dict__["hidden"] + 1

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class GenericClass(typing.Generic[typing.TypeVar("T")]):  # type: ignore[misc]
    def __init__(self, content: Any) -> None:
        self.content = content


class ByFields:
    """Hashes by a field, which the class has a value of too; may be in a set that it holds."""

    name: Any = None

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByFields) and self.name == other.name


class OwnReduce:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return OwnReduce, (self.value,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnReduce) and other.value == self.value


class MyList(list):  # type: ignore[type-arg]
    pass


class MyStr(str):
    pass


class Holder:
    def __init__(self) -> None:
        self.items = [1, {"lock": threading.Lock()}]


def double(value: int) -> int:
    return 2 * value
