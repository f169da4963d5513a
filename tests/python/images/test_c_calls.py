# SPDX-License-Identifier: Apache-2.0
"""A function in C between two frames is not on the stack, and gets the result first: it is found by its name in the
call."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from headrace.images._proof.c_calls import is_called_directly

answers: list[bool] = []


def probe(*ignored: Any) -> int:
    """Notes whether this frame was called directly by the one above it."""
    below = sys._getframe()
    assert below.f_back is not None
    answers.append(is_called_directly(below.f_back, below))
    return 1


def probe_with(*ignored: Any, **more: Any) -> int:
    below = sys._getframe()
    assert below.f_back is not None
    answers.append(is_called_directly(below.f_back, below))
    return 1


class Step:
    """A transform in Python, and what holds one."""

    def __init__(self) -> None:
        self.step: Any = probe
        self.steps = [probe]

    def __call__(self, *ignored: Any) -> int:
        below = sys._getframe()
        assert below.f_back is not None
        answers.append(is_called_directly(below.f_back, below))
        return 1

    def by_attribute(self) -> Any:
        return self.step(1)

    def by_entry(self) -> Any:
        return self.steps[0](1)

    def by_local_object(self) -> Any:
        step = Step()
        return step(1)

    def by_partial(self) -> Any:
        step = functools.partial(probe, 1)
        return step(2)

    def by_loop(self) -> Any:
        found = 0
        for step in self.steps:
            found = step(found)
        return found

    def by_keyword(self) -> Any:
        more = {"a": 1}
        return probe_with(*(1, 2), **more)

    def by_reduce(self) -> Any:
        return functools.reduce(probe, [1, 2])

    def by_next(self) -> Any:
        return next(map(probe, [1]))

    def by_loop_over_map(self) -> Any:
        found = []
        for one in map(probe, [1]):
            found.append(one)
        return found

    def by_sorted(self) -> Any:
        return sorted([1], key=self.step)

    def by_sum(self) -> Any:
        return sum(map(probe, [1]))

    def by_cached(self) -> Any:
        step = functools.lru_cache(probe)
        return step(1)


def generator() -> Iterator[int]:
    below = sys._getframe()
    assert below.f_back is not None
    answers.append(is_called_directly(below.f_back, below))
    yield 1


def by_generator() -> list[int]:
    found = []
    for one in generator():
        found.append(one)
    return found


DIRECT = [
    Step().by_attribute, Step().by_entry, Step().by_local_object, Step().by_partial, Step().by_loop, Step().by_keyword,
    by_generator,
]  # fmt: skip
THROUGH_C = [
    Step().by_reduce, Step().by_next, Step().by_loop_over_map, Step().by_sorted, Step().by_sum, Step().by_cached
]  # fmt: skip


def _name(function: Callable[[], Any]) -> str:
    return function.__name__


@pytest.mark.parametrize("function", DIRECT, ids=_name)
def test_call_of_a_function_in_python(function: Callable[[], Any]) -> None:
    answers.clear()
    function()
    assert answers == [True]


@pytest.mark.parametrize("function", THROUGH_C, ids=_name)
def test_call_through_a_function_in_c(function: Callable[[], Any]) -> None:
    answers.clear()
    function()
    assert answers == [False]
