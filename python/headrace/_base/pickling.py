# SPDX-License-Identifier: Apache-2.0
"""Pickles a batch that is not a plain tree: as one pickle, with its arrays and tensors next to it.

The extension calls `dump` in the worker and `load` in the trainer. A child is a tensor or a buffer. It is stored in the
slot as it is, and is not copied into the pickle.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace import _core

_HEAD = struct.Struct("<II")  # the number of tensors and of arrays among the children; the pickle's buffers follow
_loading = threading.local()
_VIEWS = (_core.FrozenList, _core.FrozenTuple, _core.FrozenDict, _core.FrozenSet)
# With protocols before 5 (the default since CPython 3.14), torch sends an array of foreign byte order as a native one.
_MAKES_NATIVE = pickle.DEFAULT_PROTOCOL < 5


class Pickler(ForkingPickler):
    """multiprocessing's pickler with its reductions, protocol 5, and buffers out of band."""

    is_exact = False  # True: an array keeps its byte order, and a tensor its values, also where torch loses them

    def __init__(self, file: io.BytesIO) -> None:
        self.tensors: list[Any] = []
        self.arrays: list[Any] = []
        self.buffers: list[Any] = []
        buffers = self.buffers

        # Not a method, because a cycle would keep the sent objects alive.
        def keep(buffer: pickle.PickleBuffer) -> bool:
            buffers.append(buffer.raw())
            return False  # out of band

        super().__init__(file, 5, True, keep)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is getattr(sys.modules.get("numpy"), "ndarray", None):
            if _MAKES_NATIVE and not self.is_exact and not value.dtype.isnative:
                return value.__reduce__()
            if self.is_exact and not value.dtype.isnative and not value.flags.c_contiguous:
                value = value.copy()  # numpy pickles one with gaps in another way, which comes back as a native one
            if not value.flags.writeable:
                return self._reduce_read_only(value)
            return value.__reduce_ex__(5)  # not by the reduction of the cache, which is for arrays of the cache
        if type(value) in _VIEWS and _core.where(value)[0].small_items and not self.is_exact:
            return _as_it_is, (_core.thaw(value),)  # the batches of a loader with freeze=True have ordinary containers
        return NotImplemented

    def _reduce_read_only(self, array: Any) -> Any:
        """Reduces an array as numpy does, except for its buffer, which the pickle would load as a read-only one. The
        consumer may write to the arrays of a batch."""
        function, arguments, *rest = array.__reduce_ex__(5)
        if not isinstance(arguments[0], pickle.PickleBuffer):
            return function, arguments, *rest
        self.arrays.append(arguments[0].raw())
        return _rebuild_array, (len(self.arrays) - 1, function, *arguments[1:])

    def finish(self) -> list[Any]:
        """Returns the children, after everything is pickled."""
        return self.tensors + self.arrays + self.buffers


def _as_it_is(value: Any) -> Any:
    return value


def _rebuild_array(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_loading.arrays[number], *arguments)


class _Kind:
    """The pickler that `dump` uses. headrace.torch replaces it."""

    pickler: type[Pickler] = Pickler


def use_pickler(pickler: type[Pickler]) -> None:
    """Sets the pickler that `dump` uses."""
    _Kind.pickler = pickler


def child(number: int) -> Any:
    """Returns the tensor with this number while a pickle is loaded. Pickles refer to their tensors by number."""
    return _loading.children[number]


def dump(value: object, is_exact: bool = False) -> tuple[bytes, list[Any]]:
    """Returns the value as bytes and children. Raises the exceptions of pickle."""
    file = io.BytesIO()
    file.write(_HEAD.pack(0, 0))
    pickler = _Kind.pickler(file)
    pickler.is_exact = is_exact
    pickler.dump(value)
    children = pickler.finish()
    file.seek(0)
    file.write(_HEAD.pack(len(pickler.tensors), len(pickler.arrays)))
    return file.getvalue(), children


def dump_exactly(value: object) -> tuple[bytes, list[Any]]:
    return dump(value, True)


def size_of(value: object) -> int:
    """Returns how many bytes a value takes with its children. Raises the exceptions of pickle."""
    data, children = dump(value)
    return len(data) + sum(int(child.nbytes) for child in children)


def load(data: bytes, children: list[Any]) -> Any:
    """Returns the value that `dump` was given. Use it only for bytes that a worker of this process made."""
    tensors, arrays = _HEAD.unpack_from(data)
    outer = getattr(_loading, "children", None), getattr(_loading, "arrays", None)
    _loading.children, _loading.arrays = children, children[tensors : tensors + arrays]
    try:
        return pickle.loads(memoryview(data)[_HEAD.size :], buffers=children[tensors + arrays :])
    finally:
        _loading.children, _loading.arrays = outer


_core.configure(dump, load)
