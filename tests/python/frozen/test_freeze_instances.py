# SPDX-License-Identifier: Apache-2.0
"""Instances, however their attributes were set: every field comes back, and the users' objects stay as they were."""

from __future__ import annotations

import copy
import gc
import itertools
import pathlib
import pickle
import sys
import tracemalloc
import typing
from typing import Any

import frozen_types as ft
import headrace
import pytest
from processes import run

KEEPS_INSIDE = sys.version_info >= (3, 11) and getattr(sys, "_is_gil_enabled", lambda: True)()


def _has_dict(value: Any) -> bool:
    return any(type(one) is dict for one in gc.get_referents(value))


def _fields(value: Any) -> list[tuple[str, Any]]:
    slots = [(name, getattr(value, name)) for name in ("a", "b") if type(value) is ft.Both and hasattr(value, name)]
    return slots + list(vars(value).items())


def _plain(**fields: Any) -> Any:
    made = object.__new__(ft.Node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _without(value: Any, name: str) -> Any:
    delattr(value, name)
    return value


def _unpickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _asked(value: Any) -> Any:
    vars(value)
    return value


def _key_of_another_kind() -> Any:
    made = ft.Node(1)
    vars(made)[ft.MyStr("own")] = 2
    return made


# One attribute, that is what a dict looks like from outside; many; none; more than CPython keeps inside.
MADE: list[Any] = [
    lambda: _plain(value=1),
    lambda: _plain(value=None),
    lambda: _plain(value={"next": 1}),
    lambda: _plain(value=1, next=2),
    lambda: _plain(next=1, value=2),
    lambda: _plain(value=ft.Node, next=ft.Node),
    lambda: _plain(),
    lambda: _plain(**{f"x{i}": i for i in range(60)}),
    lambda: _plain(**{"no identifier": 1, "\u00e9": [2]}),
    lambda: _without(_plain(a=1, b=2, c=3), "b"),
    lambda: _without(_plain(a=1), "a"),
    lambda: ft.Node(1, [2]),
    lambda: _asked(ft.Node(1, [2])),
    lambda: _asked(_plain(value={"next": 1})),
    lambda: _asked(_plain()),
    lambda: copy.copy(ft.Node(1, [2])),
    lambda: copy.deepcopy(ft.Node(1, [2])),
    lambda: _unpickled(ft.Node(1, [2])),
    lambda: ft.Scan("s", None),
    lambda: ft.Scan("s", None, 3),
    lambda: _without(ft.Scan("s", None, None), "tags"),  # the class has a value of that name
    lambda: _extra(_without(ft.Scan("s", None, None), "tags"), None),
    lambda: ft.Both(1, 2),
    lambda: ft.Both(1, 2, c=3, d=[4]),
    lambda: _without(ft.Both(1, 2, c=3), "a"),
    lambda: ft.Guarded([1]),
    lambda: ft.GenericClass([1]),
    lambda: ft.LongPoint(1, [2]),
]


def _extra(value: Any, extra: Any) -> Any:
    value.extra = extra
    return value


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_field_comes_back_in_its_order_however_it_was_set(count: int) -> None:
    lists = [[make() for make in (*two, two[0])[:count]] for two in itertools.product(MADE, repeat=2)]
    for value, back in zip(lists, headrace.thaw(headrace.freeze(lists)), strict=True):
        assert [type(one) for one in back] == [type(one) for one in value]
        assert [_fields(one) for one in back] == [_fields(one) for one in value]


def test_attribute_that_is_no_field_is_named() -> None:
    for value in (_key_of_another_kind(), [ft.Node(1), _key_of_another_kind()]):
        with pytest.raises(TypeError, match="this instance has something that Node does not define"):
            headrace.freeze(value)
    named = ft.LongPoint(1, 2)
    named.more = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="this instance has something that LongPoint does not define"):
        headrace.freeze([ft.LongPoint(1, 2), named])


def test_instance_with_too_many_fields_is_refused_with_the_limit() -> None:
    node = ft.Node(1)
    vars(node).update({f"field{i}": i for i in range(1024)})
    with pytest.raises(TypeError, match=r"it has 1,02\d attributes, and the maximum is 1,024"):
        headrace.freeze([node])


ATTRS = """
import attrs, headrace, pickle

@attrs.define
class BoundingBox:
    corners: list
    label: str = "none"

@attrs.define
class Deep(BoundingBox):
    depth: float = 0.5

@attrs.frozen(cache_hash=True)
class Hashed:
    name: str

@attrs.define(slots=False, unsafe_hash=True, cache_hash=True)
class HashedOpenly:
    name: str

boxes = [BoundingBox([1, 2]), Deep([3], "cat", 1.5)]
frozen = headrace.freeze(boxes)
assert headrace.thaw(frozen) == boxes and frozen[1].corners[0] == 3 and isinstance(frozen[1], Deep)
for hashed in Hashed("a"), HashedOpenly("a"):
    hash(hashed)
    try:
        headrace.freeze(hashed)
    except TypeError as error:
        print("cannot be frozen" in str(error))
"""


FREEZES_ITS_OWN = """
import dataclasses, headrace

@dataclasses.dataclass
class Record:
    name: str

headrace.freeze([Record("a")], path="records.frozen")
"""
READS_IT = """
import headrace
for trust in False, True:
    try:
        headrace.open("records.frozen", trust=trust)[0]
    except headrace.FrozenError as error:
        print(error)
"""


def test_class_of_the_script_that_froze_it_is_named_as_such(tmp_path: pathlib.Path) -> None:
    run(tmp_path, FREEZES_ITS_OWN)
    lines = run(tmp_path, READS_IT).splitlines()
    assert len(lines) == 2 and all(
        "'Record', which the script that froze it defined itself; move it" in one for one in lines
    )


def test_attrs_slot_classes_freeze_unless_they_cache_the_hash(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("attrs", reason="attrs is not installed")
    assert run(tmp_path, ATTRS) == "True\nTrue\n"


@pytest.mark.skipif(not KEEPS_INSIDE, reason="this Python makes the dict with the instance")
def test_freezing_adds_no_dict_to_an_instance() -> None:
    values = [value for value in (make() for make in MADE) if not _has_dict(value)]
    assert len(values) > 8
    for wrap in (lambda one: one, lambda one: [one, one], lambda one: {1: one}, lambda one: ft.Point(one)):
        for value in values:
            headrace.freeze(wrap(value))
    headrace.freeze([ft.Node(i) for i in range(3)] + values)
    assert not any(_has_dict(value) for value in values)


class _Loud:
    """Tells of everything of its own that runs."""

    ran: typing.ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.__dict__["value"] = 1

    @property
    def value(self) -> int:
        self.ran.append("property")
        return 2

    def __getattribute__(self, name: str) -> Any:
        _Loud.ran.append(f"__getattribute__({name})")
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        _Loud.ran.append(f"__getattr__({name})")
        raise AttributeError(name)


def test_freezing_instances_runs_no_code_of_their_class() -> None:
    values = [_Loud(), _Loud()]
    _Loud.ran.clear()
    frozen = headrace.freeze([values, values[0]])
    assert _Loud.ran == []
    assert [object.__getattribute__(one, "__dict__") for one in headrace.thaw(frozen)[0]] == [{"value": 1}] * 2


@pytest.mark.skipif(not KEEPS_INSIDE, reason="this Python makes the dict with the instance")
@pytest.mark.parametrize(
    "make", [ft.Node, lambda i: ft.Scan(i, None), lambda i: {"one": ft.Node(i)}, lambda i: (ft.Node(i), i)]
)
def test_freezing_small_instances_takes_little_extra_memory(make: Any) -> None:
    values = [make(i) for i in range(50_000)]
    headrace.freeze([make(0), make(1)])
    gc.collect()
    tracemalloc.start()
    try:
        frozen = headrace.freeze(values)  # the frozen data is in memory that Python's allocator does not have
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < headrace.frozen.nbytes(frozen) / 10
