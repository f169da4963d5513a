# SPDX-License-Identifier: Apache-2.0
"""Arrays that several processes write, with a lock that outlives its holder: what headrace.cache.shared returns.

An array is an object of the cache (`headrace/cache_shared.h`). It reaches other processes as a handle, and so do the
arrays and tensors that lie in it, because a copy of them would lose what is written to it.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _core
from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._cache import attached, building, opening
from headrace._tensors import shared as shared_tensors

_open: weakref.WeakValueDictionary[tuple[str, str], _core.Shared] = weakref.WeakValueDictionary()  # by root and id
_opening = threading.RLock()  # so that each array is opened once. A finalizer may open one meanwhile


def _renew_lock() -> None:
    global _opening
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that is not in the child may have had it


def _is_written(value: Any) -> bool:
    """Returns True for arrays and tensors that lie in a shared array: a frozen copy would not see what is written."""
    torch: Any = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        return attached.find_shared(value) is not None
    is_tensor = torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)
    is_plain = is_tensor and value.layout == torch.strided
    return is_plain and value.device.type == "cpu" and attached.is_written(value.data_ptr())


lookup.kept_as_they_are.append(_is_written)


def _tell_dead(name: str, dead: list[tuple[int, bool]]) -> None:
    texts = [f"{pid}{'' if is_visible else ' (of another container)'}" if pid else "?" for pid, is_visible in dead]
    warn_user(
        f"headrace: process {', '.join(texts)} died with a lock of the shared array '{name}', which this one has now; "
        "what it was changing may be half changed (lock.recovered is True)" + help_on("lock-recovered"),
        RuntimeWarning,
    )


# ---- values ----

_ALL_FLOATS_HOLD = float(np.finfo(np.float16).max)


def _cast(values: Any, dtype: Any, what: str) -> Any:
    """Returns values as an array of this dtype. Raises TypeError or OverflowError where that would change them."""
    if type(values) in (int, float) and dtype.kind == "f":
        if -_ALL_FLOATS_HOLD <= values <= _ALL_FLOATS_HOLD:
            return np.array(values, dtype)  # the usual case, without the checks that it does not need
        values = float(values)
    if type(values) is int and dtype.kind == "i" and -1 << (bits := 8 * dtype.itemsize - 1) <= values < 1 << bits:
        return np.array(values, dtype)
    given = np.asarray(values)
    if not given.size:  # NumPy makes floats of an empty list
        return given.astype(dtype)
    if given.dtype.kind not in "biufc" or (given.dtype.kind in "fc" and dtype.kind in "biu"):
        raise TypeError(f"headrace: {what} of dtype {given.dtype} cannot be stored as {dtype} without a loss")
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"headrace: {what} of dtype {given.dtype} cannot be stored as {dtype} without a loss")
    with np.errstate(over="ignore"):
        cast = given.astype(dtype)
    is_changed = dtype.kind in "biu" and cast.dtype != given.dtype and cast.tolist() != given.tolist()
    if is_changed or (dtype.kind in "fc" and not np.array_equal(np.isinf(cast), np.isinf(given))):
        raise OverflowError(f"headrace: {what} does not fit into {dtype}")
    return cast


def _check_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    try:
        checked = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise TypeError(
            f"headrace.cache.shared: shape is an integer or a tuple of integers, not {shape!r:.80}"
        ) from None
    if any(size < 0 or size >= 1 << 63 for size in checked):
        raise ValueError(f"headrace.cache.shared: the shape is {shape!r}; give sizes of 1 or more")
    return checked


# ---- the array ----


class Shared:
    """An array that several processes write. `headrace.cache.shared` makes it.

    array: a writable numpy view of the shared memory. lock: see below. name, version, shape, dtype. is_new: this call
    has made it. It can be sent to other processes, with any pickle: they attach the same memory.
    """

    def __init__(self, core: _core.Shared, handle: attached.Handle, is_new: bool) -> None:
        dtype, self.shape, self.stripes = core.plan()
        self.dtype = np.dtype(dtype)
        self.array = np.ndarray(self.shape, self.dtype, buffer=core)  # type: ignore[arg-type]
        self.is_new = is_new
        self._core, self._handle = core, handle
        # lock(timeout=None, rows=None), for a with statement. It is the function in C itself, which costs less.
        self.lock = core.lock

    @property
    def name(self) -> str:
        return self._handle[1]

    @property
    def version(self) -> str:
        return self._handle[2]

    @property
    def tensor(self) -> Any:
        """A torch tensor over the same memory."""
        return shared_tensors.tensor_over(self.array, False)

    def flush(self) -> None:
        """Writes what was changed to the disk, if it was made with persist="file". Raises OSError."""
        self._core.flush()

    def add(self, index: Any, values: Any) -> None:
        """Adds values to elements without a lock, each by one atomic step; an element may come several times.

        index: an int, an array of ints, a slice or a mask, of a one-dimensional array; otherwise a tuple with an int or
        an array of ints for each dimension, or a mask. Only int32, int64, float32 and float64; integers wrap around.
        """
        self._change(self._core.add, index, values)

    def maximum(self, index: Any, values: Any) -> None:
        """Makes each element the larger one of itself and the value, without a lock. See `add`."""
        self._change(self._core.maximum, index, values)

    def fetch_add(self, index: Any, values: Any) -> Any:
        """Does what `add` does, and returns the values that were there before."""
        return self._change(self._core.add, index, values)[()]

    def _change(self, change: Callable[..., None], index: Any, values: Any) -> Any:
        if self.dtype.str not in ("<i4", "<i8", "<f4", "<f8"):
            raise TypeError(
                f"headrace: elements of the shared array '{self.name}' ({self.dtype}) cannot be changed without a "
                "lock; those of int32, int64, float32 and float64 can"
            )
        elements = self._elements(index)
        cast = _cast(values, self.dtype, "a value")
        if cast.ndim:
            cast = np.ascontiguousarray(np.broadcast_to(cast, elements.shape))
        before = np.empty(elements.shape, self.dtype)
        change(elements.reshape(-1), cast.reshape(-1), not cast.ndim, before.reshape(-1))
        return before

    def _elements(self, index: Any) -> Any:
        """Returns the numbers of elements in C order, as unsigned integers. Raises IndexError or TypeError."""
        if not isinstance(index, tuple):
            index = self._without_slices(index)
        if type(index) is int and len(self.shape) == 1 and 0 <= index < self.shape[0]:
            return np.array(index, np.uint64)
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) != len(self.shape):
            raise IndexError(
                f"headrace: an element of the shared array '{self.name}' of shape {self.shape} has {len(self.shape)} "
                f"indices, and {len(parts)} were given"
            )
        numbers: Any = np.zeros((), np.int64)
        for part, size in zip(parts, self.shape, strict=True):
            numbers = numbers * size + _check_index(part, size)
        return np.asarray(numbers, np.uint64, order="C")  # ascontiguousarray would give one element a dimension

    def _without_slices(self, index: Any) -> Any:
        if isinstance(index, slice) and len(self.shape) == 1:
            return np.arange(*index.indices(self.shape[0]))
        if isinstance(index, list) or hasattr(index, "__array__"):
            given = np.asarray(index)
            if given.dtype == np.bool_ and given.shape == self.shape:
                return np.nonzero(given)
        return index

    def __reduce__(self) -> Any:
        return _load, self._handle

    def __repr__(self) -> str:
        return f"<headrace shared array '{self.name}', shape {self.shape}, {self.dtype}>"


def _check_index(part: Any, size: int) -> Any:
    numbers = np.asarray(part)
    if not numbers.size and not hasattr(part, "dtype"):  # NumPy makes floats of a list, and takes it as an index
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"headrace: an index of a shared array is an int or an array of ints, not {part!r:.80}")
    if numbers.size and not (-size <= int(numbers.min()) and int(numbers.max()) < size):
        raise IndexError(f"headrace: index {part!r:.80} is out of bounds for a dimension of size {size}")
    numbers = numbers.astype(np.int64)
    return np.where(numbers < 0, numbers + size, numbers)


# ---- attaching and making ----


def _wrap(cache: _core.Cache, cached: _core.Cached, is_new: bool) -> Shared:
    info = cached.info()
    if info["is_private"]:
        raise _core.CacheError(
            f"headrace: the folder of the cache, {cache.root}, was removed while the shared array '{info['name']}' was "
            "made; make it again"
        )
    handle = (cache.root, info["name"], info["version"], info["id"])
    with _opening:
        core = _open.get((cache.root, info["id"]))
        if core is None:
            core = _open[cache.root, info["id"]] = _core.Shared(cached, _tell_dead)
            attached.register(core, core.address, memoryview(core).nbytes, handle, True)  # type: ignore[arg-type]
            attached.register_arrays()
            shared_tensors.know_tensors(shared_tensors.Arrays(attached.is_written, reduce_array, _load_tensor))
    return Shared(core, handle, is_new)


def _attach(cache: _core.Cache, name: str, version: str) -> Shared | None:
    try:
        return _wrap(cache, attached.attach(cache, name, version), False)
    except FileNotFoundError:
        return None


def _make(
    cache: _core.Cache,
    name: str,
    version: str,
    shape: tuple[int, ...],
    dtype: Any,
    fill: Any,
    keep: int,
    timeout: float | None,
) -> Shared:
    element = _cast(fill, dtype, "fill") if dtype.kind in "biufc" else np.zeros(1)  # the library refuses the others
    if element.size != 1:
        raise ValueError(f"headrace.cache.shared: fill is one value, not {element.size}")
    made = []

    def make(build: _core.CacheBuild) -> None:
        build.shared(dtype.str, shape, element.tobytes())
        made.append(True)

    cached = building.obtain(cache, name, version, None, "shared", keep, make, timeout=timeout)
    return _wrap(cache, cached, bool(made))


def _check_same(found: Shared, shape: tuple[int, ...], dtype: Any, keep: int | None) -> None:
    if (found.shape, found.dtype) != (shape, dtype):
        raise ValueError(
            f"headrace.cache.shared: '{found.name}' exists with shape {found.shape} and dtype {found.dtype}, and shape "
            f"{shape} and dtype {dtype} were asked for; ask for the same, or give another name or version"
            + help_on("shared-array")
        )
    kept = attached.attach(opening.open_cache(found._handle[0]), *found._handle[1:]).info()["keep"]
    if keep is not None and kept != keep:
        raise ValueError(
            f"headrace.cache.shared: '{found.name}' exists with keep=\"{opening.KEEP_NAMES[kept]}\", and "
            f'keep="{opening.KEEP_NAMES[keep]}" was asked for (persist="file" is keep="disk"); ask for the same, or '
            "give another name or version" + help_on("shared-array")
        )


def obtain(
    cache: _core.Cache,
    name: str,
    version: str,
    shape: Any,
    dtype: Any,
    fill: Any,
    keep: int | None,
    timeout: float | None,
) -> Shared | None:
    """Attaches an array, or makes it. Returns None if it does not exist and no shape is given. Raises as
    headrace.cache.shared."""
    if (shape is None) != (dtype is None):
        raise TypeError("headrace.cache.shared: give both shape and dtype, or none of them for an array that exists")
    if shape is None:
        return _attach(cache, name, version)
    sizes, kind = _check_shape(shape), opening.check_dtype(dtype, "shared")
    found = _attach(cache, name, version)
    if found is None:
        kept = opening.KEEPS["boot"] if keep is None else keep
        found = _make(cache, name, version, sizes, kind, fill, kept, timeout)
    _check_same(found, sizes, kind, keep)
    return found


# ---- handles ----


def _load(root: str, name: str, version: str, identity: str) -> Shared:
    cache = opening.open_cache(root)
    return _wrap(cache, attached.attach_sent(cache, name, version, identity), False)


def load_array(
    handle: attached.Handle,
    offset: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_writable: bool,
) -> Any:
    """Makes an array over the memory of a shared array that another process has sent."""
    core: Any = _load(*handle)._core
    array: Any = np.ndarray(shape, dtype, buffer=core, offset=offset, strides=strides)
    array.flags.writeable = is_writable
    return array


def reduce_array(array: Any) -> tuple[Any, ...] | None:
    """Returns the arguments of load_array for an array that lies in a shared one; or None."""
    found = attached.find_shared(array)
    if found is None:
        return None
    return (*found, array.dtype, array.shape, array.strides, array.flags.writeable)


def _load_tensor(is_parameter: bool, *sent: Any) -> Any:
    return shared_tensors.tensor_over(load_array(*sent), is_parameter)
