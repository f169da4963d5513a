# SPDX-License-Identifier: Apache-2.0
"""A dataset reads small containers out of what freeze=True has frozen as ordinary objects."""

from __future__ import annotations

import collections
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import headrace
import headrace.torch
import numpy as np
import pytest
from headrace import _core

COUNT = 5000


class Box(NamedTuple):
    corners: list[int]
    tags: dict[str, Any]


@dataclass
class Record:
    name: str
    boxes: list[list[float]] = field(default_factory=list)


def annotation(at: int) -> dict[str, Any]:
    return {
        "id": at,
        "bbox": [at + 0.5] * 4,
        "segmentation": [[float(at)] * 6],
        "tags": {"a", f"{at}"},
        "size": (at, at),
        "mask": np.full(100, at % 7, np.uint8),
        "box": Box([at], {"x": at}),
        "record": Record(f"name {at}", [[1.0]]),
        "queue": collections.deque([at]),
    }


class Annotations:
    """Writes to the record that it takes out, and looks at types, as many datasets do."""

    def __init__(self) -> None:
        self.annotations = [annotation(at) for at in range(COUNT)]
        self.by_id = {at: {"boxes": [at] * 3} for at in range(COUNT)}
        self.long = [[at] * 5000 for at in range(40)]

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        record = self.annotations[index]
        record["ignore"] = 0
        record["bbox"].append(1.0)
        record["mask"][0] = 9
        record["box"].tags["y"] = 1
        record["record"].boxes[0].append(2.0)
        found = self.by_id.get(index)
        kinds = [type(one).__name__ for one in (record, record["bbox"], record["tags"], record["size"], found)]
        return [kinds, record, found, self.annotations[index : index + 2], self.long[index]]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.tolist() == other.tolist()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Record):
        return same(vars(one), vars(other))
    return bool(one == other)


def as_they_are(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_samples_of_frozen_records_are_ordinary(kind: Any, method: str) -> None:
    data, plain = Annotations(), Annotations()
    loader = kind(data, 4, collate_fn=as_they_are, num_workers=1, multiprocessing_context=method, freeze=True)
    got = [sample for batch in loader for sample in batch]
    assert isinstance(data.annotations, _core.FrozenList)
    expected = [plain[index] for index in range(20)]
    for index, sample in enumerate(expected):
        sample[3] = [plain.annotations[index], annotation(index + 1)]  # not what another process has written
    for one, other in zip(got, expected, strict=True):
        assert same(one[:3] + one[4:], other[:3] + other[4:])
        assert [type(part) for part in one[3]] == [dict, dict]
    assert got[0][0] == ["dict", "list", "set", "tuple", "dict"]


def test_writing_to_a_record_does_not_change_the_dataset() -> None:
    data = Annotations()
    headrace.freeze_attributes(data, 100_000)
    data[3]
    assert same(data.annotations[3], annotation(3))


def test_large_containers_and_arrays_stay_views() -> None:
    data: Any = Annotations()
    data.arrays = [{"small": np.zeros(1000), "large": np.zeros(20_000)} for _ in range(20)]
    headrace.freeze_attributes(data, 100_000)
    assert isinstance(data.long[3], _core.FrozenList)
    assert isinstance(data.annotations[5:3000], _core.FrozenList)
    assert type(data.long[3][:5]) is list
    one = data.arrays[0]
    assert type(one) is dict
    assert (one["small"].flags.writeable, one["large"].flags.writeable) == (True, False)
    data.texts = [["x" * 100_000] * 3, ["y"] * 3] * 20
    headrace.freeze_attributes(data, 1000)
    assert isinstance(data.texts[0], _core.FrozenList), "reading it would copy long texts"
    assert data.texts[1] == ["y"] * 3


def test_records_whose_arrays_have_many_bytes_stay_views() -> None:
    data: Any = Annotations()
    data.arrays = [{"frames": [np.zeros(7000) for _ in range(40)], "one": np.zeros(7000)} for _ in range(2)]
    headrace.freeze_attributes(data, 100_000)
    assert isinstance(data.arrays[0], _core.FrozenDict), "reading it would copy 2 MB"
    assert isinstance(data.arrays[0]["frames"], _core.FrozenList)
    assert type(data.arrays[0]["frames"][:3]) is list


def test_pickled_datasets_read_small_records_as_ordinary() -> None:
    data = Annotations()
    headrace.freeze_attributes(data, 100_000)
    loaded = pickle.loads(pickle.dumps(data))
    assert isinstance(loaded.annotations, _core.FrozenList)
    assert same(loaded.annotations[3], annotation(3))


def test_views_of_freeze_itself_stay_views() -> None:
    assert isinstance(headrace.freeze([{"a": [1]}])[0], _core.FrozenDict)


def test_a_cycle_of_frozen_records_is_read_as_one() -> None:
    data: Any = Annotations()
    for record in data.annotations:
        record["self"] = record
    headrace.freeze_attributes(data, 100_000)
    one = data.annotations[3]
    assert one["self"] is one
