# SPDX-License-Identifier: Apache-2.0
"""Views read as what was frozen reads, and cannot be written."""

from __future__ import annotations

import collections
import collections.abc
import copy
import decimal
import gc
import json
import math
import operator
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import frozen_types as ft
import headrace
import numpy as np
import pytest
import torch
from drawn import draws
from headrace import _core
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

READ = settings(max_examples=draws(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])

LISTS: list[Any] = [
    [],
    list(range(50)),
    [i * 2**40 for i in range(50)],
    [i / 7 for i in range(50)],
    [f"text {i}" for i in range(50)],
    [f"\u00e9\ud800{i}" for i in range(50)],
    [b"%d" % i for i in range(50)],
    [{"a": i, "b": [i]} for i in range(50)],
    [None, True, 1, "x", [1], (2,), {"k": 1}, {1}, 2**70, decimal.Decimal(1)],
    [[i] for i in range(50)],
    [ft.Key(i) for i in range(50)],
]
DICTS: list[Any] = [
    {},
    {"a": 1, "b": [2], "c": {"d": 3}},
    {f"key {i}": i for i in range(500)},
    {i: str(i) for i in range(500)},
    {i / 4: i for i in range(500)},
    {(i, str(i)): i for i in range(500)},
    {None: 1, True: 2, 2.5: 3, b"x": 4, "x": 5, (1, (2, "y")): 6},
    {decimal.Decimal(i): i for i in range(20)},
    {ft.Key(i): i for i in range(20)},
    {(ft.Colour.RED, i): i for i in range(20)},
    {frozenset([i]): i for i in range(20)},
    {f"\u00e9{i}": i for i in range(100)},
    {"\u65e5" * 300: 1, **{i: i for i in range(100)}},
    {2**70: 1, -(2**70): 2, 3: 3},
]
SETS: list[Any] = [set(), {1, 2, 3}, {f"x{i}" for i in range(200)}, frozenset([1, (2, 3)]), {decimal.Decimal(1), None}]


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a call, or the type of its exception."""
    try:
        return headrace.thaw(function(*arguments))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("value", LISTS + [tuple(value) for value in LISTS], ids=lambda value: repr(value)[:25])
def test_a_list_or_tuple_reads_as_the_original(value: Any) -> None:
    view = headrace.freeze(value)
    assert isinstance(view, collections.abc.Sequence)
    assert not isinstance(view, collections.abc.MutableSequence)
    assert len(view) == len(value) and bool(view) == bool(value)
    assert view == value and value == view and operator.ne(view, value) is False
    assert repr(view) == repr(value) and str(view) == str(value)
    assert [headrace.thaw(item) for item in view] == list(value)
    assert [headrace.thaw(item) for item in reversed(view)] == list(reversed(value))
    for index in (
        0,
        1,
        -1,
        len(value) - 1,
        len(value),
        -len(value),
        -len(value) - 1,
        2**70,
        -(2**70),
        True,
        np.int64(1),
    ):
        assert outcome(operator.getitem, view, index) == outcome(operator.getitem, value, index)
    for bad in ("a", 1.0, None):
        assert outcome(operator.getitem, view, bad) is TypeError
    for item in list(value)[:3]:
        assert item in view and view.index(item) == value.index(item) and view.count(item) == value.count(item)
    assert "nothing like it" not in view
    assert outcome(view.index, "nothing like it") is ValueError
    for bounds in ((0, 2**70), (-(2**70),), (-(2**70), 2**70), (2**70,), (1, -1), (None,), (1.0,)):
        for item in list(value)[:2]:
            assert outcome(view.index, item, *bounds) == outcome(value.index, item, *bounds)
    assert outcome(hash, view) == outcome(hash, value)
    assert view + value == value + value == value + view
    assert view * 2 == value * 2 == 2 * view


@pytest.mark.parametrize("value", LISTS, ids=lambda value: repr(value)[:25])
def test_a_slice_is_a_view_of_the_same_frozen_data(value: Any) -> None:
    view = headrace.freeze(value)
    for part in (
        slice(None),
        slice(3, 9),
        slice(None, None, -1),
        slice(-3, None),
        slice(40, 5, -7),
        slice(9, 3),
        slice(1, 2**70),
    ):
        got, wanted = view[part], value[part]
        assert got == wanted and list(got) == wanted and len(got) == len(wanted)
        assert headrace.thaw(got) == wanted and type(headrace.thaw(got)) is list
        assert got[::2] == wanted[::2] and got[1:][::-1] == wanted[1:][::-1]
        assert list(reversed(got)) == list(reversed(wanted))
        assert got.get_many(list(range(len(wanted)))) == wanted
        assert _core.where(got)[0] is _core.where(view)[0]
    assert outcome(operator.getitem, view, slice(None, None, 0)) is ValueError


@pytest.mark.parametrize("value", DICTS, ids=lambda value: repr(value)[:25])
def test_a_dict_reads_as_the_original(value: Any) -> None:
    view = headrace.freeze(value)
    assert isinstance(view, collections.abc.Mapping)
    assert not isinstance(view, collections.abc.MutableMapping)
    assert len(view) == len(value) and bool(view) == bool(value)
    assert view == value and value == view
    assert repr(view) == repr(value)
    assert list(view) == list(value) and list(reversed(view)) == list(reversed(value))
    assert {**view} == value and dict(view) == value
    for key in value:
        assert view[key] == value[key] and view.get(key) == value[key] and key in view
    assert view.get_many(list(value)) == list(value.values())
    keys = [
        0,
        1,
        1.0,
        True,
        False,
        None,
        "a",
        "key 3",
        "key",
        b"x",
        "x",
        2.5,
        2.0**70,
        2**70,
        (1, (2, "y")),
        (1,),
        (),
        -0.0,
    ]
    keys += [
        math.nan,
        "\ud800",
        ft.Key(3),
        ft.Colour.RED,
        decimal.Decimal(1),
        1 + 0j,
        frozenset([1]),
        object(),
        range(3),
    ]
    keys += [np.int64(3), np.float64(2.5), np.str_("a"), np.bool_(True), ft.MyStr("a"), ft.Level.LOW, [], {}, (1, [])]
    for key in keys:
        assert outcome(operator.getitem, view, key) == outcome(operator.getitem, value, key), key
        assert outcome(operator.contains, view, key) == outcome(operator.contains, value, key), key
        assert outcome(view.get, key, 7) == outcome(value.get, key, 7), key
        assert outcome(view.get_many, [key]) == outcome(lambda key: [value[key]], key), key
    assert view.get_many(["none such"] * 3, 5) == [5, 5, 5]
    assert hash_is_refused(view)


def hash_is_refused(view: Any) -> bool:
    return outcome(hash, view) is TypeError


@pytest.mark.parametrize("value", DICTS[1:4], ids=lambda value: repr(value)[:25])
def test_keys_values_and_items_are_those_of_a_dict(value: Any) -> None:
    view = headrace.freeze(value)
    for name, abc in (
        ("keys", collections.abc.KeysView),
        ("values", collections.abc.ValuesView),
        ("items", collections.abc.ItemsView),
    ):
        got, wanted = getattr(view, name)(), getattr(value, name)()
        assert isinstance(got, abc)
        assert len(got) == len(wanted) and list(got) == list(wanted) and repr(got) == repr(wanted)
        assert list(reversed(got)) == list(reversed(wanted))
        assert next(iter(wanted)) in got and "nothing" not in got and ("nothing", 1) not in got
    for pair in value.items():
        assert pair in view.items() and headrace.freeze(pair) in view.items()
        assert headrace.freeze((*pair, 1)) not in view.items() and list(pair) not in view.items()
    assert view.keys() == value.keys() and value.keys() == view.keys()
    assert view.keys() & {"a", 3} == value.keys() & {"a", 3}
    assert view.keys() - value.keys() == set()
    assert view.keys().isdisjoint([]) and not view.keys().isdisjoint(value)
    assert view | {"more": 1} == value | {"more": 1}


@pytest.mark.parametrize("value", SETS, ids=lambda value: repr(value)[:25])
def test_a_set_reads_as_the_original(value: Any) -> None:
    view = headrace.freeze(value)
    assert isinstance(view, collections.abc.Set)
    assert len(view) == len(value) and view == value and value == view
    assert set(view) == set(value) and sorted(map(repr, view)) == sorted(map(repr, value))
    for item in [*value, 1, 1.0, "x1", (2, 3), "nothing", decimal.Decimal(1), []]:
        assert outcome(operator.contains, view, item) == outcome(operator.contains, value, item)
    assert view <= value and view >= value and not view < value
    assert (
        view | {9} == value | {9}
        and view & {1} == value & {1}
        and view - {1} == value - {1}
        and view ^ {1} == value ^ {1}
    )
    assert view.union([9]) == value.union([9]) and view.isdisjoint(["zz"]) and view.issubset(value)
    assert outcome(hash, view) == outcome(hash, value)


def test_containers_with_a_type_keep_it() -> None:
    queue, counter = collections.deque([1, [2]], 4), collections.Counter("hello")
    ordered, default = collections.OrderedDict(b=1, a=2), collections.defaultdict(list, {"a": [1]})
    views = headrace.freeze({"q": queue, "c": counter, "o": ordered, "d": default})
    for name, value in (("q", queue), ("c", counter), ("o", ordered), ("d", default)):
        view = views[name]
        assert view == value and value == view and repr(view) == repr(value) and len(view) == len(value)
        assert type(headrace.thaw(view)) is type(value)
        assert type(copy.copy(view)) is type(value) and copy.copy(view) == value
    assert views["q"][1][0] == 2 and views["q"] != [1, [2]]
    for operate in (operator.add, operator.sub, operator.and_, operator.or_):
        assert operate(views["c"], collections.Counter("lox")) == operate(counter, collections.Counter("lox"))
        assert operate(collections.Counter("lox"), views["c"]) == operate(collections.Counter("lox"), counter)
        assert outcome(operate, views["d"], {"b": 1}) == outcome(operate, default, {"b": 1})
    assert +views["c"] == +counter and -views["c"] == -counter and outcome(operator.neg, views["d"]) is TypeError
    assert views["c"]["z"] == 0 and "z" not in views["c"] and views["c"]["l"] == 2
    assert views["o"] != collections.OrderedDict(a=2, b=1) and views["o"] == {"a": 2, "b": 1}
    with pytest.raises(KeyError):
        views["d"]["none"]


NESTED = st.deferred(
    lambda: (
        st.integers() | st.text() | st.floats(allow_nan=False) | st.none() | st.binary()
        | st.lists(NESTED) | st.dictionaries(st.text() | st.integers(), NESTED) | st.tuples(NESTED, NESTED)
    )
)  # fmt: skip


@READ
@given(st.lists(NESTED))
def test_any_nesting_reads_equal_and_prints_equal(value: Any) -> None:
    view = headrace.freeze(value)
    assert view == value and value == view
    for got, wanted in zip(view, value, strict=True):
        assert got == wanted and wanted == got
        assert repr(got) == repr(wanted)
    assert view != [*value, 1] and [*value, 1] != view


KEYS = st.text() | st.integers() | st.floats(allow_nan=False) | st.tuples(st.text(), st.integers())


@READ
@given(st.dictionaries(KEYS, st.integers()), st.lists(st.text() | st.integers() | st.floats()))
def test_any_key_is_found_or_missed_as_in_a_dict(value: Any, others: list[Any]) -> None:
    view = headrace.freeze(value)
    for key in [*value, *others]:
        assert view.get(key, None) == value.get(key, None)
    assert list(view.items()) == list(value.items())


# ---- writes ----


def test_unhashable_key_behaves_as_in_a_dict_or_set() -> None:
    sets = headrace.freeze({frozenset({1}), 2})
    assert {1} in sets and {2} not in sets
    assert headrace.freeze({1}) in sets and headrace.freeze({2}) not in sets
    with pytest.raises(TypeError, match="unhashable"):
        [] in sets  # noqa: B015
    mapping = headrace.freeze({1: "a", "b": 2})
    assert mapping[np.int64(1)] == "a"
    for key in (np.array(1), {1}, []):
        with pytest.raises(TypeError, match="unhashable"):
            mapping[key]
        with pytest.raises(TypeError, match="unhashable"):
            mapping.get_many([key])


def test_missing_key_raises_as_in_a_dict() -> None:
    for value in ({1: 2, "a": 3}, {"a": 1, "b": 2}, {frozenset(): 1}):
        view = headrace.freeze(value)
        for key in ("none", (1, 2), (), None, ((),)):
            with pytest.raises(KeyError) as expected:
                value[key]  # type: ignore[index]
            with pytest.raises(KeyError) as caught:
                view[key]
            assert caught.value.args == expected.value.args
            with pytest.raises(KeyError) as caught:
                view.get_many([key])
            assert caught.value.args == expected.value.args


def test_write_is_refused_with_a_way_out() -> None:
    typed = {
        "counter": collections.Counter("a"),
        "ordered": collections.OrderedDict(a=1),
        "deque": collections.deque([1]),
    }
    view = headrace.freeze({"list": [1, 2], "set": {1}, "tuple": (1,), **typed})
    writes: list[Callable[[], Any]] = [
        lambda: view.update(a=1),
        lambda: view.pop("list"),
        lambda: view.setdefault("x", []),
        lambda: operator.setitem(view, "a", 1),
        lambda: operator.delitem(view, "a"),
        lambda: view["list"].append(3),
        lambda: view["list"].sort(),
        lambda: operator.setitem(view["list"], 0, 1),
        lambda: operator.delitem(view["list"], slice(0, 1)),
        lambda: view["set"].add(2),
        lambda: operator.setitem(view["counter"], "a", 5),
        lambda: operator.setitem(view["tuple"], 0, 5),
        lambda: view["set"].difference_update({1}),
        lambda: view["set"].intersection_update({1}),
        lambda: view["set"].symmetric_difference_update({1}),
        lambda: view["counter"].subtract("a"),
        lambda: view["ordered"].move_to_end("a"),
        lambda: view["deque"].rotate(1),
        lambda: view["deque"].extendleft([1]),
    ]
    for write in writes:
        with pytest.raises(
            TypeError, match=r"this (list|dict|set|tuple|Counter|OrderedDict|deque) is frozen.*headrace\.thaw"
        ):
            write()
    assert view["list"] == [1, 2]
    with pytest.raises(TypeError):
        type(view)()
    with pytest.raises(AttributeError):
        view.attribute = 1


def test_arrays_are_read_only_views_that_keep_the_frozen_data() -> None:
    view = headrace.freeze({"a": np.arange(5), "s": np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")])})
    array, other = view["a"], view["a"]
    assert not array.flags.writeable and not array.flags.owndata
    assert array.ctypes.data == other.ctypes.data and array.ctypes.data % 64 == 0
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True
    del view, other
    gc.collect()
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_torch_write_to_an_array_does_not_reach_the_frozen_data() -> None:
    code = """
import headrace, numpy, os, torch
view = headrace.freeze({"a": numpy.arange(5)})
pid = os.fork()
if pid == 0:
    torch.from_numpy(view["a"]).add_(1)  # torch ignores that an array is read-only
    os._exit(int(view["a"][0]))
print(os.waitpid(pid, 0)[1], view["a"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "256 [0, 1, 2, 3, 4]\n", done.stderr


def test_an_array_of_objects_keeps_its_shape() -> None:
    row = np.array([1, "a", None], dtype=object)
    table = np.array([[1, "a"], [None, [2]], [3.0, (4,)]], dtype=object)
    single = np.array({"a": 1}, dtype=object)
    views = headrace.freeze([row, table, single, 0])
    assert type(views[0]) is _core.FrozenList and list(views[0]) == [1, "a", None]
    assert views[1].shape == (3, 2) and views[1].dtype == object and views[1][1, 1] == [2] and len(views[1]) == 3
    assert views[2].shape == () and views[2].item() == {"a": 1}


def test_a_tensor_can_be_written_and_the_frozen_data_is_not() -> None:
    view = headrace.freeze([torch.arange(4), torch.arange(4.0).bfloat16()])
    tensor = view[0]
    tensor += 10
    assert tensor.tolist() == [10, 11, 12, 13]
    assert view[0].tolist() == [10, 11, 12, 13], "as of any tensor that this process has"
    assert headrace.thaw(view)[0].tolist() == [0, 1, 2, 3], "the image itself"
    assert view[1].dtype is torch.bfloat16 and view[1].tolist() == [0.0, 1.0, 2.0, 3.0]
    del view
    gc.collect()
    assert tensor.sum().item() == 46


# ---- instances ----


def test_an_instance_is_one_of_its_class_made_without_init() -> None:
    nodes = [ft.Node(i, {"k": [i]}) for i in range(3)]
    view = headrace.freeze(nodes)
    before = ft.Node.made
    node = view[1]
    assert type(node) is ft.Node and ft.Node.made == before
    assert node.value == 1 and node.twice == 2 and node.thrice == 3
    assert isinstance(node.next, _core.FrozenDict) and node.next == {"k": [1]}
    node.value = 50
    node.more = 1
    assert view[1].value == 1 and not hasattr(view[1], "more")


def test_instances_of_all_plain_kinds_have_their_fields() -> None:
    scan = ft.Scan("s", np.arange(3), {"a": 1})
    view = headrace.freeze(
        {"scan": scan, "key": ft.Key(1, "x"), "slots": ft.Slotted(1, [2]), "both": ft.Both(1, [2], c=3),
         "guarded": ft.Guarded(41), "box": ft.GenericClass([1]), "point": ft.Point(1, [2]), "long": ft.LongPoint(3, 4)}
    )  # fmt: skip
    assert view["scan"].count() == 3 and not view["scan"].points.flags.writeable
    assert view["key"] == ft.Key(1, "x") and hash(view["key"]) == hash(ft.Key(1, "x"))
    assert view["slots"] == ft.Slotted(1, [2]) and type(view["slots"].b) is _core.FrozenList
    assert view["both"] == ft.Both(1, [2], c=3)
    assert view["guarded"].hidden == 42 and view["guarded"].__dict__ == {"hidden": 41}
    assert view["box"].content == [1]
    assert type(view["point"]) is ft.Point and view["point"].x == 1 and view["point"] == (1, [2])
    assert view["long"].norm() == 5


def test_fields_that_were_never_set_stay_unset() -> None:
    half = ft.Slotted.__new__(ft.Slotted)
    half.a = 1
    back = headrace.freeze([half, ft.Slotted(1, 2)])
    assert back[0].a == 1 and not hasattr(back[0], "b") and back[1].b == 2


def test_an_instance_thaws_to_an_ordinary_one() -> None:
    scan = headrace.thaw(headrace.freeze(ft.Scan("s", [1, np.arange(3)], ft.Both(1, {2}, c=(3,)))))
    assert type(scan.points) is list and scan.points[1].flags.writeable
    assert scan.tags == ft.Both(1, {2}, c=(3,)) and type(scan.tags.b) is set
    node = headrace.freeze(ft.Node(1))
    node.next = node
    assert headrace.thaw(node).next.next.value == 1


# ---- many at once ----


def test_get_many_takes_lists_arrays_and_tensors() -> None:
    value = [f"text {i}" for i in range(1000)]
    view = headrace.freeze(value)
    order = random.Random(0).sample(range(-1000, 1000), 700)
    wanted = [value[i] for i in order]
    for many in (order, tuple(order), np.array(order), torch.tensor(order), iter(order), np.array(order, dtype="i2")):
        assert view.get_many(many) == wanted
    assert view.get_many([]) == []
    with pytest.raises(IndexError, match="1000"):
        view.get_many([0, 1000])
    with pytest.raises(TypeError):
        view.get_many(["a"])
    with pytest.raises(TypeError):
        view.get_many(5)
    for mask in (np.arange(1000) < 3, torch.arange(1000) < 3, [True, False]):
        with pytest.raises(TypeError, match="not a mask; numpy"):
            view.get_many(mask)
    mapping = headrace.freeze({text: i for i, text in enumerate(value)})
    assert mapping.get_many(wanted) == [i % 1000 for i in order]
    assert mapping.get_many(np.array(wanted)) == [i % 1000 for i in order]
    with pytest.raises(KeyError, match="none"):
        mapping.get_many(["text 1", "none"])
    with pytest.raises(TypeError):
        mapping.get_many([[]])


def test_index_that_empties_the_list_of_indices_is_an_error() -> None:
    view = headrace.freeze(list(range(10)))
    indices: list[Any] = []

    class Index:
        def __init__(self, number: int) -> None:
            self.number = number

        def __index__(self) -> int:
            indices.clear()
            return self.number

    indices += [Index(99)]
    with pytest.raises(IndexError, match="Index object"):
        view.get_many(indices)
    indices += [Index(1), 2]
    with pytest.raises(RuntimeError):
        view.get_many(indices)


def test_two_threads_may_look_for_keys_that_run_code() -> None:
    code = """
import threading
import headrace
building, comparing, done = threading.Event(), threading.Event(), threading.Event()
class Key:
    def __init__(self, number): self.number = number
    def __hash__(self):
        if threading.current_thread() is not threading.main_thread():
            building.set()
            comparing.wait(60)
        return 1
    def __eq__(self, other):
        if threading.current_thread() is threading.main_thread():
            comparing.set()
            done.wait(60)
        return self.number == other.number
view = headrace.freeze({Key(1): "one"})
def look():
    assert Key(2) not in view
    done.set()
thread = threading.Thread(target=look)
thread.start()
building.wait(60)
print(view[Key(1)])
thread.join()
"""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}  # what was freed is overwritten
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    assert done.stdout == "one\n", done.stderr


def test_a_column_is_an_array_or_a_frozen_list() -> None:
    records = [{"path": f"p{i}", "size": i, "score": i / 2, "ok": i % 2 == 0, "box": [i]} for i in range(100)]
    view = headrace.freeze(records)
    assert view.column("path") == [f"p{i}" for i in range(100)]
    assert isinstance(view.column("path"), _core.FrozenList)
    assert view.column("size").dtype == np.int64 and view.column("size").tolist() == list(range(100))
    assert view.column("score").dtype == np.float64 and view.column("ok").dtype == np.bool_
    assert view[10:20].column("size").tolist() == list(range(10, 20))
    assert view.column("box")[3] == [3]
    assert headrace.freeze([ft.Key(i) for i in range(9)]).column("a").tolist() == list(range(9))
    assert headrace.freeze([{"a": 2**70}, {"a": 1}]).column("a") == [2**70, 1]
    with pytest.raises(KeyError):
        view.column("none")
    kept = headrace.freeze([{"a": ft.MyStr(i)} for i in range(3)], on_unknown="pickle")
    assert kept.column("a") == ["0", "1", "2"] and type(kept.column("a")[0]) is ft.MyStr


# ---- with others ----


def test_copies_are_ordinary() -> None:
    view = headrace.freeze({"a": [1, {"b": 2}], "t": (1, [2])})
    shallow = copy.copy(view)
    assert type(shallow) is dict and shallow == view and isinstance(shallow["a"], _core.FrozenList)
    assert type(view.copy()) is dict and type(view["a"].copy()) is list
    deep = copy.deepcopy(view)
    assert type(deep["a"]) is list and type(deep["t"]) is tuple and deep == view
    deep["a"][1]["b"] = 3
    assert view["a"][1]["b"] == 2


def test_json_and_collate_take_them() -> None:
    value = [{"a": [1, 2.5, "x"], "b": {"c": None}} for _ in range(3)]
    view = headrace.freeze(value)
    assert json.dumps(headrace.thaw(view)) == json.dumps(value)
    samples = headrace.freeze([{"x": np.arange(3.0), "y": i, "box": (i, 2.0), "t": torch.arange(2)} for i in range(4)])
    batch = default_collate([samples[i] for i in range(4)])
    assert batch["x"].shape == (4, 3) and batch["y"].tolist() == [0, 1, 2, 3]
    assert batch["box"][0].tolist() == [0, 1, 2, 3] and batch["t"].shape == (4, 2)


def test_views_can_be_frozen_again() -> None:
    view = headrace.freeze({"a": [1, 2], "s": ft.Scan("x", [1])})
    again = headrace.freeze([view, view["a"][1:], view["s"]])
    assert again[0]["a"] == [1, 2] and again[1] == [2] and again[2].points == [1]
    assert _core.where(again)[0] is not _core.where(view)[0]


def test_pattern_matching_sees_sequences_and_mappings() -> None:
    code = """
import headrace
match headrace.freeze({"kind": "box", "at": [1, 2]}):
    case {"kind": "box", "at": [x, y]}:
        print(x, y)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 2\n", done.stderr


def test_numpy_and_torch_are_not_needed() -> None:
    code = """
import sys, headrace
view = headrace.freeze({"a": [1, 2.5, "x"], "b": {1: (2,)}})
assert headrace.thaw(view) == {"a": [1, 2.5, "x"], "b": {1: (2,)}}
assert view["a"].get_many([0, 2]) == [1, "x"]
print([name for name in ("numpy", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_reading_leaves_nothing_behind() -> None:
    view = headrace.freeze(
        [{"id": i, "path": f"p{i}", "box": [i / 3] * 4, "scan": ft.Key(i, (i,))} for i in range(1000)]
    )
    index = headrace.freeze({f"k{i}": [i] for i in range(1000)})

    def read() -> None:
        for record in view:
            assert record["box"][1] == record["id"] / 3 and record["scan"].b[0] == record["id"]
        assert all(index[f"k{i}"][0] == i for i in range(1000))
        assert len(view.get_many(range(1000))) == 1000 and repr(view) and view == headrace.thaw(view)

    read()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(5):
        read()
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


def test_an_frozen_data_goes_with_its_last_view(tmp_path: pathlib.Path) -> None:
    def mapped() -> int:
        return pathlib.Path("/proc/self/maps").read_text().count("train.frozen")

    headrace.freeze([["x"] * 3, np.arange(3)], tmp_path / "train.frozen")
    view = headrace.open(tmp_path / "train.frozen")
    part, array = view[0], view[1]
    assert mapped() > 0
    del view
    assert part[1] == "x" and os.path.exists(tmp_path / "train.frozen")
    del part
    assert mapped() > 0 and array[2] == 2
    del array
    gc.collect()
    assert mapped() == 0
