# SPDX-License-Identifier: Apache-2.0
"""tests/chosen.txt names the tests of `make test`, and tools/choose_tests.py picks them."""

from __future__ import annotations

import choose_tests
import chosen
import numpy as np
import pytest

SECONDS = {
    "tests/a/test_x.py::test_one": 0.5,
    "tests/a/test_x.py::test_two[fork]": 1.0,
    "tests/a/test_x.py::test_two[spawn 2]": 2.0,
    "tests/a/test_x.py::test_three[a::b]": 3.0,
    "tests/b/test_y.py::Class::test_four[1]": 0.25,
    "tests/b/test_y.py::Class::test_four[2]": 0.25,
}
TAKEN = {
    "tests/a/test_x.py::test_one",
    "tests/a/test_x.py::test_two[spawn 2]",
    "tests/b/test_y.py::Class::test_four[1]",
    "tests/b/test_y.py::Class::test_four[2]",
}


def test_chosen_file_keeps_each_choice() -> None:
    read = chosen.Chosen(chosen.write(SECONDS, TAKEN))
    assert {test for test in SECONDS if read.has(test)} == TAKEN
    assert read.seconds == {"tests/a/test_x.py": 2.5, "tests/b/test_y.py": 0.5}


def test_chosen_file_is_short() -> None:
    lines = chosen.write(SECONDS, TAKEN).splitlines()[1:]
    assert lines == [
        "tests/a/test_x.py 2.5",
        "  test_one",
        "  - test_three",
        "  test_two[spawn 2]",
        "tests/b/test_y.py 0.5",
        "  Class::test_four",
    ]


@pytest.mark.parametrize(
    ("test", "is_chosen"),
    [
        ("tests/a/test_x.py::test_new", True),
        ("tests/c/test_z.py::test_new[1]", True),
        ("tests/b/test_y.py::Class::test_four[3]", True),  # all cases of this function were chosen
        ("tests/a/test_x.py::test_two[forkserver]", False),
        ("tests/a/test_x.py::test_three[c]", False),
    ],
)
def test_test_of_new_function_is_chosen(test: str, is_chosen: bool) -> None:
    assert chosen.Chosen(chosen.write(SECONDS, TAKEN)).has(test) is is_chosen


def reached(**elements: list[int]) -> dict[str, np.ndarray]:
    return {f"t.py::{name}": np.array(found) for name, found in elements.items()}


def test_choice_reaches_everything_for_least_time() -> None:
    seconds = {"t.py::dear": 10.0, "t.py::left": 1.0, "t.py::right": 1.0, "t.py::again": 1.0}
    found = reached(dear=[0, 1, 2, 3], left=[0, 1], right=[2, 3], again=[1])
    assert choose_tests.choose(found, seconds, 4) == {"t.py::left", "t.py::right"}


def test_choice_has_a_cheap_case_of_each_function() -> None:
    seconds = {"t.py::f[1]": 0.01, "t.py::f[2]": 0.02, "t.py::g": 9.0}
    found = reached(**{"f[1]": [0], "f[2]": [0], "g": [0]})
    assert choose_tests.choose(found, seconds, 1) == {"t.py::f[1]"}


def test_choice_leaves_out_what_c_tests_reach() -> None:
    found = {"": np.array([0, 1]), **reached(f=[0, 1], g=[2])}
    assert choose_tests.choose(found, {"t.py::f": 1.0, "t.py::g": 1.0}, 3) == {"t.py::g"}


def test_table_shows_what_each_room_keeps() -> None:
    files = ["src/arena/a.c", "src/arena/a.c", "python/headrace/torch/x.py"]
    lines = choose_tests.describe(reached(f=[0, 2], g=[1]), files, {"t.py::f"})
    assert [line.split() for line in lines] == [
        ["python/headrace/torch", "1", "1", "100.0", "%"],
        ["src/arena", "2", "1", "50.0", "%"],
        ["all", "3", "2", "66.7", "%"],
    ]
