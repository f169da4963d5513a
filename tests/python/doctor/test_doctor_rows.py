# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --run names datasets that are read sample by sample although headrace could gather their batches."""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from doctors import findings
from headrace import sources
from headrace.doctor.run import rows
from headrace.doctor.run.rows import check_rows
from loaders import only_headrace
from torch.utils.data import DataLoader, Subset, TensorDataset

X, Y = torch.arange(2000.0).reshape(500, 4), torch.arange(500)
LENGTH = 16


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that are measured, in place of those of this machine: first of what the loader does."""
    found = [0.004, 0.001]

    def time(make: Any, tasks: Any) -> float:
        found.append(found[0])
        return found.pop(0)

    monkeypatch.setattr(rows, "_time", time)
    return found


class Named(TensorDataset):
    """A subclass that has nothing of its own that changes samples."""


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * one for one in super().__getitem__(index))


class Mapped:
    """The base of datasets over arrays that NumPy has mapped."""

    def __init__(self, folder: pathlib.Path, count: int = 0) -> None:
        np.arange(1000, dtype=np.uint16).tofile(folder / "train.bin")
        np.save(folder / "x.npy", X.numpy())
        np.save(folder / "y.npy", Y.numpy())
        self.data = np.memmap(folder / "train.bin", np.uint16, "r")
        self.x, self.y = (np.load(folder / name, mmap_mode="r+") for name in ("x.npy", "y.npy"))
        self.count = count

    def __len__(self) -> int:
        return self.count or (len(self.data) - 1) // LENGTH


class Windows(Mapped):
    def __getitem__(self, index: int) -> Any:
        window = torch.from_numpy(self.data[LENGTH * index : LENGTH * index + LENGTH + 1].astype(np.int64))
        return window[:-1], window[1:]


class Slid(Mapped):
    def __len__(self) -> int:
        return len(self.data) - LENGTH + 1

    def __getitem__(self, index: int) -> Any:
        return self.data[index : index + LENGTH].astype(np.int64)


class Drawn(Mapped):
    """Windows at random, whatever the index."""

    def __getitem__(self, index: int) -> Any:
        start = int(torch.randint(len(self.data) - LENGTH, ()))
        return torch.from_numpy(self.data[start : start + LENGTH].astype(np.int64))


class Rows(Mapped):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.x[index], "label": self.y[index]}


class Scaled(Mapped):
    def __getitem__(self, index: int) -> Any:
        return self.x[index] / 255, self.y[index]


def collate_tuples(samples: list[Any]) -> Any:
    return [torch.stack(part) for part in zip(*samples, strict=True)]


def collate_sums(samples: list[Any]) -> Any:
    return sum(x.sum() for x, _ in samples)


pytestmark = [only_headrace, pytest.mark.timeout(600)]

# ---- TensorDataset ----


@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), Subset(TensorDataset(X, Y), range(300))])
def test_tensors_that_torchs_loader_reads_are_named(dataset: Any, times: list[float]) -> None:
    state = torch.get_rng_state()
    (found,) = check_rows(DataLoader(dataset, 32, shuffle=True))
    assert found.name == "rows" and found.fix == "headrace.torch.DataLoader(dataset, ...)"
    assert found.value == "4.0 times as fast if they are gathered"
    assert "takes 15.62 us, read one by one" in found.consequence and "takes 3.91 us" in found.consequence
    assert "The 256 samples of some batches are equal" in found.consequence
    assert torch.equal(state, torch.get_rng_state())


def test_a_subclass_and_a_collate_function_are_named() -> None:
    (found,) = check_rows(headrace.torch.DataLoader(Named(X, Y), 32))
    assert found.fix == "headrace.torch.DataLoader(TensorDataset(*dataset.tensors), ...)"
    (found,) = check_rows(headrace.torch.DataLoader(TensorDataset(X, Y), 32, collate_fn=collate_tuples))
    assert found.fix == "headrace.torch.DataLoader(dataset, ...), without collate_fn"


@pytest.mark.parametrize(
    "loader",
    [
        headrace.torch.DataLoader(TensorDataset(X, Y), 32),  # which gathers
        headrace.torch.DataLoader(Doubled(X, Y), 32),
        DataLoader(TensorDataset(X.clone().requires_grad_()), 32),
        DataLoader(TensorDataset(X, Y), 32, collate_fn=collate_sums),
        DataLoader(TensorDataset(X, Y), batch_size=None),
        DataLoader([1, 2, 3], 2),
        headrace.Loader([1, 2, 3], 2),
    ],
)
def test_other_loaders_are_left_alone(loader: Any) -> None:
    assert check_rows(loader) == []


def test_a_small_gain_is_left_alone(times: list[float]) -> None:
    times[:] = [0.0014, 0.001]
    assert check_rows(DataLoader(TensorDataset(X, Y), 32)) == []


def test_the_command_measures_the_gain(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "def make():\n"
        "    return DataLoader(TensorDataset(torch.zeros(4000, 8)), 64, num_workers=1)\n"
    )
    found = findings("--run", "train.py:make", "--batches", "10", folder=tmp_path)
    assert found["rows"]["fix"] == "headrace.torch.DataLoader(dataset, ...)"
    assert float(found["rows"]["value"].partition(" ")[0]) > 1.5
    assert "caching" not in found


# ---- memmaps ----


def test_windows_of_a_mapped_file_are_named(tmp_path: pathlib.Path) -> None:
    for dataset, words in ((Windows(tmp_path), "stride=16, labels=True"), (Slid(tmp_path), "stride=1, labels=False")):
        (found,) = check_rows(DataLoader(dataset, 8))  # type: ignore[arg-type]
        path = str(tmp_path / "train.bin")
        line = f"sources.Tokens({path!r}, length=16, {words}, dtype='uint16')"
        assert found.fix == f"headrace.torch.DataLoader({line}, ...)"
        assert "are equal" in found.consequence
        source = eval(line, {"sources": sources})
        assert np.array_equal(np.stack(source[3]), np.stack(dataset[3]))


def test_rows_of_mapped_arrays_are_named(tmp_path: pathlib.Path) -> None:
    dataset: Any = Rows(tmp_path, len(X))
    (found,) = check_rows(headrace.torch.DataLoader(dataset, 8))
    assert found.fix == "headrace.torch.DataLoader(sources.Arrays(image=dataset.x, label=dataset.y), ...)"


def test_mapped_files_that_are_changed_or_drawn_are_left_alone(tmp_path: pathlib.Path) -> None:
    fewer: Any = Windows(tmp_path, 30)
    for dataset in (Drawn(tmp_path), Scaled(tmp_path, len(X)), fewer):
        assert check_rows(DataLoader(dataset, 8)) == []  # type: ignore[arg-type]


# ---- tables ----


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dataset with what Hugging Face's has, which is not installed here: a table, and samples of Python's numbers."""
    pa = pytest.importorskip("pyarrow")
    given = {"ids": [[row, row + 1] for row in range(100)], "label": list(range(100)), "score": [0.1] * 100}

    class Dataset:
        __module__, __qualname__ = "datasets.arrow_dataset", "Dataset"
        _indices = None
        cache_files: Any = ()

        def __init__(self, names: list[str]) -> None:
            self.column_names = names
            self.data = types.SimpleNamespace(table=pa.table({name: given[name] for name in names}))
            self.format = {"type": None, "columns": names, "format_kwargs": {}, "output_all_columns": False}

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> Any:
            return {name: given[name][index] for name in self.column_names}

    package = types.SimpleNamespace(Dataset=Dataset, __file__=__file__)
    monkeypatch.setitem(sys.modules, "datasets", package)  # type: ignore[arg-type]
    return Dataset


def test_tables_of_hugging_face_are_named(table: Any) -> None:
    (found,) = check_rows(headrace.torch.DataLoader(table(["label"]), 8))
    assert found.fix == "headrace.torch.DataLoader(sources.Arrow(dataset), ...)"
    assert "are equal" in found.consequence
    (found,) = check_rows(headrace.torch.DataLoader(table(["ids", "label"]), 8))
    assert "The numbers are equal, but batches have another form (batch['ids']: a list" in found.consequence
    (found,) = check_rows(headrace.torch.DataLoader(table(["score"]), 8))  # 0.1 is another number as a float32
    assert found.fix == "headrace.torch.DataLoader(sources.Arrow(dataset, keep_dtypes=True), ...)"
