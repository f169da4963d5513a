# SPDX-License-Identifier: Apache-2.0
"""A tensor whose values are made when they are needed: what a native tail returns while a loader reads a batch, if no
code looks at it before the batch is made (headrace.images._proof.untouched).

It knows its shape and dtype. Should C code do anything else with it, that makes the values, and exchanges the object
for an ordinary tensor in place, so that all that refer to it have an ordinary tensor from then on. The worker makes all
deferred tensors of a batch together, in several threads: where the extension collates, in the batch's memory itself,
otherwise before the batch is collated.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch

from headrace import _core
from headrace._base.lookup import static
from headrace._samples.deferred import connect, reading
from headrace._tensors import torch_names
from headrace.images import _counts, _tables
from headrace.images._note import Note
from headrace.images._proof.untouched import touched_at


@contextmanager
def batching() -> Iterator[None]:
    """While it is active, native tails in this thread return deferred tensors, whatever the code does with them."""
    before = reading.is_on, reading.is_forced
    reading.is_on = reading.is_forced = True
    try:
        yield
    finally:
        reading.is_on, reading.is_forced = before


def result_of(note: Note, table: _tables.Table, steps: Sequence[Any], may_defer: bool) -> Any:
    """Returns the tensor of an image: a deferred one while a batch is read, if it may be one and nothing looks at it
    before the batch is made; otherwise with values."""
    if not (may_defer and _can_defer and reading.is_on):
        return _make_one(note, table, steps)
    if place := "" if reading.is_forced else touched_at():
        _counts.made_alone(place)
        return _make_one(note, table, steps)
    deferred = _class_for(table.kind)(note, table, steps)
    if not reading.is_forced:
        _batches.given.append(deferred)
    return deferred


def _make_one(note: Note, table: _tables.Table, steps: Sequence[Any]) -> Any:
    planes = table.empty(note)
    _tables.make([(note, table, steps)], [planes], 1)
    return table.as_result(planes)


_INTERNALS = ("_part", "_made", "_was_collated")  # attributes of a deferred tensor that the ordinary one does not get

# What a deferred tensor answers without its values.
_ANSWERED: set[Any] = {
    *(
        static(torch.Tensor, name).__get__
        for name in ("shape", "dtype", "ndim", "device", "requires_grad", "layout", "is_cuda", "is_sparse")
    ),
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.__len__,
    torch.Tensor.is_floating_point,
}


# Makes C++ code that asks for the memory of a tensor raise an exception. Without it, it would get a null pointer.
_refuse_memory = torch_names.find("torch._C._set_throw_on_mutable_data_ptr")
_storage_users = torch_names.find("torch._C._storage_Use_Count")  # asked by _cdata
_make_wrapper = torch_names.find("torch.Tensor._make_wrapper_subclass")
_without_function = torch_names.find("torch._C.DisableTorchFunctionSubclass")
_tree_map = torch_names.find("torch.utils._pytree.tree_map")
_can_defer = None not in (_make_wrapper, _without_function, _tree_map)


class DeferredTensor(torch.Tensor):
    """See the module."""

    __dlpack_c_exchange_api__ = None  # C code that finds torch.Tensor's does not ask for the values

    _part: tuple[Note, _tables.Table, Sequence[Any]]
    _made: Any = None  # the ordinary tensor, if it was made and the object could not be exchanged
    _was_collated = False  # its values were made once, in the memory of a batch

    @staticmethod
    def __new__(cls, note: Note, table: _tables.Table, steps: Sequence[Any]) -> DeferredTensor:
        made: DeferredTensor = _make_wrapper(cls, table.shape(note), dtype=table.dtype, device=torch.device("cpu"))
        made._part = (note, table, steps)
        if _refuse_memory is not None:
            _refuse_memory(made)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ANSWERED:
            with _without_function():
                return func(*args, **(kwargs or {}))
        args, kwargs = _tree_map(settle, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Answers C++ code that did not ask __torch_function__."""
        args, kwargs = _tree_map(settle, (args, kwargs or {}))
        return func(*args, **kwargs)

    def as_subclass(self, cls: Any) -> Any:
        return settle(self).as_subclass(cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return settle(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return settle(self).__deepcopy__(memo)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(settle(self))


@cache
def _class_for(kind: Any) -> Any:
    """Returns the class of deferred tensors that become `kind`. torchvision asks for the class of its tv_tensors.Image,
    so theirs is a subclass of that."""
    return DeferredTensor if kind is torch.Tensor else type(f"Deferred{kind.__name__}", (DeferredTensor, kind), {})


def settle(value: Any) -> Any:
    """Makes a deferred tensor an ordinary one, in place, and returns it; returns anything else as it is.

    While C++ code holds the tensor, the object cannot be exchanged. Then the ordinary tensor is returned, and kept
    until the object can be.
    """
    if not isinstance(value, DeferredTensor):
        return value
    tensor = value._made
    if tensor is None:
        tensor = value._made = _make_one(*value._part)
    return value if _exchange(value, tensor) else tensor


def _exchange(deferred: Any, tensor: Any) -> bool:
    kept = dict(deferred.__dict__)
    deferred.__dict__.clear()
    try:
        torch.utils.swap_tensors(deferred, tensor)  # type: ignore[no-untyped-call]
    except RuntimeError:
        deferred.__dict__.update(kept)
        return False
    deferred.__dict__.update((name, value) for name, value in kept.items() if name not in _INTERNALS)
    return True


class Batch:
    """Makes the deferred tensors of one batch after the other."""

    def __init__(self) -> None:
        self._memory: dict[tuple[Any, ...], Any] = {}  # kept from batch to batch, by shape and dtype

    def finish(self, samples: Any, threads: int, keeps: bool) -> bool:
        """Makes all deferred tensors in the samples. Unless the caller `keeps` them, their memory is used again for a
        later batch, as soon as no tensor uses it. Returns True if there were any."""
        deferred = find(samples)
        found = [one for one in deferred if one._made is None or not _exchange(one, one._made)]
        if not found:
            return bool(deferred)
        parts = [one._part for one in found]
        targets = [table.empty(note) for note, table, _ in parts] if keeps else self._kept(parts)
        _tables.make(parts, targets, threads)
        for one, target, (_, table, _) in zip(found, targets, parts, strict=True):
            if not _exchange(one, table.as_result(target)):
                one._made = table.as_result(target.clone())
        return True

    def _kept(self, parts: Sequence[Any]) -> list[Any]:
        keys = [(table.shape(note), table.dtype) for note, table, _ in parts]
        memory = {key: self._memory_of(key, keys.count(key)) for key in set(keys)}
        self._memory = memory
        rows = {key: iter(tensor) for key, tensor in memory.items()}
        return [next(rows[key]) for key in keys]

    def _memory_of(self, key: tuple[Any, ...], count: int) -> Any:
        kept = self._memory.get(key)
        if kept is not None and len(kept) >= count and _is_unused(kept):
            return kept
        return torch.empty((count, *key[0]), dtype=key[1], device="cpu")


def _is_unused(memory: Any) -> bool:
    """Returns True if no other tensor uses the memory: a dataset may have kept a sample."""
    owners = 2  # `memory` and the storage that is asked
    return _storage_users is not None and _storage_users(torch_names.storage_key(memory.untyped_storage())) <= owners


class _Batches(threading.local):
    def __init__(self) -> None:
        self.batch = Batch()
        self.given: list[Any] = []  # the deferred tensors of the batch that is read


_batches = _Batches()


def _count_references(objects: list[Any]) -> int:
    one = objects[-1]
    return sys.getrefcount(one)


_ALONE = _count_references([object()])


def _settle_kept() -> None:
    """Makes the deferred tensors of the last batch that something else still refers to, such as lru_cache."""
    given, _batches.given = _batches.given, []
    while given:
        if _count_references(given) > _ALONE:
            with contextlib.suppress(Exception):  # such as MemoryError: they are made when they are asked for
                settle(given[-1])
        given.pop()


def _finish(samples: Any, threads: int, keeps: bool) -> bool:
    found = _batches.batch.finish(samples, threads, keeps)
    _settle_kept()
    return found


# The code and the bits of dtypes in DLPack.
_DTYPES = {
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bool: (6, 8),
}


def _describe(column: list[Any]) -> tuple[Any, ...] | None:
    """Returns what _core.Port.collate needs to make a column of deferred tensors in the batch's memory, or None. A
    tensor that comes a second time was kept by the dataset, and should have values of its own then."""
    shape, dtype = column[0]._part[1].shape(column[0]._part[0]), column[0]._part[1].dtype
    recipes = []
    for one in column:
        note, table, _ = one._part
        if one._made is not None or one._was_collated or table.dtype != dtype or table.shape(note) != shape:
            return None
        recipes.append(table.recipe(note))
    if dtype not in _DTYPES:
        return None
    for one in column:
        one._was_collated = True
    return *_DTYPES[dtype], *shape, recipes


connect(_finish, _settle_kept)
_core.use_images(DeferredTensor, _describe, _counts.has_made)


def find(samples: Any) -> list[Any]:
    """Returns the deferred tensors in nested lists, tuples, mappings and dataclasses, each once."""
    found: dict[int, Any] = {}
    entered: set[int] = set()  # a container may contain itself
    todo = [samples]
    for value in todo:
        if isinstance(value, DeferredTensor):
            found[id(value)] = value
        elif (parts := _parts_of(value)) and id(value) not in entered:
            entered.add(id(value))
            todo.extend(parts)
    return list(found.values())


def _parts_of(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (set, frozenset, deque)):
        return list(value)
    if isinstance(value, Mapping):
        try:
            return list(value.values())
        except Exception:  # code of the user's: the collate function will meet the exception, if it asks too
            return None
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return None
