# SPDX-License-Identifier: Apache-2.0
"""sources.Arrow over Hugging Face's datasets: the rows that `with_format("torch")` gives, for datasets as users make
them."""

from __future__ import annotations

import itertools
import json
import pathlib
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from headrace import sources
from headrace.torch import DataLoader

TASKS = [[0, 5, 5], [2]]
ROWS = 12


@pytest.fixture(scope="module")
def datasets() -> Iterator[Any]:
    """Hugging Face's datasets, in place of the module of this name that other tests import."""
    path, others = list(sys.path), {name: sys.modules.pop(name) for name in list(sys.modules) if name == "datasets"}
    sys.path[:] = [one for one in path if pathlib.Path(one).name != "lib"]
    try:
        yield pytest.importorskip("datasets")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
            del sys.modules[name]
        sys.modules.update(others)
        sys.path[:] = path


@pytest.fixture
def dataset(tmp_path: pathlib.Path, datasets: Any) -> Any:
    """A dataset over two files that datasets has mapped."""
    made = datasets.Dataset.from_dict(
        {
            "input_ids": [[row, row + 1, row + 2] for row in range(ROWS)],
            "label": list(range(ROWS)),
            "score": [row / 7 for row in range(ROWS)],
            "text": [f"row {row}" for row in range(ROWS)],
        }
    )
    made.save_to_disk(tmp_path / "saved", num_shards=2)
    return datasets.load_from_disk(str(tmp_path / "saved"))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


WAYS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda one: one,
    "shuffled": lambda one: one.shuffle(seed=3),
    "selected": lambda one: one.select([7, 1, 4, 4, 0, 2, 9]),
    "a part of a part": lambda one: one.select(range(2, 11)).select([8, 0, 3, 1, 1, 5]),
    "sorted and sharded": lambda one: one.sort("label", reverse=True).shard(2, 0, contiguous=False),
    "concatenated": lambda one: sys.modules["datasets"].concatenate_datasets([one.shuffle(seed=1), one.select([0])]),
    "filtered": lambda one: one.filter(lambda row: row["label"] % 2 == 0),
    "with another column": lambda one: one.add_column("more", list(range(len(one)))),
    "renamed": lambda one: one.rename_column("label", "labels"),
    "in memory": lambda one: sys.modules["datasets"].Dataset.from_dict({"label": list(range(6))}),
}


@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_are_those_of_the_torch_format(dataset: Any, change: Callable[[Any], Any], workers: int) -> None:
    changed = change(dataset)
    names = [name for name in changed.column_names if name != "text"]
    expected = list(torch.utils.data.DataLoader(changed.with_format("torch", columns=names), batch_sampler=TASKS))
    source = sources.Arrow(changed, columns=names)
    assert source.report()["gathered"] and len(source) == len(changed)
    options = {"multiprocessing_context": "fork"} if workers else {}
    found = list(DataLoader(source, batch_sampler=TASKS, num_workers=workers, **options))
    assert [plain(one) for one in found] == [plain(one) for one in expected]
    assert {name: value.tolist() for name, value in source[-1].items()} == {
        name: changed[-1][name] if name != "score" else source[-1]["score"].tolist() for name in names
    }


def test_the_columns_of_a_format_are_kept(dataset: Any) -> None:
    source = sources.Arrow(dataset.with_format("numpy", columns=["label", "input_ids"]))
    assert sorted(source[0]) == ["input_ids", "label"]
    wide = sources.Arrow(dataset.with_format("torch", columns=["label"], output_all_columns=True))
    assert sorted(wide[0]) == sorted(dataset.column_names) and wide[1]["text"] == "row 1"


def test_columns_come_in_the_order_of_datasets(dataset: Any) -> None:
    for columns in (["score", "label"], ["label", "input_ids", "score"], ["score"]):
        for form in ("torch", "numpy", None):
            changed = dataset.with_format(form, columns=columns)
            assert (
                list(sources.Arrow(changed)[0]) == list(changed[0]) == sorted(columns, key=dataset.column_names.index)
            )
    wide = dataset.with_format("torch", columns=["score"], output_all_columns=True)
    assert list(sources.Arrow(wide)[0]) == list(wide[0])
    assert list(sources.Arrow(dataset, columns=["score", "label"])[0]) == ["score", "label"]


def columns_of_all_kinds(datasets: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Columns that are not read by address, and some that are."""
    value = datasets.Value
    sequence = getattr(datasets, "List", None) or datasets.Sequence
    return {
        "half": (value("float16"), [0.5, 1.5, 2.5]),
        "uint64": (value("uint64"), [1, 2, 3]),
        "uint64 list": (sequence(value("uint64")), [[1, 2]] * 3),
        "lists within lists": (sequence(sequence(value("int64"))), [[[1, 2], [3, 4]]] * 3),
        "Array2D": (datasets.Array2D((2, 2), "float32"), [[[1.0, 2.0], [3.0, 4.0]]] * 3),
        "struct": ({"a": sequence(value("float32")), "b": value("int32")}, [{"a": [1.0, 2.0], "b": 3}] * 3),
        "text": (value("string"), ["a", "b", "c"]),
        "label": (datasets.ClassLabel(names=["x", "y"]), [0, 1, 0]),
        "fixed list": (sequence(value("int32"), 2), [[1, 2]] * 3),
        "double": (value("float64"), [0.5, 1.5, 2.5]),
    }


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_other_columns_have_the_format_of_the_dataset(datasets: Any, form: str) -> None:
    for feature, rows in columns_of_all_kinds(datasets).values():
        features = datasets.Features({"number": datasets.Value("int64"), "x": feature})
        made = datasets.Dataset.from_dict({"number": [1, 2, 3], "x": rows}, features=features).with_format(form)
        for changed in (made, made.shuffle(seed=1)):
            expected = [plain(one) for one in torch.utils.data.DataLoader(changed, 3)]
            for workers in (0, 1):
                options = {"multiprocessing_context": "fork"} if workers else {}
                found = list(DataLoader(sources.Arrow(changed), 3, num_workers=workers, **options))
                assert [plain(one) for one in found] == expected


def test_images_are_decoded_as_by_datasets(datasets: Any) -> None:
    images = pytest.importorskip("PIL.Image")
    rows = {"x": [images.new("RGB", (4, 2), (9, row, 7)) for row in range(3)]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features({"x": datasets.Image()}))
    assert sources.Arrow(made)[1]["x"].size == (4, 2)
    formatted = made.with_format("torch")
    batch = next(iter(DataLoader(sources.Arrow(formatted), 3)))["x"]
    assert batch.equal(next(iter(torch.utils.data.DataLoader(formatted, 3)))["x"])
    assert sources.Arrow(formatted).report()["columns"]["x"]["read"] == "by datasets"


def test_several_splits_and_streams_are_refused(dataset: Any, datasets: Any) -> None:
    with pytest.raises(TypeError, match=r"DatasetDict has several tables, \['train', 'test'\]; .*split='train'"):
        sources.Arrow(datasets.DatasetDict({"train": dataset, "test": dataset}))
    with pytest.raises(TypeError, match="IterableDataset is a stream"):
        sources.Arrow(dataset.to_iterable_dataset())


def test_replaced_readers_are_left_to_datasets(dataset: Any, datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.formatting.TorchFormatter, "_tensorize", lambda self, value: torch.tensor(-3))
    assert sources.Arrow(dataset.with_format("torch"))[0]["label"].item() == -3
    assert sources.Arrow(dataset)[1]["label"] == 1
    monkeypatch.setattr(datasets.Dataset, "_getitem", lambda self, key, **_: {"label": -1})
    source = sources.Arrow(dataset)
    assert source[0] == {"label": -1} and "replaced" in source.report()["left_to_datasets"]


def test_a_transform_is_left_to_datasets(dataset: Any) -> None:
    source = sources.Arrow(dataset.with_transform(lambda rows: {"twice": [2 * one for one in rows["label"]]}))
    assert source[4] == {"twice": 8} and "function" in source.report()["left_to_datasets"]
    found = list(DataLoader(source, batch_sampler=TASKS))
    assert found[0]["twice"].tolist() == [0, 10, 10]


def test_a_format_that_is_set_later_is_seen(dataset: Any) -> None:
    source = sources.Arrow(dataset, columns=["label"])
    loader = DataLoader(source, batch_sampler=TASKS)
    assert next(iter(loader))["label"].tolist() == [0, 5, 5]
    dataset.set_transform(lambda rows: {"label": [-one for one in rows["label"]]})
    assert next(iter(loader))["label"].tolist() == [0, -5, -5] and source[2] == {"label": -2}
    dataset.reset_format()
    assert next(iter(loader))["label"].tolist() == [0, 5, 5]


def test_the_files_are_named_by_where(dataset: Any) -> None:
    assert "saved/data-00000-of-00002.arrow" in sources.Arrow(dataset).where(3)
    assert "row 3 of" in sources.Arrow(dataset.select([5, 3])).where(1)


def test_workers_of_spawn_map_the_files_again(dataset: Any) -> None:
    source = sources.Arrow(dataset.shuffle(seed=2), columns=["input_ids", "label"])
    assert len(pickle.dumps(source)) < 20_000
    expected = list(DataLoader(source, batch_sampler=TASKS))
    found = list(DataLoader(source, batch_sampler=TASKS, num_workers=1, multiprocessing_context="spawn"))
    assert [plain(one) for one in found] == [plain(one) for one in expected]


# ---- streams with a shuffle buffer ----


def shuffled_stream(datasets: Any, seed: int | None = 1) -> Any:
    rows = datasets.Dataset.from_dict({"x": list(range(60))}).to_iterable_dataset(num_shards=3)
    return rows.shuffle(seed=seed, buffer_size=10)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_shuffled_stream_is_resumed_exactly(datasets: Any, workers: int) -> None:
    """Twice in an epoch. The state of the dataset does not have the samples in the buffer."""
    options = {"multiprocessing_context": "fork"} if workers else {}

    def make() -> Any:
        return DataLoader(shuffled_stream(datasets), batch_size=3, num_workers=workers, **options)

    whole = [batch["x"].tolist() for batch in make()]
    state, seen = None, []
    for steps in (3, 4, None):
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = iter(loader)
            seen += [batch["x"].tolist() for batch in itertools.islice(batches, steps)]
        told = [str(one.message) for one in caught if "shuffle buffer of 10 samples" in str(one.message)]
        assert len(told) == (state is not None)
        state = loader.state_dict()
        del batches
    assert seen == whole


def test_stream_that_shuffles_otherwise_is_warned_of(datasets: Any) -> None:
    loader = DataLoader(shuffled_stream(datasets, seed=None), batch_size=3)
    next(iter(loader))
    other = DataLoader(shuffled_stream(datasets, seed=None), batch_size=3)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="they are others than before"):
        list(other)


class Wrapper(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def state_dict(self) -> Any:
        return self.stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.stream.load_state_dict(state)


def test_state_without_the_buffer_is_warned_of(datasets: Any) -> None:
    """A dataset of the user's has the state of the stream in its own; so have states of earlier versions."""
    loader = DataLoader(Wrapper(shuffled_stream(datasets)), batch_size=3)
    next(iter(loader))
    other = DataLoader(Wrapper(shuffled_stream(datasets)), batch_size=3)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match=r"up to 10 samples may be lost, and some may come twice"):
        iter(other)


# ---- text files ----


def test_lines_are_those_of_datasets_readers(tmp_path: pathlib.Path, datasets: Any) -> None:
    """Compares with those of JSON and of text, which gives blank lines, too; at once and streamed."""
    rows = [{"text": f"ä {number}", "ids": list(range(number)), "score": number / 7} for number in range(40)]
    paths = []
    for part, end in enumerate(("\n", "\r\n")):
        lines = [*(json.dumps(row, ensure_ascii=part == 0) for row in rows[20 * part : 20 * part + 20]), ""]
        paths.append(str(tmp_path / f"{part}.jsonl"))
        pathlib.Path(paths[-1]).write_bytes(end.join(lines).encode())
    options = {"data_files": paths, "split": "train", "cache_dir": str(tmp_path / "datasets")}
    ours = list(sources.Jsonl(paths, keep="job"))
    assert ours == list(datasets.load_dataset("json", **options)) == rows
    assert ours == list(datasets.load_dataset("json", streaming=True, **options))
    lines = list(datasets.load_dataset("text", **options)["text"])
    assert list(sources.Lines(paths, keep="job")) == [line for line in lines if line.strip()]
