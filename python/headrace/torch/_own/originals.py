# SPDX-License-Identifier: Apache-2.0
"""Knows whether functions of torch, whose work headrace does itself, are still torch's own.

A program or a library may replace a method of a class, a function of a module, the code of a function, or an entry of a
table, also while a loop runs. So the code that does the work of such functions asks at the moment at which torch would
call them: for samplers when an epoch begins, for batches when their samples have been made.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from headrace._base import lookup
from headrace._tensors import torch_names
from headrace.torch._own.classes import (
    UTILS,
    BatchSampler,
    DatasetKind,
    DistributedSampler,
    IterableFetcher,
    MapFetcher,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

try:
    from headrace._core import Originals
except ImportError:  # the fallback knows torch's samplers, too

    class Originals:  # type: ignore[no-redef]
        """Does what _core.Originals does for methods of classes."""

        def __init__(self, rows: tuple[tuple[Any, Any, Any], ...]) -> None:
            self._rows = rows

        def hold(self) -> bool:
            """Returns True if all of them are what they were."""
            return all(_now(holder, key) is expected for holder, key, expected in self._rows)


_Row = tuple[Any, Any, Any]


_HEAP_TYPE = 1 << 9  # of type.__flags__: a program can change the class


def _now(holder: Any, key: Any) -> Any:
    """Returns what _core.Originals finds: a class that a program cannot change counts as having nothing."""
    if inspect.isfunction(holder):
        return holder.__code__
    names = (lookup.static_dict(one) for one in lookup.static_mro(holder) if one.__flags__ & _HEAP_TYPE)
    return next((one[key] for one in names if key in one), ...)


class Replaced(Exception):
    """Raised if a program has replaced one of torch's functions before headrace was imported."""


def _code_row(function: Any, names: dict[str, Any], qualified_name: str) -> _Row:
    """Returns the row of a function's code. names: the namespace of torch's module."""
    if inspect.isfunction(function) and function.__globals__ is names and function.__qualname__ == qualified_name:
        return function, None, function.__code__
    raise Replaced(qualified_name)


def _method(kind: type, name: str) -> Iterable[_Row]:
    """Yields the rows of a method, static method or property that one of torch's classes has itself."""
    if not kind.__module__.startswith("torch."):  # a program's class, which it has put under the name of torch's
        raise Replaced(kind.__qualname__)
    found = lookup.static_dict(kind).get(name)
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    yield _code_row(function, vars(sys.modules[kind.__module__]), f"{kind.__qualname__}.{name}")
    yield kind, name, found


def _lookups(kind: type) -> Iterable[_Row]:
    """Yields the rows by which an attribute of an object of a class is found as in `object`."""
    for name in ("__getattribute__", "__getattr__"):
        if lookup.static(kind, name) not in (None, lookup.static(object, name)):
            raise Replaced(f"{kind.__qualname__}.{name}")
        yield kind, name, ...


def _originals(rows: Iterable[_Row]) -> Originals | None:
    try:
        return Originals(tuple(rows))
    except Replaced:
        return None


# ---- samplers ----

_SAMPLERS: dict[type, Originals | None] = {
    kind: _originals([row for name in names for row in _method(kind, name)] + list(_lookups(kind)))
    for kind, names in {
        BatchSampler: ("__iter__",),
        DistributedSampler: ("__iter__",),
        RandomSampler: ("__iter__", "num_samples"),
        SequentialSampler: ("__iter__",),
        SubsetRandomSampler: ("__iter__",),
        WeightedRandomSampler: ("__iter__",),
    }.items()
}
SAMPLERS = frozenset(_SAMPLERS)


def has_own_methods(kind: type) -> bool:
    """Returns True if one of torch's samplers is iterated by torch's own code."""
    found = _SAMPLERS[kind]
    return found is not None and found.hold()


# ---- batches ----

# torch's datasets, and their attributes that headrace takes from the __dict__ of an object.
_DATASETS = {
    TensorDataset: ("tensors",),
    Subset: ("dataset", "indices"),
    ConcatDataset: ("datasets", "cumulative_sizes"),
}
_COLLATE: Any = sys.modules.get(f"{UTILS}.collate")


def _collate_rows() -> Iterable[_Row]:
    """Yields the rows of torch's default_collate: its functions, its table, and what these call."""
    names, table = vars(_COLLATE), _COLLATE.default_collate_fn_map
    for name in ("default_collate", "collate"):
        yield _code_row(names[name], names, name)
    yield names, "collate", names["collate"]
    yield names, "default_collate_fn_map", table
    yield table, None, len(table)
    for kind, function in table.items():
        yield _code_row(function, names, function.__name__)
        yield table, kind, function
    for name in ("stack", "tensor", "as_tensor"):
        function = vars(torch)[name]
        if not inspect.isbuiltin(function):
            raise Replaced(f"torch.{name}")
        yield vars(torch), name, function


def _fetch_rows() -> Iterable[_Row]:
    """Yields the rows of what makes torch's fetchers, and of these."""
    for kind in (MapFetcher, IterableFetcher):
        yield vars(sys.modules[kind.__module__]), kind.__name__, kind
        yield from _method(kind, "fetch")
    yield from _method(DatasetKind, "create_fetcher")


def _dataset_rows() -> Iterable[_Row]:
    for kind, attributes in _DATASETS.items():
        yield from _lookups(kind)
        for name in attributes:
            yield kind, name, ...  # no property
        for name in ("__getitem__", "__getitems__"):
            if name in lookup.static_dict(kind):
                yield from _method(kind, name)
            elif lookup.static(kind, name) is None:
                yield kind, name, ...
            else:
                raise Replaced(f"{kind.__qualname__}.{name}")
    yield torch.Tensor, "__getitem__", _now(torch.Tensor, "__getitem__")


def _made(*parts: Any) -> Originals | None:
    if None in (_COLLATE, MapFetcher, IterableFetcher, DatasetKind) or not torch_names.find(
        f"{UTILS}.collate.default_collate_fn_map"
    ):
        return None
    try:
        return Originals(tuple(row for part in parts for row in part()))
    except (Replaced, AttributeError, KeyError):
        return None


default_collate: Any = getattr(_COLLATE, "default_collate", None)
_collating = _made(_collate_rows)
_fetching = _made(_fetch_rows)
_of_datasets = _made(_dataset_rows)


def collates() -> bool:
    """Returns True if torch's default_collate does what it did when headrace was imported."""
    return _collating is not None and _collating.hold()


def fetches() -> bool:
    """Returns True if torch's fetchers take the samples of a dataset, and collate them, by their own code."""
    return _fetching is not None and _fetching.hold()


def gives_items() -> bool:
    """Returns True if torch's TensorDataset, Subset and ConcatDataset give their samples by torch's own code."""
    return _of_datasets is not None and _of_datasets.hold()
