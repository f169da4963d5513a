# SPDX-License-Identifier: Apache-2.0
"""Thawing shared objects and circles: keys that are hashed early, NaN, pickles, parts of views."""

from __future__ import annotations

import collections
import math
import os
import pickle
import subprocess
import sys
import types
from typing import Any

import frozen_types as ft
import headrace
import numpy as np
import pytest
import torch


def there_and_back(value: Any) -> Any:
    return headrace.thaw(headrace.freeze(value, on_unknown="pickle"))


# ---- circles ----


@pytest.mark.parametrize(
    "other", [math.nan, complex(0, math.nan), ft.MyStr("kept as a pickle"), np.float32("nan")], ids=repr
)
def test_instance_that_refers_to_itself_keeps_its_circle(other: Any) -> None:
    """An instance that leads back to itself does so after the thaw, whatever its other fields are."""
    for first in (True, False):
        node = ft.Node()
        node.__dict__.clear()
        if first:
            node.other = other
        node.next = [node, (node,), {"a": node}, {1: node}, {node}, frozenset([node]), {node: node}, ft.Point(node)]
        node.other = other
        back = there_and_back([node])[0]
        held = [held[0] for held in (back.next[1], [*back.next[4]], [*back.next[5]], [*back.next[6]], back.next[7])]
        assert all(one is back for one in (back.next[0], back.next[2]["a"], back.next[3][1], *held))
        assert back.next[6][back] is back and back in back.next[4] and back in back.next[5]
        assert list(vars(back)) == list(vars(node))
        assert repr(back.other) == repr(other) and type(back.other) is type(other)


@pytest.mark.parametrize(
    "wrap", [lambda one: {one}, lambda one: {one: 1}, lambda one: {(one, 1)}, lambda one: {(0, (one,)): 1}]
)
def test_item_of_a_set_that_it_holds_keeps_hash_or_is_refused(wrap: Any) -> None:
    whole, early = ft.ByFields(), ft.ByFields()
    whole.name = early.name = "a name"
    whole.held = wrap(whole)  # type: ignore[attr-defined]
    del early.name
    early.held, early.name = None, "a name"  # type: ignore[attr-defined]
    early.held = wrap(early)  # type: ignore[attr-defined]
    back = there_and_back([whole])[0]
    assert next(iter(back.held)) in back.held and next(iter(wrap(back))) in back.held
    for one in (early, [early], {1: [early]}):
        frozen = headrace.freeze([one])
        with pytest.raises(headrace.FrozenError, match=r"a (ByFields|tuple) is an item of a set.* contains itself"):
            headrace.thaw(frozen)


def test_incomplete_tuple_in_a_set_of_its_own_is_refused() -> None:
    """A tuple that is in a set which it leads to is refused while it is incomplete."""
    node = ft.Node()
    pair = (1, node, 2)
    node.value = {pair}
    with pytest.raises(headrace.FrozenError, match="a tuple is an item of a set"):
        there_and_back([pair])
    back = there_and_back([node])[0]
    assert next(iter(back.value)) in back.value


def test_exception_of_hash_of_incomplete_object_is_explained() -> None:
    key = ft.Key("a")
    object.__setattr__(key, "b", [key])
    group = {ft.Node(key)}
    assert len(there_and_back(group)) == 1
    early = object.__new__(ft.Key)
    object.__setattr__(early, "a", ft.Node({}))
    object.__setattr__(early, "b", 1)
    early.a.value[early] = 1
    with pytest.raises(headrace.FrozenError, match=r"a Key is an item of a set, or a key.*no attribute 'a'"):
        there_and_back([early])


def test_frozenset_in_a_circle_is_thawed_completely_or_refused() -> None:
    node = ft.Node()
    node.next = frozenset([node, ft.Node(1)])
    back = there_and_back([node])[0]
    assert back in back.next and len(back.next) == 2
    with pytest.raises(headrace.FrozenError, match=r"frozenset.* contains itself"):
        there_and_back([node.next])
    assert {type(one) for one in headrace.freeze([node.next])[0]} == {ft.Node}  # each read on its own


# ---- what is shared ----


def test_fields_of_an_instance_share_what_they_shared() -> None:
    items, inner, data = [1], {"k": [2]}, np.arange(3)
    tensor = torch.arange(3)
    node = ft.Node(items, [items, inner])
    node.same, node.k, node.data = items, inner["k"], [data, data]  # type: ignore[attr-defined]
    node.array, node.array2, node.tensor, node.tensor2 = data, data, tensor, tensor  # type: ignore[attr-defined]
    node.nested = ft.Node(items, ft.Point(items, data))  # type: ignore[attr-defined]
    node.slots = ft.Slotted(items, node.nested)  # type: ignore[attr-defined]
    back = there_and_back(node)
    assert back.value is back.same is back.next[0] is back.nested.value is back.nested.next.x is back.slots.a
    assert back.k is back.next[1]["k"] and back.slots.b is back.nested
    assert back.array is back.array2 is back.nested.next.y and back.tensor is back.tensor2
    assert back.data[0] is back.data[1]
    back.value.append(2)
    back.array[0] = 7
    assert items == [1] and headrace.freeze(node).value == [1] and data[0] == 0


def test_instances_share_a_list_within_one_thaw() -> None:
    """The thawed object may be a list, a slice of it, or a dict."""
    items = [1]
    nodes = [ft.Node(items), ft.Node(items), (items, 1), {"a": items}]
    frozen = headrace.freeze([0, *nodes, 0])
    for back in (headrace.thaw(frozen)[1:-1], headrace.thaw(frozen[1:-1]), headrace.thaw(frozen[-2:0:-1])[::-1]):
        assert back[0].value is back[1].value is back[2][0] is back[3]["a"]
    assert headrace.thaw(headrace.freeze(tuple(nodes))[:2])[1].value == [1]


def test_views_from_two_files_in_one_instance_are_thawed() -> None:
    one, two = headrace.freeze([[1], [2]]), headrace.freeze({"a": [3]})
    node = ft.Node(one[0], [4])
    node.again, node.part, node.two = one[0], one[1:], two  # type: ignore[attr-defined]
    back = headrace.thaw(node)
    assert back.value == [1] and back.again is back.value and back.part == [[2]] and back.two == {"a": [3]}
    assert [type(one) for one in vars(back).values()] == [list, list, list, list, dict]


# ---- what else an object may have ----


def test_attributes_of_a_dict_of_its_own_kind_come_back() -> None:
    state, counts = torch.nn.Linear(2, 2).state_dict(), collections.Counter("aab")
    counts.total_of = [3]  # type: ignore[attr-defined]
    back, again = there_and_back([state, counts])
    assert list(back) == list(state) and back._metadata == state._metadata  # type: ignore[attr-defined]
    assert again == counts and again.total_of == [3]
    assert headrace.freeze(counts)["a"] == 2


def test_a_namespace_may_have_any_names_and_none_but_texts() -> None:
    space = types.SimpleNamespace(**{"a b": [1], "__class__": 2, "__dict__": 3})
    assert vars(there_and_back(space)) == vars(space)
    vars(space)[1] = 2  # type: ignore[index]
    with pytest.raises(TypeError, match="this instance has something that SimpleNamespace does not define"):
        headrace.freeze(space)


def test_tensor_with_attributes_is_refused_or_kept_as_a_pickle() -> None:
    tensor = torch.arange(2)
    tensor.origin = "a file"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"obj\[0\] is a Tensor.* no attributes of yours"):
        headrace.freeze([tensor])
    assert there_and_back([tensor])[0].origin == "a file"


def test_an_enum_may_have_a_name_and_a_value_of_its_own() -> None:
    assert there_and_back([ft.Named.ONE, ft.Named.TWO]) == [ft.Named.ONE, ft.Named.TWO]


FIRST_ARRAYS = """
import pickle, sys
import headrace
view = pickle.load(sys.stdin.buffer)
assert "torch" not in sys.modules
frozen, report = headrace.freeze([view], report=True)
assert not report.pickles and report.kinds["array"][0] == 3, report
assert b"torch" not in pickle.dumps(view["tensors"])
print(headrace.thaw(frozen)[0]["tensors"][0].sum())
"""


def test_tensor_view_is_frozen_again_before_torch_is_imported() -> None:
    view = headrace.freeze({"tensors": [torch.arange(4), torch.zeros(1)], "array": np.arange(2)})
    command = [sys.executable, "-c", FIRST_ARRAYS]
    done = subprocess.run(command, input=pickle.dumps(view), capture_output=True, timeout=100)
    assert done.stdout == b"tensor(6)\n", done.stderr.decode()


def test_embedded_frozen_data_is_loaded_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses memory files."""
    value = ["embedded", [1], "large" * 300_000]  # small ones need no memory file
    data = pickle.dumps(headrace.freeze(value))

    def refuse(*arguments: Any) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert pickle.loads(data) == value


# ---- keys that equal each other or nothing ----

NANS = [float("nan"), float("nan"), complex(math.nan, 0), complex(0, math.nan), (1, float("nan")), (1, float("nan"))]
KEYS: list[Any] = [0, True, 2.0, "1", b"1", None, 2**63, float(2**64), -(2.0**63), 1.5, (1, 2.0), (True, "x"), 3 + 0j]
ASKED = [
    0.0,
    -0.0,
    False,
    1,
    1.0,
    1 + 0j,
    True,
    2,
    2 + 0j,
    "1",
    b"1",
    None,
    2.0**63,
    2**64,
    -(2**63),
    (1.0, 2),
    (1, "x"),
    3,
    3.0,
]


@pytest.mark.parametrize(
    "keys", [NANS, KEYS, NANS + KEYS, [*KEYS, *range(100, 200)], [-0.0], [0.0], [False, 1.0]], ids=len
)
def test_keys_are_found_and_missed_as_in_a_dict_and_a_set(keys: list[Any]) -> None:
    mapping, members = {key: [at] for at, key in enumerate(keys)}, set(keys)
    for frozen, group in ((headrace.freeze(mapping), headrace.freeze(members)), headrace.freeze((mapping, members))):
        assert len(frozen) == len(mapping) and len(group) == len(members)
        for key in [*ASKED, *keys, float("nan"), complex(math.nan, 0), (1, float("nan")), "none", 10**30]:
            is_nan = key != key or (isinstance(key, tuple) and key[-1] != key[-1])  # found by identity, if at all
            assert (key in frozen) == (key in mapping and not is_nan), key
            assert (key in group) == (key in members and not is_nan), key
            assert frozen.get(key, "none") == ("none" if is_nan else mapping.get(key, "none")), key
        assert repr(list(frozen)) == repr(list(mapping)) and repr(frozen) == repr(mapping)
        back = headrace.thaw(frozen)
        assert [*map(repr, back.items())] == [*map(repr, mapping.items())]
        assert sorted(map(repr, headrace.thaw(group))) == sorted(map(repr, members))
        assert len(back) == len(mapping) and all(key in back for key in back)
        assert (frozen == mapping) == (group == members) == (not set(map(id, keys)) & set(map(id, NANS)))
