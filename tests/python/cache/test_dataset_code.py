# SPDX-License-Identifier: Apache-2.0
"""The name of the samples of a dataset, and the stamp of a builder: what code holds decides, not only its text."""

from __future__ import annotations

import functools
import math
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import headrace
import pytest
from headrace._cache import digest

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main module is no file, as in a notebook, so Python finds no text of the classes that were typed in."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)


class Data:
    """A dataset whose last sample is that of its transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.transform(index) if index == 99 else index


def _decorated(number: int) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(x: Any) -> Any:
            return function(x) + number

        return call

    return decorate(abs_of)


def abs_of(x: Any) -> Any:
    return abs(x)


def _closure(number: int) -> Any:
    class Step:
        def __call__(self, x: Any) -> Any:
            return x + number

    return Step()


def _default(number: int) -> Any:
    class Step:
        def __call__(self, x: Any, more: int = number) -> Any:
            return x + more

    return Step()


def _attribute(value: int) -> Any:
    class Step:
        number = value

        def __call__(self, x: Any) -> Any:
            return x + self.number

    return Step()


def _property(value: int) -> Any:
    class Step:
        @property
        def number(self) -> int:
            return value

        @functools.cached_property
        def twice(self) -> int:
            return 2 * value

        def __call__(self, x: Any) -> Any:
            return x + self.number

    return Step()


def _base(number: int) -> Any:
    class Step(type(_closure(number))):  # type: ignore[misc]
        pass

    return Step()


def _defined_again(number: int) -> Any:
    class Step:
        def __call__(self, x: Any) -> Any:
            return x + 1

    if number == 1:
        return Step()

    class Step:  # type: ignore[no-redef]
        def __call__(self, x: Any) -> Any:
            return x + 2

    return Step()


def _typed(text: str, **variables: Any) -> Any:
    """Returns what code has made that is in no file."""
    space = {"__name__": "__main__", **variables}
    exec(text, space)
    return space["made"]


def _remembering(number: int) -> Any:
    return _typed(f"import functools\n@functools.cache\ndef made(x): return x + {number}")


def _in_module(number: int) -> Any:
    """A function that names a variable of a module within a module of the user."""
    outer, inner = types.ModuleType("outer"), types.ModuleType("inner")
    outer.__file__ = inner.__file__ = __file__
    vars(inner)["number"] = number
    vars(outer)["inner"] = inner
    return _typed("def made(x): return x + outer.inner.number", outer=outer)


def _two_modules(number: int) -> Any:
    """Functions that name a variable of the same name in two modules."""
    text = "def made(x): return x + number"
    return [_typed(text, number=number), _typed(text, number=0)]


def _two_names(number: int) -> Any:
    """A variable that is the same as one of two others."""
    one, other = [1], [2]
    text = "def made(x): return x + one[0] * other[0] + current[0]"
    return _typed(text, one=one, other=other, current=(one, other)[number - 1])


STEPS: dict[str, Callable[[int], Any]] = {
    "closure of a decorator": _decorated,
    "closure of a method": _closure,
    "default of a method": _default,
    "attribute of a class": _attribute,
    "property": _property,
    "base class": _base,
    "class defined again": _defined_again,
    "class that was typed in": lambda number: _typed(f"class made:\n def __call__(s, x): return x + {number}")(),
    "global variable": lambda number: _typed("def made(x): return x + number", number=number),
    "global variable of a method": lambda number: _typed(
        "class made:\n def __call__(s, x): return x + number", number=number
    )(),
    "function with a memory": _remembering,
    "variable of a module": _in_module,
    "two modules": _two_modules,
    "two names": _two_names,
    "order of classes": lambda number: [_closure(number), _closure(3 - number)],
    "method of a list": lambda number: [number].__getitem__,
    "method of a dict": lambda number: {99: number}.get,
    "function of C": lambda number: (math.floor, math.sqrt)[number - 1],
    "module": lambda number: (math, re)[number - 1],
    "pattern": lambda number: re.compile("x" * number),
}


@pytest.mark.parametrize("where", ["attribute", "list"])
@pytest.mark.parametrize("name", STEPS)
def test_dataset_with_other_code_has_another_name(name: str, where: str) -> None:
    def seen(number: int) -> Any:
        step = STEPS[name](number)
        return digest.seen_in(Data(step if where == "attribute" else [step]))

    assert seen(1) == seen(1)
    assert seen(1)[0] != seen(2)[0]
    assert seen(1)[1] == []


@pytest.mark.parametrize("name", ["closure of a method", "class defined again", "method of a list"])
def test_samples_of_like_datasets_are_their_own(name: str) -> None:
    steps = [STEPS[name](1), STEPS[name](2)]
    if name == "method of a list":
        steps = [[number] * 100 for number in (1, 2)]
        steps = [step.__getitem__ for step in steps]
    for step in steps:
        cached = headrace.cache_samples(Data(step), "4M")
        assert [cached[index] for index in range(100)] == [*range(99), step(99)]


@pytest.mark.parametrize("name", ["attribute of a class", "default of a method", "closure of a decorator"])
def test_builder_with_other_code_has_another_stamp(name: str) -> None:
    def seen(number: int) -> Any:
        return digest.seen_by(STEPS[name](number), False).seen

    assert seen(1) == seen(1) != seen(2)


# ---- objects that pickle does not take ----


class Slotted:
    __slots__ = ("__dict__", "number")

    def __init__(self, number: int) -> None:
        self.number, self.other = number, 0

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Entries(dict[str, int]):
    def __init__(self, number: int) -> None:
        super().__init__(number=number)
        self.other = 0

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def test_slots_of_what_cannot_be_pickled_count() -> None:
    assert digest.seen_in(Data(Slotted(1))) == digest.seen_in(Data(Slotted(1)))
    assert digest.seen_in(Data(Slotted(1)))[0] != digest.seen_in(Data(Slotted(2)))[0]


def test_objects_with_more_than_attributes_are_not_compared(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text("0123456789")
    with (tmp_path / "text").open() as file:
        assert digest.seen_in(Data(file))[1] == ["Data.transform"]
    assert digest.seen_in(Data(Entries(1)))[1] == ["Data.transform"]


def test_closure_that_cannot_be_compared_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text("0123456789")
    with (tmp_path / "text").open() as file:
        assert digest.seen_in(Data(lambda x: file.read(x)))[1] != []


def test_attribute_is_not_the_global_variable_of_its_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text("0123456789")
    text = "class made:\n number = 3\n def __getitem__(self, index): return self.file + {}number"
    with (tmp_path / "text").open() as file:
        assert digest.seen_in(_typed(text.format("self."), file=file)())[1] == []
        assert digest.seen_in(_typed(text.format(""), number=file)())[1] == ["number"]


# ---- notebooks ----


def test_class_of_a_notebook_that_is_edited_has_another_name() -> None:
    text = "class made:\n def __len__(self): return 3\n def __getitem__(self, index): return {}"

    def seen(body: str) -> Any:
        return digest.seen_in(_typed(text.format(body))())

    assert seen("index") == seen("index")
    assert seen("index")[0] != seen("index + 1")[0]
    assert digest.seen_in(_typed("class made: number = 1")()) != digest.seen_in(_typed("class made: number = 2")())
