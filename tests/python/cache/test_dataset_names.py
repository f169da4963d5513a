# SPDX-License-Identifier: Apache-2.0
"""The name of the samples of a dataset: content decides, whatever its size and wherever the dataset has it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from headrace._cache import digest, fingerprint, mapped_files


class Data:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slots:
    __slots__ = ("values",)

    def __init__(self, values: Any) -> None:
        self.values = values


class Around(Slots):
    """A dataset with its values in a slot, and a __dict__ too."""


class Listed(list[Any]):
    pass


class Mapped(dict[Any, Any]):
    pass


class Tagged(torch.Tensor):
    """A tensor with an attribute, such as the boxes of torchvision with their format."""


class Image(np.ndarray[Any, Any]):
    pass


def _tensor(kind: Any, tag: str) -> Any:
    made = torch.zeros(2).as_subclass(kind)
    made.tag = tag
    return made


def _image(tag: str) -> Any:
    made = np.zeros(2).view(Image)
    made.tag = tag
    return made


def _alias(which: int) -> Data:
    parts = [[1], [2]]
    return Data(a=parts[0], b=parts[1], current=parts[which])


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "array": (lambda: Data(x=np.zeros(5000)), lambda: Data(x=np.append(np.zeros(4999), 1))),
    "label": (lambda: Data(x=np.zeros(5000), y=[1]), lambda: Data(x=np.zeros(5000), y=[2])),
    "tensor": (lambda: Data(x=torch.zeros(5000)), lambda: Data(x=torch.cat([torch.zeros(4999), torch.ones(1)]))),
    "alias": (lambda: _alias(0), lambda: _alias(1)),
    "slot": (lambda: Around(1), lambda: Around(2)),
    "only slots": (lambda: Slots(1), lambda: Slots(2)),
    "items": (lambda: Listed([1, 2]), lambda: Listed([1, 3])),
    "items of a dict": (lambda: Mapped(a=1), lambda: Mapped(a=2)),
    "attribute of a tensor": (lambda: Data(x=_tensor(Tagged, "a")), lambda: Data(x=_tensor(Tagged, "b"))),
    "plain tensor's attribute": (
        lambda: Data(x=_tensor(torch.Tensor, "a")),
        lambda: Data(x=_tensor(torch.Tensor, "b")),
    ),
    "attribute of an array": (lambda: Data(x=_image("a")), lambda: Data(x=_image("b"))),
    "mask": (
        lambda: Data(x=np.ma.masked_array([1, 2], [0, 1])),
        lambda: Data(x=np.ma.masked_array([1, 2], [1, 0])),
    ),
    "strides": (lambda: Data(x=torch.zeros(2, 3)), lambda: Data(x=torch.zeros(3, 2).T)),
    "byte order": (lambda: Data(x=np.zeros(2, ">i4")), lambda: Data(x=np.zeros(2, "<i4"))),
    "sparse": (lambda: Data(x=torch.eye(3).to_sparse()), lambda: Data(x=(2 * torch.eye(3)).to_sparse())),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_dataset_with_other_content_has_another_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_PIECE_BYTES", 1000)
    one, other = DIFFERENT[name]
    assert digest.seen_in(one()) == digest.seen_in(one())
    assert digest.seen_in(one())[0] != digest.seen_in(other())[0]
    assert digest.seen_in(one())[1] == []


def test_reading_much_is_shown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(digest, "_SILENT_S", 0.0)
    monkeypatch.setattr(digest, "_MUCH_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "_PIECE_BYTES", 1000)
    digest.seen_in(Data(x=np.zeros(5000)))
    assert "reading the attributes of Data" in capfd.readouterr().err


# ---- arrays that are files ----


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4000))
    return path


def _names(array: Any) -> Any:
    return digest.seen_in(Data(x=array))[0]


def test_mapped_file_is_not_read(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("the array was read")

    monkeypatch.setattr(fingerprint.contents, "blocks", fail)
    mapped, again = (np.load(file, mmap_mode="r") for _ in range(2))
    assert mapped_files.place_of(mapped) is not None
    assert _names(mapped) == _names(again) != _names(mapped[1:])
    assert _names(mapped[10:]) == _names(again[10:])


def test_mapped_file_that_has_changed_has_another_name(file: pathlib.Path) -> None:
    before = _names(np.load(file, mmap_mode="r"))
    np.save(file, np.arange(4000)[::-1])
    assert _names(np.load(file, mmap_mode="r")) != before


def test_mapped_file_whose_name_is_another_file_is_read(file: pathlib.Path) -> None:
    mapped = np.load(file, mmap_mode="r")
    file.rename(file.with_suffix(".old"))
    np.save(file, np.ones(4000, int))
    assert mapped_files.place_of(mapped) is None
    assert _names(mapped) != _names(np.load(file, mmap_mode="r"))


def test_writable_mapping_is_read(file: pathlib.Path) -> None:
    one, other = (np.load(file, mmap_mode="c") for _ in range(2))
    other[3] = 7
    assert _names(one) != _names(other)
