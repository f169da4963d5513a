# SPDX-License-Identifier: Apache-2.0
"""Recognises datasets whose batches headrace gathers in C: torch's TensorDataset, and its Subset and ConcatDataset
(so also random_split) over TensorDatasets, and the sources of headrace.

The batches are those that torch makes, to the bit: whatever is not known to be the same is left to torch's way, batch
by batch. The tensors are read when a batch is made, because a program may change them between two batches.
"""

from __future__ import annotations

import bisect
import itertools
import sys
from typing import Any, Protocol

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from headrace import _core
from headrace._base import lookup
from headrace._loader.samples import rows as sample_rows
from headrace._tensors import extension
from headrace.torch import _default_collate, _internals

_MODULE = vars(sys.modules["torch.utils.data.dataset"])
_LISTS = {list, tuple, range}


def gatherer_of(dataset: Any, collate_fn: Any) -> sample_rows.Gatherer | None:
    """Returns what gathers the batches of a dataset, or None if torch's way has to make them."""
    if not _default_collate.is_torchs(collate_fn):
        return None
    source = sample_rows.source_of(dataset)
    if source is not None:
        extension.use_torch()
        return sample_rows.SourceGatherer(source)
    node = _node_of(dataset)
    if node is None:
        return None
    extension.use_torch()
    return _TensorGatherer(node)


def batch_of(gatherer: sample_rows.Gatherer, indices: Any, threads: int) -> Any:
    """Returns the batch of these indices in tensors of this process, or None."""
    rows = gatherer.rows(indices)
    if rows is None:
        return None
    dtypes = [getattr(torch, name, None) for name in rows.dtypes]
    if None in dtypes:
        return None
    tensors = (torch.empty(shape, dtype=dtype) for shape, dtype in zip(rows.shapes, dtypes, strict=True))
    return rows.into(tuple(tensors), threads)


# ---- torch's datasets ----


def _is_torchs(kind: type, name: str) -> bool:
    """Returns True if a class has torch's own method of this name."""
    function: Any = vars(kind).get(name)
    return lookup.attribute(function, "__globals__") is _MODULE and function.__qualname__ == f"{kind.__name__}.{name}"


def _is_plain(dataset: Any, kind: type) -> bool:
    """Returns True if a dataset is exactly of this class of torch's, and neither a program nor another library has
    replaced how it gives its samples."""
    if type(dataset) is not kind or "__getitems__" in vars(dataset) or not _is_torchs(kind, "__getitem__"):
        return False
    if lookup.has_special(dataset, "__getattr__") or _has_own_lookup(kind):
        return False
    return not hasattr(kind, "__getitems__") or _is_torchs(kind, "__getitems__")


def _has_own_lookup(kind: type) -> bool:
    return any("__getattribute__" in vars(base) for base in kind.__mro__[:-1])


class _Node(Protocol):
    """A dataset of the tree: a TensorDataset or a wrapper."""

    dataset: Any
    leaves: list[_Leaf]  # the TensorDatasets under it

    def is_plain(self) -> bool:
        """Returns True if it still is what it was when the tree was built, and its methods are torch's."""

    def resolve(self, indices: list[int]) -> list[Any] | None:
        """Returns the numbers of the rows, which count those of all leaves, or None."""


class _Leaf:
    """A TensorDataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.leaves = [self]

    def is_plain(self) -> bool:
        return _is_plain(self.dataset, TensorDataset)

    def resolve(self, indices: list[int]) -> list[Any] | None:
        return indices

    @property
    def tensors(self) -> tuple[torch.Tensor, ...] | None:
        """The tensors, if there are any and nothing but plain tensors without names."""
        tensors = vars(self.dataset).get("tensors")
        if type(tensors) is not tuple or set(map(type, tensors)) != {torch.Tensor}:
            return None
        return None if any(_has_names(one) or not one.dim() for one in tensors) else tensors


def _has_names(tensor: Any) -> bool:
    """Returns True if the dimensions of a tensor have names, which torch 2.13 has no more."""
    return any(getattr(tensor, "names", ()))


class _Part:
    """A Subset."""

    def __init__(self, dataset: Any, inner: _Node) -> None:
        self.dataset = dataset
        self._inner = inner
        self.leaves = inner.leaves

    def is_plain(self) -> bool:
        is_same = vars(self.dataset).get("dataset") is self._inner.dataset
        return is_same and _is_plain(self.dataset, Subset) and self._inner.is_plain()

    def resolve(self, indices: list[int]) -> list[Any] | None:
        picked = _pick(vars(self.dataset).get("indices"), indices)
        return None if picked is None else self._inner.resolve(picked)


class _Chain:
    """A ConcatDataset."""

    def __init__(self, dataset: Any, inner: list[_Node]) -> None:
        self.dataset = dataset
        self._inner = inner
        self.leaves = [leaf for one in inner for leaf in one.leaves]

    def is_plain(self) -> bool:
        datasets = vars(self.dataset).get("datasets")
        is_same = type(datasets) is list and list(map(id, datasets)) == [id(one.dataset) for one in self._inner]
        return is_same and _is_plain(self.dataset, ConcatDataset) and all(one.is_plain() for one in self._inner)

    def resolve(self, indices: list[int]) -> list[Any] | None:
        ends = vars(self.dataset).get("cumulative_sizes")
        if type(ends) is not list or not ends:
            return None
        counts = [sum(leaf.tensors[0].shape[0] for leaf in one.leaves if leaf.tensors) for one in self._inner]
        firsts = [0, *itertools.accumulate(counts)]
        if ends == firsts[1:] and all(type(one) is _Leaf for one in self._inner):
            return indices
        rows = [self._row_of(index, ends, firsts) for index in indices]
        return None if None in rows else rows

    def _row_of(self, index: Any, ends: list[int], firsts: list[int]) -> int | None:
        if type(index) is not int or not 0 <= index < ends[-1]:
            return None
        number = bisect.bisect_right(ends, index)
        found = self._inner[number].resolve([index - (ends[number - 1] if number else 0)])
        if found is None or type(found[0]) is not int:
            return None
        row: int = firsts[number] + found[0]
        return row if firsts[number] <= row < firsts[number + 1] else None


def _node_of(dataset: Any) -> _Node | None:
    if type(dataset) is TensorDataset:
        return _Leaf(dataset)
    if type(dataset) is Subset:
        inner = _node_of(vars(dataset).get("dataset"))
        return None if inner is None else _Part(dataset, inner)
    if type(dataset) is not ConcatDataset:
        return None
    nodes = [_node_of(one) for one in vars(dataset).get("datasets", ())]
    return _Chain(dataset, nodes) if nodes and None not in nodes else None  # type: ignore[arg-type]


def _pick(numbers: Any, indices: list[int]) -> list[Any] | None:
    """Returns the numbers at these indices, or None if Subset's own way has to look them up."""
    if set(map(type, indices)) != {int}:
        return None
    try:
        if type(numbers) in _LISTS:
            return [numbers[index] for index in indices]
        if _is_array(numbers, "numpy", "ndarray") or (type(numbers) is torch.Tensor and numbers.device.type == "cpu"):
            is_plain = numbers.ndim == 1 and str(numbers.dtype).removeprefix("torch.") in ("int32", "int64")
            return numbers[indices].tolist() if is_plain else None
    except IndexError:
        pass
    return None


def _is_array(value: Any, module: str, name: str) -> bool:
    return (type(value).__module__, type(value).__qualname__) == (module, name)


class _TensorGatherer:
    """Gathers the rows of TensorDatasets."""

    def __init__(self, root: _Node) -> None:
        self._root = root
        self.name = type(root.dataset).__name__

    def rows(self, indices: Any) -> _core.Rows | None:
        if type(indices) is not list or _internals.has_modes() or not self._root.is_plain():
            return None
        tensors = [leaf.tensors for leaf in self._root.leaves]
        if None in tensors or len(set(map(len, tensors))) != 1:  # type: ignore[arg-type]
            return None
        rows = self._root.resolve(indices)
        columns = _core.Columns.of(tuple(zip(*tensors, strict=True)))
        return None if columns is None or rows is None else columns.rows(rows)
