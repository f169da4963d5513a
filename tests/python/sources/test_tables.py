# SPDX-License-Identifier: Apache-2.0
"""sources.Arrays, Arrow and Parquet: samples, and batches that are gathered in C, equal to those of torch's loader."""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
import torch
import torch.utils.data as torchs
from compare import describe
from drawn import draws
from headrace import sources
from headrace._samples import rows as sample_rows
from headrace.torch import DataLoader
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import needs_failpoints
from torch_features import collates_numpy_booleans

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Kind = Callable[..., Any]
with_booleans = pytest.mark.skipif(not collates_numpy_booleans(), reason="this torch cannot collate NumPy's booleans")
TASKS = [[0, 2, 2], [1]]
X, Y = np.arange(12.0).reshape(4, 3), np.arange(4, dtype=np.int16)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the number of rows of each batch that is gathered in this process."""
    counts: list[int] = []
    plain = sample_rows.SourceGatherer.rows

    def rows(self: Any, indices: Any) -> Any:
        found = plain(self, indices)
        counts.extend([len(indices)] if found is not None else [])
        return found

    monkeypatch.setattr(sample_rows.SourceGatherer, "rows", rows)
    return counts


def batches(kind: Kind, source: Any, tasks: Any = TASKS, **options: Any) -> Any:
    return list(kind(source, batch_sampler=tasks, **options))


def compare(source: Any, tasks: Any = TASKS) -> None:
    """Compares both loaders with torch's, which makes the samples one by one."""
    expected = batches(torchs.DataLoader, source, tasks)
    assert describe(batches(DataLoader, source, tasks)) == describe(expected)
    assert plain(batches(headrace.Loader, source, tasks)) == plain(expected)


def plain(batch: Any) -> Any:
    """Returns the values of a batch, with their dtypes and shapes, whatever holds them."""
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, list):
        return [plain(value) for value in batch]
    array = np.asarray(batch)
    return str(array.dtype), array.shape, array.tobytes()


# ---- arrays ----


def test_arrays_give_tuples_or_dicts_of_rows(gathered: list[int]) -> None:
    compare(sources.Arrays(X, Y))
    compare(sources.Arrays(x=X, y=Y))
    compare(sources.Arrays(X[::-1].T.copy().T, Y[:, None]))
    assert gathered == [3, 1] * 6
    assert sources.Arrays(x=X, y=Y)[-1]["y"] == 3
    assert [int(y) for _, y in sources.Arrays(X, Y)] == [0, 1, 2, 3]


def test_arrays_of_tensors_are_gathered_for_torch(gathered: list[int]) -> None:
    source = sources.Arrays(torch.from_numpy(X), torch.arange(4))
    assert describe(batches(DataLoader, source)) == describe(batches(torchs.DataLoader, source))
    assert gathered == [3, 1]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "c8", "c16"]))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    array = np.arange(4 * int(np.prod(shape, dtype=int))).astype(kind).reshape(4, *shape)
    form = draw(st.sampled_from(["plain", "fortran", "strided", "broadcast"]))
    if form == "fortran":
        return np.asfortranarray(array)
    if form == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return np.broadcast_to(array[:1], array.shape) if form == "broadcast" else array


@with_booleans
@settings(max_examples=draws(100), deadline=None)
@given(st.lists(arrays(), min_size=1, max_size=3), st.lists(st.integers(-4, 3), min_size=1, max_size=5))
def test_drawn_arrays_are_those_of_torch(given_arrays: list[Any], task: list[int]) -> None:
    rows = [array if array.shape[0] == 4 else np.zeros((4, 2)) for array in given_arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of arrays that cannot be written to
        compare(sources.Arrays(*rows), [task])


def test_arrays_show_what_is_written_to_them(gathered: list[int]) -> None:
    x = np.zeros((4, 2))
    loader = DataLoader(sources.Arrays(x), 4)
    x[1] = 7
    assert next(iter(loader))[0][1].tolist() == [7, 7]
    assert gathered == [4]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([X, Y[:3]], ValueError, "0 has 4, 1 has 3"),
        ([np.array(["a"])], TypeError, "has dtype <U1"),
        ([Y.astype(">i2")], TypeError, "byte order"),
        ([np.float64(3)], ValueError, "has no dimension"),
        ([torch.tensor(3)], ValueError, "has no dimension"),
        ([], TypeError, "give arrays"),
    ],
)
def test_arrays_without_rows_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sources.Arrays(*given)


class Meters(np.ndarray):
    """An array that means more than its numbers."""


MASKED = np.ma.masked_array([1.0, -999.0, 3.0], [False, True, False])


@pytest.mark.parametrize(
    "array", [MASKED, MASKED[:, None], np.ma.masked_array([1, 2, 3]), [MASKED, MASKED], [[MASKED]]]
)
def test_masked_arrays_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match=r"array 'x' is a masked array.*filled\(value\).*getmaskarray"):
        sources.Arrays(x=array)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(3, 2).view(np.matrix), np.arange(3).view(Meters)])
def test_other_subclasses_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match=r"array 1 is a .*(matrix|Meters), .*np\.asarray\(array\)"):
        sources.Arrays(np.arange(3), array)
    assert len(sources.Arrays(np.asarray(array))) == 3


def test_objects_that_give_masked_arrays_are_refused() -> None:
    class Variable:
        def __array__(self, *_: Any, **__: Any) -> Any:
            return MASKED

    with pytest.raises(TypeError, match="masked array"):
        sources.Arrays(Variable())


def test_memmaps_are_sent_as_paths(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.bin"
    np.arange(3000, dtype=np.int32).tofile(path)
    mapped = np.memmap(path, np.int32, "r", offset=4, shape=(2, 1000))
    source = sources.Arrays(mapped[:, ::-2], mapped[1:, :5].repeat(2, axis=0))
    sent = pickle.dumps(sources.Arrays(mapped, mapped[:, ::-2]))
    assert len(sent) < 2000
    found = pickle.loads(sent)
    assert found[1][0].tolist() == list(range(1001, 2001)) and found[1][1].tolist() == list(range(2000, 1000, -2))
    compare(source, [[0, 1]])
    os.utime(path, (1, 1))
    with pytest.raises(OSError, match=f"{path} was changed or replaced since the array was mapped"):
        pickle.loads(sent)


@pytest.mark.parametrize("change", ["replaced", "moved", "deleted"])
def test_a_memmap_of_another_file_is_sent_whole(tmp_path: pathlib.Path, change: str) -> None:
    path = tmp_path / "a name.bin"
    np.arange(4).tofile(path)
    source = sources.Arrays(np.memmap(path, np.int64, "r"))
    assert pickle.loads(pickle.dumps(source))[3] == (3,)
    if change == "moved":
        path.rename(tmp_path / "old.bin")
    elif change == "deleted":
        path.unlink()
    np.arange(4, 8).tofile(tmp_path / "new.bin")
    (tmp_path / "new.bin").rename(path)
    assert pickle.loads(pickle.dumps(source))[3] == source[3] == (3,)


def test_new_memmaps_are_sent_as_paths(tmp_path: pathlib.Path) -> None:
    mapped = np.memmap(tmp_path / "x.bin", np.int32, "w+", shape=(3, 1000))
    mapped[:] = 5
    sent = pickle.dumps(sources.Arrays(mapped))
    assert len(sent) < 2000
    mapped[1] = 6  # both processes see what is written to the file
    assert pickle.loads(sent)[1][0].tolist() == [6] * 1000


def test_a_subclass_of_the_users_makes_its_samples(gathered: list[int]) -> None:
    class Doubled(sources.Arrays):
        def __getitem__(self, index: int) -> Any:
            return 2 * super().__getitem__(index)[0]

    assert batches(DataLoader, Doubled(Y), [[1, 3]])[0].tolist() == [2, 6]
    assert gathered == []


# ---- tables ----


def table(rows: int = 4) -> Any:
    return pa.table(
        {
            "small": pa.array([row % 100 for row in range(rows)], pa.int8()),
            "large": pa.array(range(rows), pa.int64()),
            "share": np.arange(rows) / 3,
            "right": pa.array([row % 2 == 0 for row in range(rows)], pa.bool_()),
            "tokens": pa.array([[row, -row, 7] for row in range(rows)], pa.list_(pa.int32())),
            "box": pa.array([[row, 2.5] for row in range(rows)], pa.list_(pa.float32(), 2)),
        }
    )


@with_booleans
def test_tables_are_gathered(gathered: list[int]) -> None:
    compare(sources.Arrow(table()))
    compare(sources.Arrow(table(), columns=["tokens", "right"], keep_dtypes=True))
    compare(sources.Arrow(pa.concat_tables([table(1), table(0), table(5).slice(1, 3)])))
    large = table().set_column(4, "tokens", table()["tokens"].cast(pa.large_list(pa.int32())))
    compare(sources.Arrow(large))
    assert gathered == [3, 1] * 8


def test_a_sample_has_the_dtypes_that_datasets_gives() -> None:
    sample = sources.Arrow(table())[3]
    kinds = {name: str(value.dtype) for name, value in sample.items()}
    assert kinds == {
        "small": "int64", "large": "int64", "share": "float32", "right": "bool", "tokens": "int64", "box": "float32",
    }  # fmt: skip
    assert sample["tokens"].tolist() == [3, -3, 7]
    assert str(sources.Arrow(table(), keep_dtypes=True)[3]["small"].dtype) == "int8"


def test_other_columns_are_read_by_pyarrow(gathered: list[int]) -> None:
    mixed = pa.table(
        {
            "text": ["a", "b", None, "d"],
            "deep": [[[1]], [[2]], [[3]], [[4]]],
            "huge": pa.array([2**63, 1, 2, 3], pa.uint64()),
            "half": pa.array(np.arange(4, dtype=np.float16)),
            "nothing": pa.nulls(4),
            "kind": pa.array(["x", "y", "x", "y"]).dictionary_encode(),
        }
    )
    source = sources.Arrow(mixed)
    assert [source[row] for row in range(4)] == mixed.to_pylist()
    report = source.report()
    assert {one["read"] for one in report["columns"].values()} == {"by pyarrow"} and not report["gathered"]
    found = batches(DataLoader, source, [[0, 1]], collate_fn=list)
    assert found == [mixed.to_pylist()[:2]] and gathered == []


def with_null(kind: Any, rows: list[Any], null: Any) -> tuple[Any, Any]:
    """Returns a table, and the same with another row, which is null or has one; in chunks, some of which are sliced."""
    long = pa.table({"x": pa.array([*rows[:1], null, *rows, null], kind)})
    return pa.table({"x": pa.array(rows, kind)}), pa.concat_tables([long.slice(2, len(rows)), long.slice(1, 1), long])


NULLS: dict[str, tuple[Any, list[Any], Any, Any]] = {  # what the row with a null is; None: an error
    "float": (pa.float32(), [0.5, 1.5, 2.5], None, np.nan),
    "double": (pa.float64(), [0.5, 1.5, 2.5], None, np.nan),
    "integer": (pa.int16(), [1, 2, 3], None, None),
    "boolean": (pa.bool_(), [True, False, True], None, None),
    "list": (pa.list_(pa.int64()), [[1, 2], [3, 4], [5, 6]], None, None),
    "list of floats": (pa.list_(pa.float32()), [[1, 2], [3, 4], [5, 6]], None, None),
    "null in a list": (pa.list_(pa.float32()), [[1, 2], [3, 4], [5, 6]], [7, None], [7, np.nan]),
    "null in a large list": (pa.large_list(pa.float64()), [[1, 2], [3, 4], [5, 6]], [None, 7], [np.nan, 7]),
    "null in a list of integers": (pa.list_(pa.int32()), [[1, 2], [3, 4], [5, 6]], [7, None], None),
    "fixed list": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]], None, None),
    "null in a fixed list": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]], [None, 7], [np.nan, 7]),
}


@with_booleans
@pytest.mark.parametrize("keep_dtypes", [False, True])
@pytest.mark.parametrize("name", NULLS)
def test_a_null_changes_its_own_row_only(gathered: list[int], name: str, keep_dtypes: bool) -> None:
    kind, rows, null, wanted = NULLS[name]
    without, has_null = (sources.Arrow(one, keep_dtypes=keep_dtypes) for one in with_null(kind, rows, null))
    expected = describe(batches(DataLoader, without, [[0, 1, 2]]))
    assert describe(batches(DataLoader, has_null, [[0, 1, 2]])) == expected and gathered == [3, 3]
    assert describe(batches(DataLoader, has_null, [[6, 7, 8]])) == expected
    compare(has_null, [[0, 4], [2]])
    for index in (3, 5, -1):
        if wanted is None:
            with pytest.raises(ValueError, match=rf"row {index % 10} of column 'x' (is|has a) null.*skip"):
                has_null[index]
            with pytest.raises((ValueError, RuntimeError), match=rf"row {index % 10} of column 'x'"):
                batches(DataLoader, has_null, [[0, index % 10]])
        else:
            value = has_null[index]["x"]
            assert np.array_equal(value, wanted, equal_nan=True) and value.dtype == without[0]["x"].dtype
            compare(has_null, [[0, index % 10]])


def test_null_in_a_dataframe_is_nan_or_an_error() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"share": [0.5, np.nan, 2.5], "count": pandas.array([1, 2, None], "Int64")})
    source = sources.Arrow(frame)
    assert np.isnan(source[1]["share"]) and source[0] == {"share": 0.5, "count": 1}
    loader = DataLoader(source, 3, on_bad_sample="skip")
    with pytest.warns(UserWarning, match="row 2 of column 'count' is null"):
        assert [one["count"].tolist() for one in loader] == [[1, 2]]


@pytest.mark.parametrize("one", [pa.table({"a": [1]}), types.SimpleNamespace(columns=["a"])])
def test_several_tables_are_refused(one: Any) -> None:
    with pytest.raises(TypeError, match=r"the dict has several tables, \['train', 'test'\]; give one of them"):
        sources.Arrow({"train": one, "test": one})


def test_lists_of_several_lengths_take_torchs_way(gathered: list[int]) -> None:
    source = sources.Arrow({"tokens": [[1, 2], [3], [4, 5]]})
    assert batches(DataLoader, source, [[0, 2]])[0]["tokens"].tolist() == [[1, 2], [4, 5]]
    for workers in (0, 1):
        with pytest.raises(RuntimeError, match=r"stack expects each tensor to be equal size"):
            batches(DataLoader, source, [[0, 1]], num_workers=workers)
    ragged = batches(DataLoader, source, [[0, 1]], collate_fn=lambda batch: [one["tokens"].tolist() for one in batch])
    assert ragged == [[[1, 2], [3]]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [DataLoader, headrace.Loader])
def test_bad_offsets_are_an_error(kind: Kind, workers: int) -> None:
    values, offsets = pa.array(range(8), pa.int32()), np.array([0, 2, 4, 8], np.int32)
    lists = pa.ListArray.from_buffers(pa.list_(pa.int32()), 3, [None, pa.py_buffer(offsets)], children=[values])
    source = sources.Arrow(pa.table({"tokens": lists}))
    offsets[3] = 100_000  # as in a file that is damaged
    assert batches(kind, source, [[0, 1]], num_workers=workers)[0]["tokens"].tolist() == [[0, 1], [2, 3]]
    words = r"the list of row 2 in column 'tokens' goes from element 4 to 100,000 of 8"
    with pytest.raises((ValueError, RuntimeError), match=words):
        batches(kind, source, [[1, 2]], num_workers=workers)
    skipped = batches(kind, source, [[1, 2]], num_workers=workers, on_bad_sample="skip")
    assert skipped[0]["tokens"].tolist() == [[2, 3]]


@pytest.mark.parametrize("make", [lambda: {"a": [1, 2]}, lambda: pa.table({"a": [1, 2]})])
def test_tables_are_whatever_pyarrow_takes(make: Callable[[], Any]) -> None:
    assert [int(one["a"]) for one in sources.Arrow(make())] == [1, 2]


class Dataset:
    """A stand-in with what sources.Arrow uses of a Dataset of Hugging Face's datasets."""

    def __init__(self, table: Any) -> None:
        self.data = types.SimpleNamespace(table=table)
        self._indices = None
        self.column_names = table.column_names
        self.format = {"type": None, "columns": table.column_names, "format_kwargs": {}}

    def __len__(self) -> int:
        return self.data.table.num_rows

    def __getitem__(self, index: int) -> Any:
        return self.data.table.slice(index, 1).to_pylist()[0]


class Negated(Dataset):
    def __getitem__(self, index: int) -> Any:
        return {name: -value for name, value in super().__getitem__(index).items()}


def test_a_dataset_with_own_samples_makes_them(monkeypatch: pytest.MonkeyPatch, gathered: list[int]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=Dataset, __file__=__file__))
    table = pa.table({"a": [1, 2, 3, 4]})
    assert batches(DataLoader, sources.Arrow(Dataset(table)), [[0, 1]])[0]["a"].tolist() == [1, 2]
    assert gathered == [2]
    source = sources.Arrow(Negated(table))
    assert batches(DataLoader, source, [[0, 1]])[0]["a"].tolist() == [-1, -2] and source[3] == {"a": -4}
    monkeypatch.setattr(Dataset, "__getitem__", functools.partialmethod(lambda self, index: {"a": 7}))
    replaced = sources.Arrow(Dataset(table))
    assert replaced[0] == {"a": 7} and "replaced" in replaced.report()["left_to_datasets"]
    assert gathered == [2]


def test_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match=r"should be a Dataset of datasets, a pyarrow\.Table"):
        sources.Arrow(3)
    with pytest.raises(ValueError, match=r"there is no column"):
        sources.Arrow(table(), columns=["none"])
    with pytest.raises(ValueError, match="two columns of one name"):
        sources.Arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))
    with pytest.raises(IndexError, match="index 4 is out of range, there are 4 samples"):
        sources.Arrow(table())[4]


@with_booleans
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_get_tables_as_handles(method: str) -> None:
    source = sources.Arrow(table(400))
    expected = batches(torchs.DataLoader, source)
    found = batches(DataLoader, source, num_workers=1, multiprocessing_context=method)
    assert describe(found) == describe(expected)


# ---- Parquet ----


@pytest.fixture
def parquet(tmp_path: pathlib.Path) -> pathlib.Path:
    for number in range(3):
        pq.write_table(table(5).slice(number), tmp_path / f"part-{number}.parquet", row_group_size=2)
    return tmp_path


def test_parquet_files_are_decoded_once(parquet: pathlib.Path, gathered: list[int]) -> None:
    source = sources.Parquet(parquet / "part-*.parquet", columns=["tokens", "small"], keep="boot")
    assert [int(one["small"]) for one in source] == [0, 1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4]
    compare(source, [[11, 0, 5]])
    assert gathered == [3, 3]
    names = [entry.name for entry in headrace.cache.entries()] if hasattr(headrace.cache, "entries") else None
    again = sources.Parquet(str(parquet / "part-{0..2}.parquet"), columns=["tokens", "small"], keep="boot")
    assert again._data.ctypes.data != 0 and len(again) == 12
    assert names is None or len(names) >= 1
    pq.write_table(table(9), parquet / "part-0.parquet")
    assert len(sources.Parquet(parquet / "part-*.parquet", columns=["tokens", "small"], keep="boot")) == 16


@with_booleans
def test_parquet_is_pickled_as_a_handle(parquet: pathlib.Path) -> None:
    source = sources.Parquet(parquet / "part-0.parquet", keep="boot")
    found = batches(DataLoader, source, num_workers=1, multiprocessing_context="spawn")
    assert describe(found) == describe(batches(torchs.DataLoader, source))


def numbers(*values: Any, kind: Any = None) -> Any:
    return pa.table({"x": pa.array(values, kind)})


STRICT = pa.schema([pa.field("x", pa.int64(), nullable=False)])
PAIR = pa.struct([("b", pa.large_string()), ("a", pa.int8())])
STORED_OTHERWISE = {
    "not null": ([numbers(1, None), pa.table([pa.array([3])], schema=STRICT)], pa.int64()),
    "smaller integers": ([numbers(1, kind=pa.int8()), numbers(300, kind=pa.int16())], pa.int16()),
    "unsigned integers": ([numbers(2**32 - 1, kind=pa.uint32()), numbers(-1, kind=pa.int8())], pa.int64()),
    "floats": ([numbers(0.5, kind=pa.float32()), numbers(0.25)], pa.float64()),
    "large strings": ([numbers("a"), numbers("b", kind=pa.large_string())], pa.large_string()),
    "large binaries": ([numbers(b"a", kind=pa.large_binary()), numbers(b"b")], pa.large_binary()),
    "only nulls": ([numbers(None, kind=pa.null()), numbers("a"), numbers(None, kind=pa.null())], pa.string()),
    "lists": ([numbers([1]), numbers([2], kind=pa.large_list(pa.int32()))], pa.large_list(pa.int64())),
    "lists of nulls": ([numbers(["a"]), numbers([], kind=pa.list_(pa.null()))], pa.list_(pa.string())),
    "fixed lists": ([numbers([1, 2], kind=pa.list_(pa.int64(), 2)), numbers([3])], pa.list_(pa.int64())),
    "dictionaries": ([pa.table({"x": pa.array(["a"]).dictionary_encode()}), numbers("b")], pa.string()),
    "structs": ([numbers({"a": 1, "b": "s"}), numbers({"b": "t", "a": 2}, kind=PAIR)], None),
    "no rows": ([numbers(1), numbers(kind=pa.string()), pa.table({})], pa.int64()),
}


def write_parquet(folder: pathlib.Path, tables: list[Any]) -> list[str]:
    paths = [str(folder / f"{number}.parquet") for number in range(len(tables))]
    for path, one in zip(paths, tables, strict=True):
        pq.write_table(one, path)
    return paths


def plain_rows(source: Any) -> list[dict[str, Any]]:
    return [{name: getattr(value, "tolist", lambda v=value: v)() for name, value in row.items()} for row in source]


@pytest.mark.parametrize("name", STORED_OTHERWISE)
def test_columns_that_are_stored_otherwise_are_one(tmp_path: pathlib.Path, name: str) -> None:
    tables, kind = STORED_OTHERWISE[name]
    source = sources.Parquet(write_parquet(tmp_path, tables), keep="job")
    assert kind is None or source.report()["columns"]["x"]["type"] == str(kind)
    expected = [row for one in tables for row in one.to_pylist() if one.num_rows]
    assert [row["x"].as_py() for row in _rows_of(source)] == [row["x"] for row in expected]


def _rows_of(source: Any) -> list[dict[str, Any]]:
    """Returns what the table has, where a sample with a null would be an error."""
    return [
        {name: source._table.column(name)[row] for name in source._table.column_names} for row in range(len(source))
    ]


def test_columns_have_the_order_of_the_first_file(tmp_path: pathlib.Path) -> None:
    paths = write_parquet(tmp_path, [pa.table({"x": [1], "y": [0.5]}), pa.table({"y": [1.5], "x": [2]})])
    assert plain_rows(sources.Parquet(paths, keep="job")) == [{"x": 1, "y": 0.5}, {"x": 2, "y": 1.5}]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([numbers("a"), numbers(1)], r"1\.parquet has other columns than .*0\.parquet: 'x' is int64 there, and string"),
        ([numbers(1), numbers(0.5)], r"'x' is double there, and int64"),
        ([numbers(1, kind=pa.uint64()), numbers(1)], r"'x' is int64 there, and uint64"),
        ([numbers({"a": 1}), numbers({"b": 1})], r"'x' is struct<b: int64> there, and struct<a: int64>"),
        (
            [pa.table({"x": [1], "y": [1]}), numbers(1)],
            r"1\.parquet has no column 'y', which .*0\.parquet has, of type int64",
        ),
        ([numbers(1), pa.table({"x": [1], "y": [1]})], r"0\.parquet has no column 'y', which .*1\.parquet has"),
    ],
)
def test_columns_that_differ_are_named(tmp_path: pathlib.Path, tables: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sources.Parquet(write_parquet(tmp_path, tables), keep="job")


@pytest.mark.parametrize("name", ["a b", "\u00e4", "x" * 200, "a:b", "s3:", "%20#?", "[1]", "{1..2}", "a\nb", "\udcff"])
def test_parquet_files_of_any_name_are_read(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / f"{name}.parquet"
    with open(path, "wb") as file:
        pq.write_table(numbers(1, 2), file)
    assert plain_rows(sources.Parquet(path, keep="job")) == [{"x": 1}, {"x": 2}]


def test_columns_of_folders_are_read_when_asked_for(tmp_path: pathlib.Path, gathered: list[int]) -> None:
    for year, lang in ((2023, "de"), (2024, "en%20x")):
        folder = tmp_path / f"year={year}/lang={lang}"
        folder.mkdir(parents=True)
        pq.write_table(numbers(year - 2000), folder / "0.parquet")
    pattern = str(tmp_path / "**/*.parquet")
    assert plain_rows(sources.Parquet(pattern, keep="job")) == [{"x": 23}, {"x": 24}]
    both = sources.Parquet(pattern, partitions=["year", "lang"], keep="job")
    assert plain_rows(both)[1] == {"x": 24, "year": 2024, "lang": "en x"}
    chosen = sources.Parquet(pattern, columns=["year", "x"], partitions="year", keep="job")
    assert plain_rows(chosen) == [{"year": 2023, "x": 23}, {"year": 2024, "x": 24}]
    compare(chosen, [[1, 0]])
    assert gathered == [2, 2]
    with pytest.raises(ValueError, match=r"is in no folder named month=\.\.\."):
        sources.Parquet(pattern, partitions=["month"], keep="job")
    with pytest.raises(ValueError, match="has no column"):
        sources.Parquet(pattern, columns=["year"], keep="job")
    pq.write_table(pa.table({"x": [1], "year": [1]}), tmp_path / "year=2023/lang=de/0.parquet")
    with pytest.raises(ValueError, match="two columns named 'year'"):
        sources.Parquet(pattern, partitions=["year"], keep="job")


@needs_failpoints
def test_without_a_writable_home_rows_are_in_memory(tmp_path: pathlib.Path) -> None:
    paths = write_parquet(tmp_path, [numbers(1, 2)])
    script = (
        "import sys, pickle, headrace\nfrom headrace import sources\nsource = sources.Parquet(sys.argv[1])\n"
        "print([int(one['x']) for one in pickle.loads(pickle.dumps(source))])\n"
    )
    path = str(tmp_path / "no-home.parquet")
    os.rename(paths[0], path)
    # Without a home folder the cache would be the user's own in /dev/shm; the failpoint has it in this test's folder.
    no_home = {"HOME": "/proc/none", "HEADRACE_FAIL": "dev_shm:EACCES", "TMPDIR": str(tmp_path)}
    for changed in (no_home, {"HEADRACE_CACHE": "/proc/none"}):
        env = {name: value for name, value in os.environ.items() if name != "HEADRACE_CACHE"} | changed
        done = subprocess.run([sys.executable, "-c", script, path], env=env, capture_output=True, text=True)
        assert done.stdout == "[1, 2]\n" and "are not kept as keep='disk' says" in done.stderr, done.stderr


def test_bad_parquet_files_are_named(parquet: pathlib.Path) -> None:
    bad = parquet / "part-9.parquet"
    bad.write_bytes(b"PAR1" + bytes(40))
    with pytest.raises(ValueError, match=f"{bad} is no Parquet file, or it is damaged"):
        sources.Parquet(parquet / "*.parquet", keep="boot")
    pq.write_table(pa.table({"other": [1]}), bad)
    with pytest.raises(ValueError, match=f"{bad} has no column 'small', which"):
        sources.Parquet(parquet / "*.parquet", keep="boot")
    with pytest.raises(ValueError, match=r"has no column \['none'\]"):
        sources.Parquet(bad, columns=["none"], keep="boot")
    with pytest.raises(FileNotFoundError):
        sources.Parquet(parquet / "none-*.parquet")
