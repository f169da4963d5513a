# SPDX-License-Identifier: Apache-2.0
"""Recognises datasets whose batches headrace gathers in C: torch's TensorDataset, and its Subset and ConcatDataset
(so also random_split) over TensorDatasets, and the sources of headrace.

The batches are those that torch makes, to the bit: whatever is not known to be the same is left to torch's way, batch
by batch. The tensors are read when a batch is made, because a program may change them between two batches, and torch's
functions are looked at then, too.
"""

from __future__ import annotations

import bisect
import itertools
import os
from typing import Any, Protocol

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from headrace import _core
from headrace._samples import rows as sample_rows
from headrace._samples.mixed import MixedDataset, is_mixed
from headrace._tensors import extension
from headrace.torch._batches import default_collate
from headrace.torch._own import originals

_LISTS = {list, tuple, range}
_MOST_LEAVES = 16  # each batch looks at all TensorDatasets under a ConcatDataset: with many, torch's way is faster
_HAVE_NAMES = hasattr(torch.Tensor, "names")


def gatherer_of(dataset: Any, collate_fn: Any) -> _Proving | None:
    """Returns what gathers the batches of a dataset, or None if torch's way has to make them."""
    if not default_collate.is_torchs(collate_fn):
        return None
    gatherer: sample_rows.RowGatherer | None = sample_rows.gatherer_of_source(dataset)
    node = None if gatherer is not None else _node_of(dataset)
    if node is not None and len(node.leaves) <= _MOST_LEAVES:
        gatherer = _TensorGatherer(node)
    if gatherer is None:
        return None
    extension.use_torch()
    return _Proving(gatherer)


def batch_of(rows: _core.Rows, threads: int) -> Any:
    """Returns the batch of these rows in tensors of this process, or None."""
    dtypes = [getattr(torch, name, None) for name in rows.dtypes]
    if None in dtypes:
        return None
    tensors = (torch.empty(shape, dtype=dtype) for shape, dtype in zip(rows.shapes, dtypes, strict=True))
    return rows.into(tuple(tensors), threads)


# ---- torch's datasets ----


class _Plain:
    """A dataset that is exactly of a class of torch's."""

    def __init__(self, dataset: Any, kind: type) -> None:
        self.dataset = dataset
        self._kind = kind

    def is_plain(self) -> bool:
        """Returns True if the dataset is still of this class, and gives its samples by the methods of its class."""
        return type(self.dataset) is self._kind and "__getitems__" not in vars(self.dataset)


class _Node(Protocol):
    """A dataset of the tree: a TensorDataset or a wrapper."""

    dataset: Any
    leaves: list[_Leaf]  # the TensorDatasets under it

    def is_plain(self) -> bool:
        """Returns True if it still is what it was when the tree was built."""

    def resolve(self, indices: list[int]) -> list[Any] | None:
        """Returns the numbers of the rows, which count those of all leaves, or None."""


class _Leaf(_Plain):
    """A TensorDataset."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, TensorDataset)
        self.leaves = [self]

    def resolve(self, indices: list[int]) -> list[Any] | None:
        return indices

    @property
    def tensors(self) -> Any:
        return vars(self.dataset).get("tensors")


def _has_names(tensor: Any) -> bool:
    """Returns True if the dimensions of a tensor have names, which torch 2.13 has no more."""
    return _HAVE_NAMES and any(getattr(tensor, "names", ()))


class _Part(_Plain):
    """A Subset."""

    def __init__(self, dataset: Any, inner: _Node) -> None:
        super().__init__(dataset, Subset)
        self._inner = inner
        self.leaves = inner.leaves

    def is_plain(self) -> bool:
        is_same = vars(self.dataset).get("dataset") is self._inner.dataset
        return is_same and super().is_plain() and self._inner.is_plain()

    def resolve(self, indices: list[int]) -> list[Any] | None:
        picked = _pick(vars(self.dataset).get("indices"), indices)
        return None if picked is None else self._inner.resolve(picked)


class _Chain(_Plain):
    """A ConcatDataset."""

    def __init__(self, dataset: Any, inner: list[_Node]) -> None:
        super().__init__(dataset, ConcatDataset)
        self._inner = inner
        self.leaves = [leaf for one in inner for leaf in one.leaves]

    def is_plain(self) -> bool:
        datasets = vars(self.dataset).get("datasets")
        is_same = type(datasets) is list and list(map(id, datasets)) == [id(one.dataset) for one in self._inner]
        return is_same and super().is_plain() and all(one.is_plain() for one in self._inner)

    def resolve(self, indices: list[int]) -> list[Any] | None:
        ends = vars(self.dataset).get("cumulative_sizes")
        if type(ends) is not list or not ends:
            return None
        counts = [sum(len(leaf.tensors[0]) for leaf in one.leaves) for one in self._inner]
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


class _Mixed(_Chain):
    """The dataset of a headrace.Mixture. It has the attributes of a ConcatDataset."""

    def is_plain(self) -> bool:
        datasets = self.dataset.datasets
        is_same = type(datasets) is list and list(map(id, datasets)) == [id(one.dataset) for one in self._inner]
        return is_same and is_mixed(self.dataset) and all(one.is_plain() for one in self._inner)

    def resolve(self, indices: list[int]) -> list[Any] | None:
        if set(map(type, indices)) != {int} or min(indices) < 0:
            return None
        count = len(self.dataset)
        return super().resolve([index % count for index in indices])


def _mixed_node_of(dataset: MixedDataset) -> _Node | None:
    nodes = [_node_of(one) for one in dataset.datasets]
    return None if None in nodes else _Mixed(dataset, nodes)  # type: ignore[arg-type]


def _node_of(dataset: Any) -> _Node | None:  # shortcut: torch-rows
    if is_mixed(dataset):
        return _mixed_node_of(dataset)
    if type(dataset) is TensorDataset:
        return _Leaf(dataset)
    if type(dataset) is Subset:
        inner = _node_of(vars(dataset).get("dataset"))
        return None if inner is None else _Part(dataset, inner)
    if type(dataset) is not ConcatDataset:
        return None
    nodes = [_node_of(one) for one in vars(dataset).get("datasets", ())]
    return _Chain(dataset, nodes) if nodes and None not in nodes else None  # type: ignore[arg-type]


def _pick(numbers: Any, indices: list[int]) -> list[Any] | None:  # shortcut: torch-rows
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


class _Proving:
    """Leaves batches to torch's way if torch's functions were replaced, or while a mode sees them: one of these is
    torch.set_default_device, with which torch collates arrays to another device. The first batch of each layout is made
    in both ways; if they differ, that layout is left to torch's way."""

    def __init__(self, gatherer: sample_rows.RowGatherer) -> None:
        self._gatherer = gatherer
        self.name = gatherer.name

    def rows(self, indices: Any) -> _core.Rows | None:
        if not (originals.fetches() and default_collate.is_as_ever()):
            return None
        rows = self._gatherer.rows(indices)
        return None if rows is None or _layouts.get((self.name, rows.layout)) is False else rows

    def proof(self, rows: _core.Rows) -> Proof | None:
        """Returns what compares the batch with torch's, if none of this layout was compared yet."""
        key = self.name, rows.layout
        return Proof(key, batch_of(rows, 1)) if COMPARES or key not in _layouts else None


COMPARES = os.environ.get("HEADRACE_COMPARE") == "1"  # compares all batches, for tests
_layouts: dict[tuple[str, bytes], bool] = {}  # those that were compared in this process: are the batches equal?


class Proof:
    """A batch that was gathered. `compare` is given that of torch's way."""

    def __init__(self, key: tuple[str, bytes], batch: Any) -> None:
        self._key, self._batch = key, batch

    def compare(self, batch: Any) -> None:
        """Notes whether batches of this layout may be gathered."""
        if self._batch is None:
            return
        is_same = _is_same(self._batch, batch)
        if COMPARES and not is_same and _layouts.get(self._key):
            raise RuntimeError(f"headrace: a gathered batch of a {self._key[0]} is another one than torch's")
        _layouts[self._key] = is_same


def _is_same(one: Any, other: Any) -> bool:
    """Returns True if two batches are the same to the bit, with equal strides."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
        return False
    is_flat = one.device == other.device and not (one.requires_grad or other.requires_grad or other.is_conj())
    return is_flat and torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


class _TensorGatherer:
    """Gathers the rows of TensorDatasets."""

    def __init__(self, root: _Node) -> None:
        self._root = root
        self.name = type(root.dataset).__name__

    def rows(self, indices: Any) -> _core.Rows | None:
        if type(indices) is not list or not (self._root.is_plain() and originals.gives_items()):
            return None
        tensors = [leaf.tensors for leaf in self._root.leaves]
        if set(map(type, tensors)) != {tuple} or len(set(map(len, tensors))) != 1:
            return None
        pieces = tuple(zip(*tensors, strict=True))
        if any(len(set(map(type, one))) > 1 for one in pieces):
            return None  # torch collates by the class of the first sample, and may refuse the others
        columns = _core.Columns.of(pieces)
        if columns is None or any(map(_has_names, itertools.chain(*tensors))):
            return None
        if any(len(set(map(len, one))) > 1 for one in tensors):  # a program has changed them
            return None
        rows = self._root.resolve(indices)
        return None if rows is None else columns.rows(rows)
