# SPDX-License-Identifier: Apache-2.0
"""headrace.lengths: the lengths of all samples, measured by workers."""

from __future__ import annotations

import collections
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
import torch

Row = collections.namedtuple("Row", "tokens label")


class Rows:
    """A dataset that makes sample i by a function. A class of the module, so that any start method can pickle it."""

    def __init__(self, make: Callable[[int], Any], n: int = 600) -> None:
        self.make, self.n = make, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def tokens(index: int) -> np.ndarray[Any, Any]:
    return np.zeros((index % 37, 3), np.int16)


def mapping(index: int) -> dict[str, Any]:
    return {"label": 1, "tokens": list(range(index % 37)), "count": index % 37, "array": np.int64(index % 37)}


def pair(index: int) -> tuple[str, int]:
    return "x" * (index % 37), 1


def row(index: int) -> Any:
    return Row("x" * (index % 37), 1)


def second(sample: Any) -> Any:
    return sample["tokens"]


EXPECTED = [i % 37 for i in range(600)]


@pytest.mark.parametrize("workers", [0, 2, -1])
@pytest.mark.parametrize(
    ("make", "key"),
    [
        (tokens, None),
        (mapping, "tokens"),
        (mapping, "count"),
        (mapping, "array"),
        (mapping, second),
        (pair, 0),
        (row, 0),
    ],
)
def test_lengths_are_measured(make: Callable[[int], Any], key: Any, workers: int) -> None:
    found = headrace.lengths(Rows(make), key, workers=workers)
    assert found.dtype == np.int32 and found.tolist() == EXPECTED


@pytest.mark.parametrize("workers", [0, 2])
def test_several_lengths_are_measured_in_one_pass(workers: int) -> None:
    """Each sample is made once for all names, and some of them a second time."""
    calls: list[int] = []

    def make(index: int) -> dict[str, Any]:
        calls.append(index)
        return {**mapping(index), "pixels": np.zeros((index % 5, 3))}

    keys = {"text": "tokens", "patches": "pixels", "both": lambda sample: len(sample["tokens"]) + len(sample["pixels"])}
    found = headrace.lengths(Rows(make), keys, workers=workers)
    assert list(found) == ["text", "patches", "both"]
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in found.values())
    assert found["text"].tolist() == EXPECTED and found["patches"].tolist() == [i % 5 for i in range(600)]
    assert found["both"].tolist() == [i % 37 + i % 5 for i in range(600)]
    assert workers or len(calls) < 700
    assert headrace.lengths(Rows(mapping, 0), {"text": "tokens"}, workers=0)["text"].tolist() == []
    assert len(list(headrace.Plan(found, pack={"text": 100, "patches": 20}))) > 100


def test_keys_by_name_that_are_wrong_are_refused() -> None:
    with pytest.raises(ValueError, match="key is an empty dict; give what counts by name"):
        headrace.lengths(Rows(mapping), {})
    with pytest.raises(TypeError, match="the names of lengths should be strings, but got 3"):
        headrace.lengths(Rows(mapping), {3: "tokens"})
    with pytest.raises(TypeError, match=r"sample 0 is a dict with .*, and has no 'pixels'; give another key"):
        headrace.lengths(Rows(mapping), {"text": "tokens", "patches": "pixels"}, workers=0)


def test_several_lengths_that_change_are_named() -> None:
    draw = random.Random(0)
    data = Rows(lambda index: {"tokens": [1] * (index % 9), "pixels": [0] * draw.randint(1, 9)})
    with pytest.warns(UserWarning, match="samples had another length 'patches' when they were read a second time"):
        headrace.lengths(data, {"text": "tokens", "patches": "pixels"}, workers=0)


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 1025])
def test_any_number_of_samples_is_measured(n: int) -> None:
    assert headrace.lengths(Rows(tokens, n), workers=1).tolist() == [i % 37 for i in range(n)]
    assert headrace.lengths(["ab", "c"], workers=0).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("sample", "key"),
    [
        ([1, 2.5, np.int32(3)], None),
        ([torch.tensor(1), torch.tensor(2), torch.tensor(3)], None),
        (["a", "list", "of words"], None),
        ([np.zeros(2), np.zeros(3), np.zeros(4)], len),
        ([[1, 2, 3], 1], 0),
    ],
)
def test_list_of_numbers_or_words_is_counted(sample: Any, key: Any) -> None:
    assert headrace.lengths([sample], key, workers=0).tolist() == [3]


def test_array_of_one_item_is_no_length() -> None:
    for part in (np.array([9]), torch.tensor([9]), [9]):
        assert headrace.lengths([{"tokens": part}], "tokens", workers=0).tolist() == [1]
    for part in (np.array(9), torch.tensor(9), np.uint8(9)):
        assert headrace.lengths([{"tokens": part}], "tokens", workers=0).tolist() == [9]


def test_lengths_fit_a_plan() -> None:
    plan = headrace.Plan(headrace.lengths(Rows(tokens)), max_sum=400, tail="exact")
    assert sorted(i for batch in plan for i in batch) == list(range(600))


def test_random_numbers_stay_as_they_were() -> None:
    random.seed(3)
    before = random.getstate()
    headrace.lengths(Rows(lambda i: [0] * random.randint(1, 1)), workers=0)
    assert random.getstate() == before


def test_progress_is_shown_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    headrace.lengths(Rows(tokens), workers=0, progress=True)
    assert capsys.readouterr().err.startswith("lengths: 600 of 600 in ")
    headrace.lengths(Rows(tokens), workers=0, progress=False)
    headrace.lengths(Rows(tokens), workers=0)  # stderr is no terminal
    assert capsys.readouterr().err == ""


def growing() -> Callable[[int], Any]:
    count = itertools.count()
    return lambda index: [0] * next(count)


def test_lengths_that_change_are_counted() -> None:
    with pytest.warns(UserWarning, match=r"64 of 64 samples had another length when .* \(sample 0: 0, then 600\)"):
        headrace.lengths(Rows(growing()), workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headrace.lengths(Rows(tokens), workers=0)


class Stream:
    def __iter__(self) -> Any:
        return iter([])


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (
        Rows(mapping),
        {},
        TypeError,
        r"sample 0 is a dict with 'label', 'tokens', 'count', 'array'; .* such as key='label'",
    ),
    (Rows(pair), {}, TypeError, "sample 0 is a tuple of 2 parts; .* such as key=0"),
    (Rows(lambda i: [[1, 2, 3], 1]), {}, TypeError, "sample 0 is a list of 2 parts; .* such as key=0 .or key=len"),
    (Rows(lambda i: ["text", 1]), {}, TypeError, "sample 0 is a list of 2 parts"),
    (Rows(lambda i: [np.zeros(3), np.zeros(2)]), {}, TypeError, "sample 0 is a list of 2 parts"),
    (Rows(mapping), {"key": "text"}, TypeError, "has no 'text'"),
    (Rows(pair), {"key": 2}, TypeError, "sample 0 is a tuple of 2 parts, and has no 2"),
    (Rows(lambda i: 3.5), {}, TypeError, "sample 0 is a float without a length"),
    (Rows(lambda i: {"n": 3.5}), {"key": "n"}, TypeError, "what key='n' gives of sample 0 is a float"),
    (Rows(lambda i: {"n": -1}), {"key": "n"}, ValueError, "the length of sample 0 is -1"),
    (Rows(lambda i: {"n": 2**31}), {"key": "n"}, ValueError, "the length of sample 0 is 2147483648"),
    (Stream(), {}, TypeError, "a Stream without __getitem__"),
    (Rows(tokens), {"workers": -2}, ValueError, "workers should be -1"),
    (Rows(tokens), {"workers": 1.5}, TypeError, "workers should be an int"),
]


@pytest.mark.parametrize(("dataset", "arguments", "error", "message"), BAD)
def test_bad_input_of_lengths_is_refused(
    dataset: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        headrace.lengths(dataset, **{"workers": 0, **arguments})


def one_without_length(index: int) -> Any:
    return [1] if index != 300 else 1.5


def test_error_of_a_worker_names_the_sample() -> None:
    with pytest.raises(TypeError, match="sample 300 is a float without a length"):
        headrace.lengths(Rows(one_without_length), workers=2)
