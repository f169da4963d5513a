# SPDX-License-Identifier: Apache-2.0
"""Frozen data comes back with the same values, types, order, sharing and circles."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import gc
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import threading
import types
import uuid
import zoneinfo
from typing import Any

import frozen_types as ft
import headrace
import numpy as np
import pytest
import torch
from compare import describe
from drawn import draws
from headrace import _core
from headrace.frozen.types import hooks, tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loaders import needs_failpoints

ROUND_TRIP = settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = [0, 1, -1, 2**31, -(2**31), 2**55, -(2**55) - 1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**200), 10**300]
FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, struct.unpack("<d", b"\x01\0\0\0\0\0\xf0\x7f")[0]]
TEXTS = ["", "a", "sieben7", "achtacht", "é", "日本語", "\ud800", "a\udfffb", "\U0001f600", "x" * 70000, "é" * 70000]
NAMED = [
    decimal.Decimal("1.50"),
    decimal.Decimal("-Infinity"),
    fractions.Fraction(1, 3),
    datetime.date(2024, 2, 29),
    datetime.time(1, 2, 3, 4, fold=1),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "there")),
    datetime.datetime(2024, 2, 29, tzinfo=zoneinfo.ZoneInfo("UTC")),
    datetime.timedelta(-1, 2, 3),
    pathlib.Path("/a/b"),
    pathlib.PurePosixPath("c"),
    pathlib.PureWindowsPath("c:\\d"),
    uuid.UUID(int=7),
    range(3, 9, 2),
    slice(1, None, 2),
    ...,
    NotImplemented,
    re.compile("a+", re.IGNORECASE),
    array.array("i", [1, 2]),
    ft.Colour.RED,
    ft.Colour.BLUE,
    ft.Level.HIGH,
    ft.Access.READ | ft.Access.WRITE,
    int,
    ft.Node,
    len,
    ft.double,
    np.dtype("f4"),
    torch.float16,
    torch.device("cpu"),
    torch.Size([2, 3]),
]
CONTAINERS: list[Any] = [
    [],
    (),
    {},
    set(),
    frozenset(),
    [[]],
    ((),),
    [1, 2, 3],
    [1, 2**40],
    [1, 2**70],
    [True, 1, 0],
    [1.0, -0.0],
    [1, 1.0],
    (1, 2, 3, 4),
    [None, True, False],
    [str(i) for i in range(100)],
    ["é" * i for i in range(40)],
    [b"%d" % i for i in range(40)],
    tuple(f"\ud800{i}" for i in range(20)),
    [{"a": i, "b": [i]} for i in range(5)],
    [{"a": 1}, {"b": 2}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    ({"a": 1}, {"a": 2}),
    [{}, {}],
    {"a": {"b": {"c": [1, (2, {3, 4})]}}},
    {1: 2, 2.5: 3, None: 4, "x": 5, b"y": 6, (1, "z"): 7, True + 1j: 8, frozenset([1]): 9},
    {i: str(i) for i in range(200)},
    {str(i): i for i in range(200)},
    {str(i): i for i in range(64)},
    {str(i): i for i in range(65)},
    {"é": 1, "\udc00": 2},
    {1, "a", (1, 2), None, 2.5},
    frozenset([frozenset([1]), 2]),
    collections.deque([1, [2]], maxlen=5),
    collections.deque([1]),
    collections.Counter("hello"),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {1: 2}),
    types.SimpleNamespace(a=1, b=[2]),
    ft.Point(1, [2]),
    ft.OldPoint("x", ft.Point(1)),
    [ft.Point(i, i) for i in range(5)],
    ft.LongPoint(3, 4),
    ft.Key(1, "b"),
    {ft.Key(1): 1, ft.Colour.RED: 2, decimal.Decimal(3): 3, (decimal.Decimal(4), 5): 4},
    ft.Slotted(1, [2]),
    ft.Both(1, 2, c=3),
    [ft.Both(i, 2, c=3) for i in range(4)],
    [ft.Both(1, 2, c=3), ft.Both(1, 2, d=3)],
    ft.Scan("s", [1, 2], {"k": (1,)}),
    [ft.Scan("s", [i], None) for i in range(10)],
    bytearray(b"xyz"),
    b"",
    b"\0" * 70000,
    1 + 2j,
    complex(-0.0, math.nan),
]
ARRAYS: list[Any] = [
    np.arange(6).astype(code).reshape(2, 3)
    for code in ("?", "i1", "u1", "i2", ">i4", "u8", "f2", "f4", ">f8", "c8", "g")
]
ARRAYS += [
    np.array(["a", "été", ""]),
    np.array([b"x", b"yy"]),
    np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    np.array([1, 2], dtype="m8[ns]"),
    np.array([(1, 2.5, "x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U3")]),
    np.zeros(2, dtype=np.dtype({"names": ["a", "b"], "formats": ["i2", "M8[s]"], "offsets": [4, 8], "itemsize": 24})),
    np.zeros(2, dtype=np.dtype([("a", "u1"), ("b", "i4")], align=True)),
    np.zeros(3, dtype=[("m", "f4", (2, 2)), ("n", [("x", "i1")])]),
    np.array([1, 3], dtype="g") / 3,
    np.zeros(2, dtype=[("z", "G"), ("n", "i4")]),
    np.zeros((0, 3)),
    np.array(5.0),
    np.arange(12).reshape(3, 4).T,
    np.arange(12)[::-2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([1, "a", None, [2]], dtype=object),
    np.array([[1, "a"], [None, {3}]], dtype=object),
    np.float32(1.5),
    np.int64(-3),
    np.bool_(True),
    np.str_("text"),
    np.bytes_(b"bytes"),
    np.datetime64("2020-01-01T00:00"),
    np.timedelta64("NaT"),
    np.float64("nan"),
    np.void(b"abc"),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
]
TENSORS = [torch.arange(6).to(dtype).reshape(2, 3) for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32)]
TENSORS += [torch.arange(6.0).bfloat16(), torch.randn(3).half(), torch.randn(2, dtype=torch.complex64)]
TENSORS += [torch.zeros(0, 2), torch.tensor(3), torch.arange(12).reshape(3, 4).T, torch.zeros(3).expand(2, 3)]


def look(value: Any) -> Any:
    """Describes what can be observed of a value, except what frozen data does not keep: strides and owner of memory."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), describe(value.contiguous().reshape(-1)))
    if isinstance(value, np.ndarray):
        is_plain = not value.dtype.hasobject and value.dtype.names is None  # a structure's padding is anything
        data = value.tobytes() if is_plain else [look(item) for item in value.ravel().tolist()]
        return ("array", value.dtype, value.shape, data)
    if isinstance(value, np.generic):
        return (type(value), value.dtype, value.tobytes())
    if type(value) in (list, tuple, collections.deque):
        return (type(value), getattr(value, "maxlen", None), [look(item) for item in value])
    if isinstance(value, dict):
        return (type(value), [(look(k), look(v)) for k, v in value.items()], getattr(value, "default_factory", None))
    if type(value) in (set, frozenset):
        return (type(value), sorted(repr(look(item)) for item in value))
    if isinstance(value, float):
        return (float, struct.pack("d", value))
    if isinstance(value, complex):
        return (complex, struct.pack("dd", value.real, value.imag))
    return (type(value), repr(value), value if type(value).__eq__ is not object.__eq__ else None)


def there_and_back(value: Any) -> Any:
    return headrace.thaw(headrace.freeze([value]))[0]


@pytest.mark.parametrize("value", NUMBERS + FLOATS + TEXTS + [None, True, False], ids=lambda value: repr(value)[:20])
def test_a_scalar_comes_back_as_itself(value: Any) -> None:
    for wrap in (
        lambda v: v,
        lambda v: [v],
        lambda v: [v] * 40,
        lambda v: {"k": v},
        lambda v: {1: v},
        lambda v: (v, None),
    ):
        assert look(headrace.thaw(headrace.freeze(wrap(value)))) == look(wrap(value))


@pytest.mark.parametrize("value", NAMED + CONTAINERS, ids=lambda value: repr(value)[:30])
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = there_and_back(value)
    assert look(back) == look(value)
    assert look(headrace.thaw(headrace.freeze({"field": value}))["field"]) == look(value)
    assert look(headrace.thaw(headrace.freeze(value))) == look(value)


@pytest.mark.parametrize("value", ARRAYS + TENSORS, ids=lambda value: f"{type(value).__name__} {value.dtype}")
def test_an_array_comes_back_with_its_dtype_and_can_be_written(value: Any) -> None:
    back = there_and_back(value)
    assert type(back) is type(value)
    assert look(back) == look(value)
    if isinstance(back, np.ndarray) and not back.dtype.hasobject:
        assert back.flags.writeable
        assert look(headrace.freeze(value)) == look(value)


def test_long_doubles_of_another_kind_of_machine_are_refused(tmp_path: pathlib.Path) -> None:
    mantissa = np.finfo("g").nmant
    frozen = tmp_path / "image"
    headrace.freeze({"a": np.zeros(2, dtype="g")}, frozen)
    written = frozen.read_bytes()
    frozen.write_bytes(written.replace(f"f16/{mantissa}".encode(), f"f16/{mantissa ^ 1}".encode()))
    with pytest.raises(headrace.FrozenError, match=f"have {mantissa ^ 1} bits of mantissa, .* {mantissa}; freeze"):
        headrace.open(frozen)["a"]
    with pytest.raises(headrace.FrozenError, match=f"have an unknown number of bits of mantissa, .* have {mantissa}"):
        hooks.dtype_from_text("<f16")


KEYS = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.none(), st.booleans(), st.binary())
LEAVES = st.one_of(
    KEYS,
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec=None, exclude_categories=())),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.fractions(),
    st.sampled_from(list(ft.Colour)),
    st.builds(bytearray, st.binary()),
    st.builds(lambda items: np.array(items, dtype="f4"), st.lists(st.floats(width=32))),
)
HASHABLE = st.recursive(KEYS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner),
        st.dictionaries(st.text(max_size=3), inner),
        st.lists(st.fixed_dictionaries({"a": inner, "b": st.integers()})),
        st.sets(HASHABLE),
        st.frozensets(HASHABLE),
        st.builds(collections.deque, st.lists(inner)),
        st.builds(collections.OrderedDict, st.dictionaries(HASHABLE, inner)),
        st.builds(collections.Counter, st.lists(HASHABLE)),
        st.builds(ft.Scan, st.text(), inner, inner),
        st.builds(ft.Slotted, inner, inner),
        st.lists(st.builds(ft.Both, inner, inner, c=inner)),
        st.builds(ft.Point, inner, inner),
        st.builds(types.SimpleNamespace, a=inner),
    )


ANYTHING: st.SearchStrategy[Any] = st.deferred(lambda: LEAVES | _containers(ANYTHING))


def observe(value: Any) -> Any:
    """`look`, into instances too."""
    if isinstance(value, types.SimpleNamespace):
        return ("namespace", observe(vars(value)))
    if isinstance(value, ft.Scan | ft.Both):
        slots = (observe(value.a), observe(value.b)) if isinstance(value, ft.Both) else ()
        return (type(value), slots, observe(vars(value)))
    if isinstance(value, ft.Slotted):
        return (type(value), observe(value.a), observe(value.b))
    if isinstance(value, list | tuple | collections.deque):
        return (type(value), [observe(item) for item in value])
    if isinstance(value, dict):
        return (type(value), [(look(key), observe(item)) for key, item in value.items()])
    return look(value)


@ROUND_TRIP
@given(ANYTHING)
def test_nested_values_come_back_with_types_and_order(value: Any) -> None:
    assert observe(headrace.thaw(headrace.freeze([value]))) == observe([value])


# ---- sharing, circles, depth ----


def test_shared_objects_are_shared_again() -> None:
    inner, text, data = [1, 2], "t" * 1000, bytearray(b"x")
    values = np.arange(3)
    value = {
        "a": [inner, inner],
        "b": inner,
        "c": (inner,),
        "t": [text, text],
        "d": [data, data],
        "n": [values, values],
    }
    frozen = headrace.freeze(value)
    assert _core.where(frozen)[0].bytes < 4000
    back = headrace.thaw(frozen)
    assert back["a"][0] is back["a"][1] is back["b"] is back["c"][0]
    assert back["d"][0] is back["d"][1]
    assert back["n"][0] is back["n"][1]
    assert back["a"] is not frozen["a"]


def test_records_that_are_listed_and_indexed_stay_one_object() -> None:
    records = [{"id": i, "box": [i, i]} for i in range(100)]
    value = {"list": records, "index": {record["id"]: record for record in records}, "again": records[:3] * 2}
    back = headrace.thaw(headrace.freeze(value))
    assert back == value
    assert all(back["index"][i] is back["list"][i] for i in range(100))
    assert back["again"][4] is back["list"][1]


def test_records_that_refer_to_each_other_stay_one_object_each() -> None:
    nodes = [ft.Node(i) for i in range(5)]
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        node.next = following
    dicts: Any = [{"id": i, "other": None} for i in range(5)]
    alone = headrace.frozen.nbytes(headrace.freeze(dicts))
    dicts[0]["other"], dicts[4]["other"] = dicts[3], dicts[1]
    found, again = headrace.thaw(headrace.freeze([nodes, dicts]))
    assert all(found[i].next is found[(i + 1) % 5] for i in range(5))
    assert again[0]["other"] is again[3] and again[4]["other"] is again[1]
    assert headrace.frozen.nbytes(headrace.freeze(dicts)) == alone  # each is written once


def test_empty_containers_stay_apart() -> None:
    a, b, c = headrace.thaw(headrace.freeze([[], [], {}]))
    assert a is not b
    a.append(1)
    assert (a, b, c) == ([1], [], {})


def test_circles_come_back_as_circles() -> None:
    loop: Any = [1]
    loop.append(loop)
    by_tuple: Any = []
    by_tuple.append((by_tuple, 2))
    mapping: Any = {"x": 1}
    mapping["self"] = mapping
    first, second = ft.Node(1), ft.Node(2)
    first.next, second.next = second, first
    queue: Any = collections.deque()
    queue.append(queue)
    odd: Any = collections.defaultdict(list)
    odd["me"] = odd
    a, b, c, d, e, f = headrace.thaw(headrace.freeze([loop, by_tuple, mapping, first, queue, odd]))
    assert a[1] is a
    assert b[0][0] is b
    assert c["self"] is c
    assert d.next.next is d and (d.value, d.next.value) == (1, 2)
    assert e[0] is e
    assert f["me"] is f
    frozen = headrace.freeze(loop)
    assert frozen[1][1][1][0] == 1
    assert repr(frozen) == repr(loop) == "[1, [...]]"


def test_an_instance_out_of_a_circle_of_instances_has_its_circle() -> None:
    first, second = ft.Node(1), ft.Node(2)
    first.next, second.next = second, first
    back = headrace.freeze(first)
    assert type(back) is ft.Node
    assert back.next.next is back


def test_no_depth_is_too_deep() -> None:
    depth = 100_000
    value: Any = 0
    for i in range(depth):
        value = [value] if i % 3 == 0 else (value,) if i % 3 == 1 else {"k": value}
    back = headrace.thaw(headrace.freeze(value))
    for i in reversed(range(depth)):
        assert type(back) is type(value)
        step = "k" if i % 3 == 2 else 0
        back, value = back[step], value[step]
    assert back == 0


def test_a_long_chain_of_instances_is_no_recursion() -> None:
    chain = None
    for i in range(100_000):
        chain = ft.Node(i, chain)
    back: Any = headrace.freeze([chain])[0]
    count = 0
    while back is not None:
        back, count = back.next, count + 1
    assert count == 100_000
    while chain is not None:  # taken apart here: CPython's own deallocation would recurse
        chain = chain.next


def test_a_million_of_each_comes_back() -> None:
    count = 1_000_000
    paths = [f"/data/{i:07d}.jpg" for i in range(count)]
    value = {"paths": paths, "labels": list(range(count)), "scores": [i / 7 for i in range(count)]}
    value["index"] = dict(zip(paths, range(count), strict=True))
    frozen = headrace.freeze(value)
    assert frozen["paths"][123_456] == paths[123_456]
    assert frozen["index"][paths[654_321]] == 654_321
    assert "/data/none.jpg" not in frozen["index"]
    assert headrace.thaw(frozen) == value


def test_freezing_and_thawing_leave_nothing_behind() -> None:
    values = [NAMED[:-3], CONTAINERS, ARRAYS[:-1], NUMBERS, FLOATS, TEXTS[:9]]

    def once() -> None:
        for value in values:
            headrace.thaw(headrace.freeze(value))
        for bad in ([threading.Lock()], {"a": [ft.MyList()]}, [[{1: (lambda: 1,)}]]):
            with pytest.raises(TypeError):
                headrace.freeze(bad)

    for _ in range(8):  # caches fill
        once()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(10):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - before < 10 * 60, "one object of each value would be more than twice that"


# ---- what cannot be frozen ----


PAGE = r" \(headrace help cannot-freeze\)$"


def test_unknown_type_is_named_with_its_path_and_reason() -> None:
    with pytest.raises(
        TypeError,
        match=r"obj\.items\[1\]\['lock'\] is a _thread\.lock.*belongs to one process\. Leave it out" + PAGE,
    ):
        headrace.freeze(ft.Holder())
    with pytest.raises(
        TypeError,
        match=r"obj\[0\]\['k'\]\[2\] is a MyList.*Leave it out, or keep it.*on_unknown=\"pickle\"" + PAGE,
    ):
        headrace.freeze([{"k": (1, 2, ft.MyList())}, 1])
    with pytest.raises(TypeError, match=r"obj\['a'\] is a OwnReduce.*__reduce__"):
        headrace.freeze({"a": ft.OwnReduce()})
    with pytest.raises(TypeError, match="generator"):
        headrace.freeze(i for i in range(3))
    with pytest.raises(TypeError, match=r"defined in a function.*Leave it out" + PAGE):

        class Local:
            pass

        headrace.freeze([Local()])
    for picklable in (np.add, ft.OwnReduce().__reduce__, iter([1, 2])):
        with pytest.raises(TypeError, match=r"obj\[0\] is a .*Leave it out, or keep it"):
            headrace.freeze([picklable])
        headrace.freeze([picklable], on_unknown="pickle")
    for unpicklable in (lambda: 1, {}.keys(), memoryview(b"abc"), threading.local(), sys):
        with pytest.raises(TypeError, match=r"Leave it out" + PAGE):
            headrace.freeze([unpicklable])
    with pytest.raises(TypeError, match="cannot be imported by its name"):
        headrace.freeze([lambda: 1])
    with pytest.raises(TypeError, match="detach"):
        headrace.freeze([torch.zeros(2, requires_grad=True)])
    if string_type := getattr(np.dtypes, "StringDType", None):
        with pytest.raises(TypeError, match=r"obj\[0\].*StringDType keeps texts outside of the array; hold it as"):
            headrace.freeze([np.array(["a", "b"], string_type())])


def test_mapped_array_over_memory_is_refused_without_a_copy(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "numbers").open("wb") as file:
        file.truncate(1 << 40)
    numbers = np.memmap(tmp_path / "numbers", dtype="u1", mode="r")
    with pytest.raises(TypeError, match=r"obj\['x'\] is a memmap.*or keep it as a pickle"):
        headrace.freeze({"x": numbers})


def test_hidden_or_shadowed_slot_is_refused_when_frozen() -> None:
    """A slot that is hidden, or whose name another attribute has, fails when it is frozen, not when it is read."""
    hidden = object.__new__(ft.HidesSlot)
    ft.Slotted.__dict__["a"].__set__(hidden, 5)
    with pytest.raises(TypeError, match="replaces the slot 'a'"):
        headrace.freeze(hidden)
    both = ft.Both(1, 2)
    both.__dict__["a"] = 3
    with pytest.raises(TypeError, match="this instance has something that Both does not define"):
        headrace.freeze([both])


@pytest.mark.parametrize("value", [ft.MyStr("x"), ft.MyList([1]), ft.OwnReduce(3), torch.nn.Linear(1, 1)], ids=repr)
def test_picklable_object_can_be_kept_as_a_pickle(value: Any) -> None:
    frozen, report = headrace.freeze({"a": [value, value]}, on_unknown="pickle", report=True)
    assert type(frozen["a"][0]) is type(value)
    assert report.pickles == ["obj['a'][0]"]
    assert "kept as a pickle: obj['a'][0]" in str(report)
    back = headrace.thaw(frozen)
    assert back["a"][0] is back["a"][1]


def test_object_that_cannot_be_pickled_either_is_named() -> None:
    with pytest.raises(TypeError, match=r"obj\[0\] cannot be frozen, and not pickled either"):
        headrace.freeze([threading.Lock()], on_unknown="pickle")
    with pytest.raises(ValueError, match="on_unknown"):
        headrace.freeze([], on_unknown="ignore")  # type: ignore[call-overload]


def test_factory_that_cannot_be_imported_is_no_obstacle() -> None:
    back = there_and_back(collections.defaultdict(lambda: 3, {"a": 1}))
    assert type(back) is collections.defaultdict
    assert back == {"a": 1}


def test_a_list_that_changes_while_it_is_frozen_is_an_error() -> None:
    value: Any = [[str(i)] for i in range(100_000)]

    def shrink(_: int) -> None:
        del value[10:]

    with pytest.raises(RuntimeError, match=r"obj.* was changed while it was being frozen"):
        headrace.freeze(value, progress=shrink)
    mapping: Any = {i: [i] for i in range(100_000)}
    with pytest.raises(RuntimeError, match="was changed while"):
        headrace.freeze(mapping, progress=lambda _: mapping.clear())
    records: Any = [{"a": i, "b": [i]} for i in range(100_000)]
    with pytest.raises(RuntimeError, match="was changed while"):
        headrace.freeze(records, progress=lambda _: records[-1].update(c=1) or records[-1].pop("a", 0))
    with pytest.raises(ZeroDivisionError):
        headrace.freeze([[str(i)] for i in range(100_000)], progress=lambda _: 1 // 0)


EMPTIED_BY_A_FINALIZER = """
import gc, headrace

class Node:
    pass

class Bomb:
    def __init__(self, target):
        self.itself, self.target = self, target

    def __del__(self):
        self.target.clear()
        junk = [{j: j for j in range(i % 9)} for i in range(300)]

def node(i):
    made = Node()
    made.number, made.list = i, [i]
    return made

MAKE = (lambda i: {**{f"k{j}": [j] for j in range(30)}, f"z{i}": i}), node
results = set()
for i in range(600):
    gc.disable()
    target = [MAKE[i % 2](i) for _ in range(3)]
    Bomb(target)
    gc.enable()
    gc.set_threshold(gc.get_count()[0] + i % 40, 1, 1)
    try:
        results.add(len(headrace.freeze(target)))
    except RuntimeError as error:
        results.add("was changed while it was being frozen" in str(error))
print(sorted(map(repr, results)))
"""


def test_list_emptied_while_frozen_is_complete_or_an_error() -> None:
    environ = {**os.environ, "PYTHONMALLOC": "debug"}  # what is freed is overwritten
    done = subprocess.run([sys.executable, "-c", EMPTIED_BY_A_FINALIZER], capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (0, "['0', '3', 'True']\n"), done.stderr


def test_enum_member_is_known_by_its_name_for_any_value() -> None:
    frozen = headrace.freeze([ft.Reader.BYTES, ft.Access.READ | ft.Access.WRITE])
    assert frozen[0] is ft.Reader.BYTES and frozen[1] == ft.Access.READ | ft.Access.WRITE


class _Meddler:
    """An object that calls a function when it is pickled."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __reduce__(self) -> Any:
        self.act()
        return int, ()


@pytest.mark.parametrize("other", [threading.Lock(), ft.Key(1), ft.Point(1)], ids=["lock", "key", "tuple"])
def test_record_whose_class_changes_while_frozen_is_an_error(other: Any) -> None:
    nodes: Any = [ft.Node(i) for i in range(3)]
    nodes[0].value = _Meddler(lambda: nodes.__setitem__(1, other))
    with pytest.raises(RuntimeError, match="was changed while"):
        headrace.freeze(nodes, on_unknown="pickle")


def test_text_is_not_cached_in_the_users_strings() -> None:
    texts = ["é" * 1000 + str(i) for i in range(100)]
    before = [sys.getsizeof(text) for text in texts]
    headrace.freeze([*texts, {text: text for text in texts}, texts])
    assert [sys.getsizeof(text) for text in texts] == before


def test_ctrl_c_ends_a_long_freeze(tmp_path: pathlib.Path) -> None:
    code = """
import headrace, os, signal, threading, _thread
value = [[str(i), i] for i in range(3_000_000)]
def interrupt(size):
    os.kill(os.getpid(), signal.SIGINT)
try:
    headrace.freeze(value, progress=interrupt)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "interrupted\n", done.stderr


def test_progress_is_reported_in_bytes() -> None:
    counts: list[int] = []
    headrace.freeze([[str(i)] for i in range(300_000)], progress=counts.append)
    assert counts and counts == sorted(counts)


@pytest.mark.parametrize("kind", ["texts", "arrays", "bytes in a dict"])
def test_progress_is_reported_within_texts_and_between_arrays(kind: str) -> None:
    value: Any = [f"{i:080}" for i in range(500_000)]
    if kind == "arrays":
        value = [np.zeros(10_000_000, dtype="u1") for _ in range(5)]
    elif kind != "texts":
        value = {i: bytes(10_000_000) + bytes([i]) for i in range(5)}
    counts: list[int] = []
    headrace.freeze(value, progress=counts.append)
    assert (
        counts == sorted(counts) and len(counts) >= 2 and 1_000_000 < counts[0] < 25_000_000 < counts[-1] < 60_000_000
    )

    def stop(count: int) -> None:
        raise ValueError(f"enough after {count > 0}")

    with pytest.raises(ValueError, match="enough after True"):
        headrace.freeze(value, progress=stop)


def test_a_report_says_what_takes_the_room() -> None:
    records = [{"path": f"/data/{i:09d}.jpg", "boxes": [[0.5] * 4] * 3, "id": i} for i in range(1000)]
    frozen, report = headrace.freeze({"train": records, "blob": b"x" * 100_000}, report=True)
    assert report.bytes == _core.where(frozen)[0].bytes
    assert report.kinds["bytes"][0] == 1 and report.kinds["bytes"][1] >= 100_000
    assert report.kinds["record"][0] == 1001
    assert report.paths["obj['blob']"] >= 100_000
    assert report.paths["obj['train'][*]['path']"] >= 18_000
    assert report.paths["obj['train']"] > report.paths["obj['train'][*]['boxes']"] > 30_000
    assert "obj['train'][*]['path']" in str(report) and f"{report.bytes:,} bytes" in str(report)


# ---- files ----


def test_a_file_is_opened_again_and_checked(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.frozen"
    value = {"a": list(range(1000)), "b": "text"}
    frozen = headrace.freeze(value, path)
    assert frozen == value
    assert headrace.open(path) == value
    assert headrace.open(str(path), verify=True) == value
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(headrace.FrozenError):
        headrace.open(path, verify=True)
    path.write_bytes(data[:100])
    with pytest.raises(headrace.FrozenError):
        headrace.open(path)
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(headrace.FrozenError):
        headrace.open(path)
    with pytest.raises(FileNotFoundError):
        headrace.open(tmp_path / "missing")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink(os.devnull, path)], ids=["pipe", "device"])
def test_a_pipe_or_a_device_in_the_place_of_the_file_stays(tmp_path: pathlib.Path, make: Any) -> None:
    make(tmp_path / "there")
    before = os.stat(tmp_path / "there")
    with pytest.raises(
        FileExistsError, match=r"it cannot be made in .*there: File exists, and it is not a regular file"
    ):
        headrace.freeze([1], tmp_path / "there")
    assert os.stat(tmp_path / "there").st_ino == before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@needs_failpoints
def test_without_descriptors_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "memfd_create:EMFILE,shm_open:EMFILE,tmp_open:EMFILE")
    with pytest.raises(OSError, match=r"each freeze has a descriptor: .* raise the limit on open files \(ulimit -n\)"):
        headrace.freeze([1])


def test_folder_instead_of_the_file_is_refused_before_writing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(IsADirectoryError, match="it cannot be made in"):
        headrace.frozen.Builder(tmp_path)
    with pytest.raises(IsADirectoryError, match="it cannot be made in"):
        headrace.freeze([1], tmp_path)


def test_path_with_a_null_character_is_refused(tmp_path: pathlib.Path) -> None:
    """The path is refused; it is not cut off at the null character."""
    with pytest.raises(ValueError, match="null"):
        headrace.freeze([1], f"{tmp_path}/a\0b")
    with pytest.raises(ValueError, match="null"):
        headrace.frozen.Builder(f"{tmp_path}/a\0b")
    assert not os.listdir(tmp_path)


def test_a_freeze_that_fails_leaves_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError):
        headrace.freeze([threading.Lock()], tmp_path / "x.frozen")
    assert os.listdir(tmp_path) == []


UNTRUSTED = """
import headrace, sys
path, name = sys.argv[1:]
frozen = headrace.open(path)
try:
    frozen[name]
except headrace.FrozenError as error:
    print("refused:", error)
assert "frozen_types" not in sys.modules
print(type(headrace.open(path, trust=True)[name]).__name__)
"""


@pytest.mark.parametrize(
    ("value", "why", "kind"),
    [
        (ft.Scan("a", [1]), "import 'frozen_types' first", "Scan"),
        (ft.Colour.RED, "import 'frozen_types' first", "Colour"),
        (ft.OwnReduce(1), "runs code", "OwnReduce"),
        (os.getcwd, "trust=True", "builtin_function_or_method"),
    ],
    ids=["class", "enum", "pickle", "function"],
)
def test_a_file_runs_no_code_unless_it_is_trusted(tmp_path: pathlib.Path, value: Any, why: str, kind: str) -> None:
    path = tmp_path / "x.frozen"
    headrace.freeze({"v": value}, path, on_unknown="pickle")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.path.dirname(ft.__file__), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", UNTRUSTED, str(path), "v"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.splitlines()[-1] == kind, done.stderr
    assert "refused:" in done.stdout and why in done.stdout


def test_a_fraction_that_a_file_spells_out_is_not_computed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.frozen"
    monkeypatch.setitem(tables.TYPES, fractions.Fraction, ("Fraction", lambda value: ("1e9999999999", None)))
    headrace.freeze([fractions.Fraction(1, 3)], path)
    with pytest.raises(headrace.FrozenError, match="Fraction"):
        headrace.open(path)[0]


def test_every_byte_of_a_small_frozen_data_may_be_flipped(tmp_path: pathlib.Path) -> None:
    value = {
        "a": [1, 2.5, "text", "é", (1, 2), {3, "x"}, frozenset([1])],
        "b": {i: [i] for i in range(12)},
        "c": [ft.Scan("n", [1]), ft.Point(1, 2), ft.Colour.RED, decimal.Decimal(1)],
        "d": np.arange(4.0),
        "e": [{"x": i, "y": str(i)} for i in range(3)],
        "f": collections.Counter("ab"),
        "g": 2**100,
        "h": [str(i) * 3 for i in range(20)],
    }
    path = tmp_path / "x.frozen"
    headrace.freeze(value, path)
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            back = headrace.open(path)
            headrace.thaw(back)
            for key in back:
                str(back[key])
        except (headrace.FrozenError, TypeError, MemoryError, UnicodeEncodeError, ValueError, AttributeError, KeyError):
            pass  # TypeError: a key became a list


def test_a_key_that_python_could_not_hash_is_refused() -> None:
    deep: Any = ()
    for _ in range(300_000):
        deep = (deep,)
    wide: Any = (1,)
    for _ in range(60):
        wide = (wide, wide)
    for value in (deep, wide):
        view = headrace.freeze([value])
        with pytest.raises(headrace.FrozenError, match="too large to be hashed"):
            hash(view[0])
        assert len(headrace.thaw(view)[0]) == len(value)
