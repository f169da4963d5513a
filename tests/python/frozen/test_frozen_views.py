# SPDX-License-Identifier: Apache-2.0
"""Views compared with the frozen originals: operators, texts that are read in order, keys that are looked up."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import datetime
import decimal
import fractions
import gc
import math
import pathlib
import random
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import headrace
import pytest


def test_operators_that_are_not_in_place_leave_both_sides_alone() -> None:
    items, group = [1], {1, 3}
    assert items + headrace.freeze([3]) == [1, 3] and items == [1]
    assert group | headrace.freeze({4}) == {1, 3, 4} and group == {1, 3}
    with pytest.raises(TypeError):
        items + headrace.freeze((3,))


def test_in_place_operators_give_the_values_of_the_built_in() -> None:
    items, group, counts = [1], {1, 3}, collections.Counter("ac")
    items += headrace.freeze([3])
    group |= headrace.freeze({4})
    counts += headrace.freeze(collections.Counter("aab"))
    assert items == [1, 3] and group == {1, 3, 4} and counts == collections.Counter("aaabc")


def test_an_operator_in_place_leaves_a_view_on_its_left_alone() -> None:
    view = headrace.freeze([1, 2])
    kept = view
    view += [3]
    assert view == [1, 2, 3] and type(view) is list
    assert kept == [1, 2]


def _texts(count: int) -> list[str]:
    draw = random.Random(6)
    alphabet = "abcdefghijklmnopqrstuvwxyz/0123456789"
    lengths = [0, 1, 2, 15, 16, 17, 52, 255, 256, 257, 300]
    return ["".join(draw.choices(alphabet, k=draw.choice(lengths) + draw.randrange(3))) for _ in range(count)]


def test_texts_that_are_read_one_after_the_other_are_as_new() -> None:
    texts = _texts(2000)
    view = headrace.freeze(texts)
    draw = random.Random(7)
    names = {text: number for number, text in enumerate(texts)}
    kept: list[tuple[int, str]] = []
    for _ in range(20_000):
        number = draw.randrange(len(texts))
        text = view[number]
        assert text == texts[number] and len(text) == len(texts[number])
        assert hash(text) == hash(texts[number])  # none that was found for the text before
        assert texts[names[text]] == text
        assert text.encode() == texts[number].encode()
        if draw.random() < 0.1:
            kept.append((number, text))
        if draw.random() < 0.01:
            sys.intern(text)  # a name must never change
        if draw.random() < 0.01:
            text += "x"
            assert text == texts[number] + "x"
    assert all(text == texts[number] for number, text in kept)
    assert list(view) == texts


def test_an_interned_text_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    texts = [f"{number:040}" for number in range(1000)]
    view = headrace.freeze(texts)
    for number in range(100):
        sys.intern(view[number])  # dropped at once: only the table of names may know it
    assert [view[-number - 1] for number in range(len(texts))] == texts[::-1]  # and gone: it must know those that go
    assert [sys.intern(text) for text in texts[:100]] == texts[:100]
    assert not unraisable


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a str keeps no wide copy of itself")
def test_a_wide_copy_of_a_text_is_not_the_next_ones() -> None:
    view = headrace.freeze([f"{number:040}" for number in range(100)])
    wide = ctypes.pythonapi.PyUnicode_AsUnicode
    wide.restype, wide.argtypes = ctypes.c_wchar_p, [ctypes.py_object]
    for number in range(100):
        assert wide(view[number]) == f"{number:040}"


class Odd:
    """Equal to all of its remainder, and hashed so: only Python can tell."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.number % 1000 == self.number % 1000

    def __hash__(self) -> int:
        return self.number % 1000 % 7  # few values: most keys collide


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    number: int


DAY = datetime.date(2024, 1, 1)
KEYS: list[Callable[[int], Any]] = [
    lambda i: decimal.Decimal(i) / 4,
    *(
        FOUND_IN_IMAGES := [
            lambda i: DAY + datetime.timedelta(i),
            lambda i: datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i, microseconds=i),
            lambda i: datetime.time(i // 60, i % 60, i % 7, i),
            lambda i: datetime.timedelta(i, 3, i),
            lambda i: uuid.UUID(int=i << 60 | i),
            lambda i: pathlib.Path(f"/data/{i}/é"),
            lambda i: (DAY + datetime.timedelta(i), f"é {i}" * 100, pathlib.Path(f"{i}" * 200)),
            lambda i: [i, f"{i}", DAY + datetime.timedelta(i), uuid.UUID(int=i), (datetime.timedelta(i),)][i % 5],
        ]
    ),
    lambda i: datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(minutes=i),
    lambda i: Point(i, -i),
    lambda i: Place(f"p{i}", i),
    lambda i: (decimal.Decimal(i), f"name {i}"),
    lambda i: frozenset({i, f"{i}"}),
    Odd,
    lambda i: [i, fractions.Fraction(i, 3), DAY + datetime.timedelta(i), f"{i}"][i % 4],
]


@pytest.mark.parametrize("make", KEYS)
@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_keys_that_only_python_can_compare_are_found(make: Callable[[int], Any], count: int) -> None:
    items = {make(i): i for i in range(count)}
    view, group = headrace.freeze(items), headrace.freeze(set(items))
    for i in range(count):
        assert view[make(i)] == items[make(i)] and make(i) in group
    for i in range(count, count + 20):
        assert (make(i) in view) == (make(i) in items)
        assert (make(i) in group) == (make(i) in items)
    with pytest.raises(KeyError):
        view["nowhere"]
    assert view.get_many([make(i) for i in range(count)]) == list(range(count))


def test_keys_of_different_types_are_equal_as_in_a_dict() -> None:
    items = {
        decimal.Decimal("1.50"): "a",
        2: "b",
        0.25: "c",
        Point(1, 2): "d",
        fractions.Fraction(1, 3): "e",
        -0.0: "f",
    }
    view = headrace.freeze(items)
    asked = [1.5, decimal.Decimal("1.5"), fractions.Fraction(3, 2), 2.0, True + 1, decimal.Decimal(2), complex(2)]
    asked += [
        decimal.Decimal("0.25"),
        (1, 2),
        Point(1, 2),
        1 / 3,
        fractions.Fraction(2, 6),
        0,
        decimal.Decimal(0),
        False,
    ]
    for key in asked:
        assert view.get(key) == items.get(key), key
    nan = math.nan
    assert headrace.freeze({nan: 1, DAY: 2}).get(float("nan")) is None


def test_error_of_a_comparison_is_raised() -> None:
    view = headrace.freeze({Odd(i): i for i in range(50)})

    class Broken(Odd):
        def __init__(self) -> None:
            pass

        def __hash__(self) -> int:
            return 3

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

    with pytest.raises(RuntimeError, match="no comparison"):
        view[Broken()]
    with pytest.raises(TypeError):
        view[[]]


def _kept_by_a_lookup(make: Callable[[int], Any], count: int, asked: list[Any]) -> int:
    """Bytes that stay in the process after looking up keys in a dict of `count` keys."""
    keys = [make(i) for i in range(count)]
    views = [headrace.freeze({key: i for i, key in enumerate(keys)}) for _ in range(2)]
    for view in views:  # the first makes what is made once
        gc.collect()
        tracemalloc.start()
        try:
            assert view[keys[77]] == 77
            assert not any(key in view for key in asked)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return kept


@pytest.mark.parametrize("make", FOUND_IN_IMAGES)
def test_dates_and_paths_are_found_without_reading_all(make: Callable[[int], Any]) -> None:
    assert _kept_by_a_lookup(make, 1200, [make(1201), "no key", (1, DAY), None, object()]) < 4000


def test_dates_and_paths_equal_what_they_equal_in_python() -> None:
    noon, path = datetime.datetime(2024, 1, 1, 12), pathlib.PurePosixPath("a/b")
    items = {DAY: 1, noon: 2, noon.time(): 3, pathlib.Path("a/b"): 4, uuid.UUID(int=5): 5, datetime.timedelta(1): 6}
    view = headrace.freeze(items)

    class Day(datetime.date):
        pass

    asked = [DAY, datetime.datetime(2024, 1, 1), noon, noon.replace(fold=1), noon.time().replace(fold=1), path]
    asked += [noon.replace(tzinfo=datetime.timezone.utc), pathlib.PureWindowsPath("a/b"), "a/b", 5, Day(2024, 1, 1)]
    asked += [uuid.UUID(int=5), datetime.timedelta(hours=24), datetime.timedelta(hours=25), datetime.time(12, fold=1)]
    for key in asked:
        assert view.get(key) == items.get(key), key
    for odd in (noon.replace(fold=1), datetime.time(1, fold=1), path, noon.replace(tzinfo=datetime.timezone.utc)):
        same, keys = {odd: 1, DAY: 2}, [odd, pathlib.Path("a/b"), noon, datetime.time(1), noon.astimezone()]
        frozen = headrace.freeze(same)
        for key in keys:
            assert frozen.get(key) == same.get(key), (odd, key)


def test_lookup_by_python_comparison_keeps_no_keys() -> None:
    """A look-up of keys that only Python can compare keeps no keys in the process."""
    count = 20_000
    kept = _kept_by_a_lookup(lambda i: decimal.Decimal(i) / 4, count, [decimal.Decimal(-1), DAY])
    assert kept < 32 * count  # a Decimal takes 104 bytes, and 100 more in a dict
