# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Arrow: rows of tables, of Hugging Face's datasets and of what pyarrow.table() takes."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import _core
from headrace.sources._arrow_columns import Column, are_among, columns_of
from headrace.sources._source import Source

_NAME = "Arrow"
_OF_TABLES = ("arrow", "pandas", "polars")  # formats whose rows are tables


class Arrow(Source):
    """Samples are the rows of a table, as dicts: `{"input_ids": array([...]), "label": 3}`.

    table: a Dataset of Hugging Face's datasets, whose shuffle, select, columns and format are kept; a pyarrow.Table;
        or what pyarrow.table() takes: a DataFrame of polars or pandas, a dict of lists.
    columns: the names of the columns that a sample has, in this order; None: all.
    keep_dtypes: False: numbers come as `with_format("torch")` gives them: integers as int64, floats as float32. True:
        they keep their dtypes.

    Columns of numbers, and of lists of numbers, are read by address: a number is a NumPy scalar, a list an array. A
    null among floats is NaN; a sample with another null there is a ValueError. All other columns of a Dataset are made
    by datasets, in the format that it has; those of a table give what pyarrow's as_py() gives; `report()` says which.
    If there are only columns of numbers, and the lists of a batch have one length, a loader with its default collate
    function gathers the batch in C. A transform of a Dataset (set_transform) is left to datasets.

    Raises ImportError without pyarrow, TypeError and ValueError for what is no table, or several (a DatasetDict).
    """

    gathers = True

    def __init__(self, table: Any, *, columns: Sequence[str] | None = None, keep_dtypes: bool = False) -> None:
        self._keep_dtypes = bool(keep_dtypes)
        self._wanted = None if columns is None else _check_names(columns)
        _check_single(table)
        self._dataset: Any = table if _is_dataset(table) else None
        self._table: Any = None if self._dataset is not None else _table_of(table)
        self._read()

    def _read(self) -> None:
        """Finds the columns of the table or dataset."""
        self._numbers: Any = None  # the row of each sample; None: all rows in their order
        self._read_by = ""  # why datasets has to make the samples itself
        self._others: Any = None  # the Dataset with the columns that are not read by address
        self._found: dict[str, Column] = {}
        if self._dataset is None:
            self._names = self._wanted or tuple(self._table.column_names)
            self._read_table(self._table)
            return
        self._seen = self._fingerprint
        table, self._numbers, names, self._read_by = _look_into(self._dataset)
        self._names = self._wanted or names
        if self._read_by:
            self._length = len(self._dataset)
        else:
            self._read_table(table)
            self._leave_others()

    def _leave_others(self) -> None:
        """Leaves the columns that are not read by address to datasets, in the format of the Dataset."""
        names = [name for name, one in self._found.items() if not one.pieces]
        if names:
            kind = self._dataset.format["type"]
            self._others = self._dataset.with_format(None if kind in _OF_TABLES else kind, columns=names)

    @property
    def _fingerprint(self) -> Any:
        """Returns what datasets changes with each change of a Dataset, also of one in place, such as set_format."""
        return getattr(self._dataset, "_fingerprint", None)

    def _follow(self) -> None:
        """Reads the dataset again if it was changed in place."""
        if self._dataset is not None and self._fingerprint != self._seen:
            self._read()

    def _read_table(self, table: Any) -> None:
        missing = [name for name in self._names if name not in table.column_names]
        if missing or not self._names:
            raise ValueError(f"{_NAME}: there is no column {missing[:3]}; the table has {table.column_names}")
        self._found = columns_of(table, self._names, self._keep_dtypes)
        self._length = table.num_rows if self._numbers is None else len(self._numbers)
        self._gathered = self._columns_in_c()

    def _columns_in_c(self) -> _core.Columns | None:
        pieces = [one.pieces for one in self._found.values()]
        if not all(pieces):
            return None
        return self._make_columns(tuple(pieces), self._names, widens=not self._keep_dtypes)

    # ---- samples ----

    def _count(self) -> int:
        self._follow()
        return self._length

    def _sample(self, index: int) -> Any:
        self._follow()
        if self._read_by:
            sample = self._dataset[index]
            return sample if self._wanted is None else {name: sample[name] for name in self._wanted}
        row = index if self._numbers is None else int(self._numbers[index])
        # As torch's loader asks for samples; a single row has other dtypes in some formats.
        others = {} if self._others is None else self._others.__getitems__([index])[0]
        return {name: others[name] if name in others else column.value(row) for name, column in self._found.items()}

    def rows(self, indices: list[int]) -> _core.Rows | None:
        """See RowSource.rows."""
        self._follow()
        if self._read_by or self._gathered is None:
            return None
        count, nulls = self._length, [one.nulls for one in self._found.values() if len(one.nulls)]
        if self._numbers is None and not nulls:
            return self._gathered.rows(indices)
        if not all(type(index) is int and 0 <= index < count for index in indices):
            return None
        rows = indices if self._numbers is None else self._numbers[indices].tolist()
        if any(are_among(rows, one) for one in nulls):
            return None
        return self._gathered.rows(rows)

    # ---- what it is ----

    def where(self, index: int) -> str:
        """Returns the row of a sample in its table, and the files of the table, if datasets has mapped some."""
        number = self._check_index(index)
        row = number if self._read_by or self._numbers is None else int(self._numbers[number])
        files = [one.get("filename") for one in getattr(self._dataset, "cache_files", None) or ()]
        return f"row {row:,} of {', '.join(map(str, files)) or 'a table in memory'}"

    def report(self) -> dict[str, Any]:
        """Returns "samples"; "columns": for each its type and how it is read, "in C", "by pyarrow" or "by datasets";
        "gathered": True if a loader gathers whole batches; and "left_to_datasets": why datasets makes the samples
        itself, or ""."""
        columns = {
            name: {"type": str(one.type), "read": one.how if one.pieces or self._others is None else "by datasets"}
            for name, one in self._found.items()
        }
        gathered = not self._read_by and self._gathered is not None
        return {
            "samples": self._length,
            "columns": columns,
            "gathered": gathered,
            "left_to_datasets": self._read_by,
        }

    def _describe(self) -> str:
        kind = "a table" if self._dataset is None else type(self._dataset).__name__
        return f"{kind}, {self._length:,} rows, columns={list(self._names)}"

    # ---- other processes ----

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_dataset", "_keep_dtypes", "_wanted")
        state = {name: self.__dict__[name] for name in kept}
        return state if self._dataset is not None else {**state, "_frozen": self._freeze()}

    def _freeze(self) -> Any:
        """Returns the table as bytes in shared memory, made once: the pickle of frozen data is a handle."""
        if "_frozen" not in self.__dict__:
            from headrace.frozen import freeze

            self._frozen = freeze(_bytes_of(self._table))
        return self._frozen

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = None if self._dataset is not None else open_stream(self._frozen)
        self._read()


# ---- tables ----


def need_pyarrow(name: str) -> Any:
    """Imports pyarrow. Raises ImportError that says what to install."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"sources.{name} needs pyarrow: pip install pyarrow ({error})") from None
    return pyarrow


def _check_names(columns: Any) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{_NAME}: columns should be names, but got {columns!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{_NAME}: give each column once, and at least one, not columns={columns!r}")
    return names


def _check_single(table: Any) -> None:
    """Raises TypeError for several tables at once, as datasets.load_dataset gives without split=, and for streams."""
    if isinstance(table, Mapping):
        splits = [name for name, one in table.items() if hasattr(one, "column_names") or hasattr(one, "columns")]
        if splits:
            raise TypeError(
                f"{_NAME}: the {type(table).__name__} has several tables, {splits}; give one of them, such as "
                f"dataset[{splits[0]!r}] or datasets.load_dataset(..., split={splits[0]!r})"
            )
    kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    if isinstance(kind, type) and isinstance(table, kind):
        raise TypeError(
            f"{_NAME}: the {type(table).__name__} is a stream, without rows at random. Give it to the loader "
            "as it is, or load it without streaming=True"
        )


def _table_of(table: Any) -> Any:
    pyarrow = need_pyarrow(_NAME)
    if isinstance(table, pyarrow.Table):
        return _check_table(table)
    try:
        return _check_table(pyarrow.table(table))
    except (TypeError, ValueError, pyarrow.ArrowException) as error:
        raise TypeError(
            f"{_NAME}: should be a Dataset of datasets, a pyarrow.Table, or what pyarrow.table() takes, but got "
            f"{type(table).__name__}: {error}"
        ) from None


def _check_table(table: Any) -> Any:
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError(f"{_NAME}: the table has two columns of one name: {names}")
    return table


def _bytes_of(table: Any) -> Any:
    """Returns a table as a stream of Arrow's IPC format, in an array of uint8."""
    import numpy as np

    pyarrow = need_pyarrow(_NAME)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def open_stream(data: Any) -> Any:
    """Returns the table of a stream that is in memory, without a copy."""
    pyarrow = need_pyarrow(_NAME)
    with pyarrow.ipc.open_stream(pyarrow.py_buffer(memoryview(data))) as reader:
        return reader.read_all()


# ---- Hugging Face's datasets ----


def _is_dataset(table: Any) -> bool:
    module = sys.modules.get("datasets")
    kind = getattr(module, "Dataset", None)
    return isinstance(kind, type) and isinstance(table, kind)


_READERS = ("__getitem__", "__getitems__", "_getitem", "__len__", "format")
_HELPERS = ("query_table", "format_table", "get_formatter")


def _is_plain(dataset: Any) -> bool:
    """Returns True if a Dataset gives its samples by the methods of datasets, which are neither overridden nor
    replaced."""
    base: Any = sys.modules["datasets"].Dataset
    module = sys.modules.get(base.__module__)
    package = sys.modules["datasets"]
    used = [getattr(base, name) for name in _READERS if hasattr(base, name)]
    used += [getattr(module, name) for name in _HELPERS if hasattr(module, name)]
    is_of_class = all(getattr(type(dataset), name, None) is getattr(base, name, None) for name in _READERS)
    is_of_instance = any(name in vars(dataset) for name in _READERS if name != "format")
    return is_of_class and not is_of_instance and all(_is_written_in(package, one) for one in used)


def _is_written_in(package: Any, function: Any) -> bool:
    """Returns True for a function or property whose code is a file of a package."""
    code = getattr(getattr(function, "fget", function), "__code__", None)
    path: str | None = getattr(package, "__file__", None)
    return code is not None and path is not None and code.co_filename.startswith(os.path.dirname(path) + os.sep)


def _has_own_formatter(dataset: Any, kind: Any) -> bool:
    """Returns True if the format of a Dataset is made by another class than that of datasets, or by a changed one."""
    package: Any = sys.modules["datasets"]
    get_formatter = getattr(sys.modules.get("datasets.formatting"), "get_formatter", None)
    if get_formatter is None:
        return False
    made = type(get_formatter(kind, features=dataset.features))
    classes = [one for one in made.__mro__ if one.__module__.partition(".")[0] == package.__name__]
    functions = [one for found in classes for one in vars(found).values() if isinstance(one, types.FunctionType)]
    return made not in classes or not all(_is_written_in(package, one) for one in functions)


def _look_into(dataset: Any) -> tuple[Any, Any, tuple[str, ...], str]:
    """Returns the table of a Dataset, the row of each of its samples, the columns of its format, and why datasets has
    to make the samples itself, or ""."""
    form = dataset.format
    columns = dataset.column_names  # datasets gives the columns of a format in their order
    names = tuple(name for name in columns if name in (form["columns"] or ()))
    kind = form["type"]
    if not _is_plain(dataset):
        return None, None, names, "it is of a subclass with samples of its own, or datasets' readers were replaced"
    if kind == "custom" or form.get("format_kwargs"):
        return None, None, names, "its format has a function or options of the user's"
    if _has_own_formatter(dataset, kind):
        return None, None, names, f"its format {kind!r} is not that of datasets"
    if form.get("output_all_columns") and len(names) < len(columns):
        names = (*names, *(name for name in columns if name not in names))
        return None, None, names, "its format has output_all_columns, so some columns are in another format"
    table: Any = getattr(dataset, "data", None)
    if not hasattr(table, "table") or not hasattr(dataset, "_indices"):
        return None, None, names, "this version of datasets does not show its table"
    indices: Any = dataset._indices
    numbers = None if indices is None else indices.column(0).to_numpy()
    return table.table, numbers, names, ""
