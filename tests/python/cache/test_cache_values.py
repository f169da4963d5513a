# SPDX-License-Identifier: Apache-2.0
"""Samples of many classes in the cache: what is kept is what is compared, and it comes back as it was."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace._cache import samples as module
from headrace._cache import tables
from headrace._samples.compare import difference
from headrace.torch import DataLoader
from loaders import ENGINE

if not ENGINE:
    pytest.skip("the fallback does not cache", allow_module_level=True)


@pytest.fixture(autouse=True)
def own_root(root: pathlib.Path) -> Iterator[None]:
    yield
    tables._kept.clear()


class Made:
    """A dataset that makes a new object for each sample."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.make()


class Store:
    """A part that refers weakly to the whole, as in PyG's Data."""

    def __init__(self, parent: Any) -> None:
        self.parent = weakref.ref(parent)
        self.x = torch.ones(2)

    def __getstate__(self) -> Any:
        return {"parent": self.parent(), "x": self.x}

    def __setstate__(self, state: Any) -> None:
        self.parent, self.x = weakref.ref(state["parent"]), state["x"]


class Graph:
    def __init__(self) -> None:
        self.store = Store(self)


class Lazy:
    """An object with a table that is filled while it is used, and that is not kept."""

    def __init__(self) -> None:
        self.values = np.arange(3)
        self.table: Any = None

    def __getstate__(self) -> Any:
        self.table = object()
        return {"values": self.values, "table": None}


class Listed(list[int]):
    pass


@dataclasses.dataclass
class Silent:
    """A record that is equal whatever its noise is."""

    name: str
    noise: float = dataclasses.field(compare=False)


class Lossy:
    """Comes back from a pickle as another one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Lossy, (self.number + 1,)


def _same(sample: Any) -> Any:
    return sample


def _cycle() -> Any:
    sample: dict[str, Any] = {"x": torch.ones(2)}
    sample["self"] = [sample]
    return sample


def _with_attribute() -> Any:
    value = torch.arange(3.0)
    value.label = "cat"  # type: ignore[attr-defined]
    return value


def _per_channel() -> Any:
    scales, zeros = torch.tensor([0.1, 0.25]), torch.tensor([1, 2])
    return torch.quantize_per_channel(torch.arange(4.0).reshape(2, 2), scales, zeros, 0, torch.qint8)


def _object_array() -> Any:
    value = np.empty((), object)
    value[()] = {"a": [1]}
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "weak reference": Graph,
    "filled table": Lazy,
    "exception": lambda: KeyError("a", 3),
    "cycle": _cycle,
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.125, 3, torch.quint8),
    "quantised by channel": _per_channel,
    "attribute": _with_attribute,
    "attribute in a list": lambda: [_with_attribute(), 1],
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,)),
    "big endian": lambda: (np.arange(3, dtype=">i4"), np.arange(3, dtype=">f8").reshape(3, 1)[::2]),
    "object array": _object_array,
    "masked": lambda: np.ma.masked_array([1, 2, 3], [0, 1, 0]),
    "list of a class": lambda: Listed([1, 2]),
    "ordered": lambda: collections.OrderedDict(a=1),
    "defaults": lambda: collections.defaultdict(list, {"a": [1]}),
    "deque": lambda: collections.deque([1, 2], 5),
    "bytearray": lambda: bytearray(b"abc"),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "negative zero": lambda: [-0.0, complex(0.0, -0.0), float("nan")],
}


MAY_BE_REFUSED = {"jagged", "masked"}  # what pickle makes of them is not the same


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.filterwarnings("ignore")
def test_equal_samples_are_kept_and_equal(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make = VALUES[name]
    loader = DataLoader(Made(make), None, cache="8M", collate_fn=_same)
    for _ in range(3):
        for sample in loader:
            assert difference(sample, make()) is None
    report = loader.report()["cache"]
    is_refused = "a sample is not kept, and made each time" in capfd.readouterr().err
    assert (report["ready"] == 3 and report["hits"] >= 6) or (is_refused and "cannot be pickled" in report["refused"])
    assert report["ready"] == 3 or name in MAY_BE_REFUSED


def test_attributes_of_tensors_come_back() -> None:
    cached = headrace.cache_samples(Made(_with_attribute), "8M")
    assert [cached[0].label, cached[0].label] == ["cat", "cat"]
    assert cached.report()["hits"] >= 1


def test_sample_that_comes_back_otherwise_is_not_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_told", set())
    cached = headrace.cache_samples(Made(lambda: [Lossy(3)]), "8M")
    assert [cached[0][0].number, cached[0][0].number] == [3, 3]
    assert cached.report()["refused"] == {"cannot be pickled": 3}
    assert "comes back as another one (sample[0]: values of a Lossy" in capfd.readouterr().err


@pytest.mark.parametrize("buffer", [np.zeros(1), [0.0], {0: 0.0}, torch.zeros(1)], ids=lambda one: type(one).__name__)
def test_same_object_with_other_values_is_refused(buffer: Any) -> None:
    """Such a sample differs from what was kept, but not from itself."""
    numbers = itertools.count()

    def fill() -> Any:
        buffer[0] = float(next(numbers))
        return buffer

    with pytest.raises(headrace.SamplesDiffer, match="was made twice, and differs"):
        headrace.cache_samples(Made(fill), "8M").begin(True)


def _nested(inner: Any) -> Any:
    for _ in range(sys.getrecursionlimit()):
        inner = [inner]
    return inner


PAIRS: dict[str, tuple[Any, Any, str]] = {
    "zero": (0.0, -0.0, "values of a float"),
    "deep": (_nested(1), _nested(2), "values of a int"),
    "field that is not compared": (Silent("a", 1.0), Silent("a", 2.0), "values of a Silent"),
    "object array": (np.array(None, object), np.array("a", object), "NoneType"),
    "mask": (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [1, 0]), "MaskedArray"),
    "list of a class": (Listed([1]), Listed([2]), "Listed"),
    "quantiser": (
        torch.quantize_per_tensor(torch.zeros(2), 0.1, 3, torch.quint8),
        torch.quantize_per_tensor(torch.zeros(2), 0.2, 3, torch.quint8),
        "quantiser",
    ),
    "nested": (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
        "values of a torch.float32 tensor",
    ),
    "exception": (KeyError("a"), KeyError("b"), "KeyError"),
    "byte order": (np.zeros(2, ">i4"), np.zeros(2, "<i4"), "an array of >i4, and one of int32"),
    "complex": (complex(1, 0.0), complex(1, -0.0), "values of a complex"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_samples_that_differ_are_told_apart(name: str) -> None:
    one, other, text = PAIRS[name]
    assert text in str(difference([one], [other]))


def test_attribute_of_tensor_is_compared() -> None:
    one, other = _with_attribute(), _with_attribute()
    other.label = "dog"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "label" in str(difference(one, other))
