# SPDX-License-Identifier: Apache-2.0
"""Attached objects of a cache: what they contain as Python objects, and how arrays of them reach other processes.

An array of the cache is a read-only numpy view of the mapped data. multiprocessing's pickler sends it, and every slice
of it, as a handle: the root, the object's id, and the place in it. Any other pickle contains the data.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
import multiprocessing.util
import os
import pickle
import sys
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace import _core
from headrace._cache import opening
from headrace._cache.files import Files

Handle = tuple[str, str, str, str]  # root, name, version, id

_attached: weakref.WeakValueDictionary[tuple[str, str], _core.Cached] = weakref.WeakValueDictionary()  # by root and id
_values: weakref.WeakValueDictionary[tuple[str, str], Any] = (
    weakref.WeakValueDictionary()
)  # frozen data, by root and id
_names: set[tuple[str, str, str]] = set()  # root, name and version of objects that this process had attached
_starts: list[int] = []  # the addresses of all mapped objects, sorted
_ranges: dict[int, tuple[int, Handle, bool]] = {}  # by start: the end, the handle, and whether it is written to
_watched: dict[int, weakref.ref[Any]] = {}  # by start
_state: dict[str, Any] = {"previous": None, "is_registered": False}


# ---- attaching ----


def attach(cache: _core.Cache, name: str, version: str, identity: str | None = None) -> _core.Cached:
    """Attaches an object; each is mapped once in a process. Raises FileNotFoundError or CacheError."""
    if identity is None and (cache.root, name, version) in _names:
        identity = cache.peek(name, version)[0]  # the name may have another object by now
    known = _attached.get((cache.root, identity)) if identity else None
    return known if known is not None else adopt(cache, cache.attach(name, version, identity))


def attach_stamped(cache: _core.Cache, name: str, version: str, stamp: str) -> _core.Cached | None:
    """Attaches an object if it has this stamp. Raises as attach."""
    identity, found = cache.peek(name, version)
    return attach(cache, name, version, identity) if found == stamp else None


def adopt(cache: _core.Cache, cached: _core.Cached) -> _core.Cached:
    """Makes an attached object known; returns the one that this process has already, if it has it."""
    info = cached.info()
    key = (cache.root, info["id"])
    known = _attached.setdefault(key, cached)
    if known is not cached:
        return known
    _names.add((cache.root, info["name"], info["version"]))
    if cached.bytes and not info["is_private"]:
        register(cached, cached.address, cached.bytes, (cache.root, info["name"], info["version"], info["id"]), False)
    return cached


def register(owner: Any, start: int, size: int, handle: Handle, is_shared: bool) -> None:
    """Notes that the memory from an address on is that of an object, as long as `owner` lives."""
    _ranges[start] = (start + size, handle, is_shared)  # first, because another thread looks up what _starts has
    bisect.insort(_starts, start)
    _watched[start] = weakref.ref(owner, functools.partial(_forget, start))
    if not _state["is_registered"]:
        # After multiprocessing has ended the workers, because the last process that has an object of a job deletes it.
        multiprocessing.util.Finalize(None, _end_claims, exitpriority=-100)
        _state["is_registered"] = True


def _forget(start: int, _: object) -> None:
    _watched.pop(start, None)
    at = bisect.bisect_left(_starts, start)
    if at < len(_starts) and _starts[at] == start:
        del _starts[at]
    _ranges.pop(start, None)


def _end_claims() -> None:
    """Ends the claims at the end of the process, also of arrays that are alive until the very end."""
    for cached in list(_attached.values()):
        cached.unclaim()


# ---- contents ----


def meta_of(cached: _core.Cached) -> dict[str, Any]:
    """Returns what the builder noted about the contents. Raises CacheError."""
    text = cached.meta
    try:
        meta = json.loads(text)
        if isinstance(meta, dict) and isinstance(meta.get("kind"), str):
            return meta
    except ValueError:
        pass
    raise _core.CacheError(
        f"headrace: '{cached.info()['name']}' was not put there by Python: its meta text is {text[:80]!r}; read it "
        "with headrace/cache.h"
    )


def value_of(cache: _core.Cache, cached: _core.Cached) -> Any:
    """Returns the contents: an array, a view of frozen data, or a memoryview of a file."""
    meta = meta_of(cached)
    if meta["kind"] == "array":
        return _array(cached, meta)
    if meta["kind"] == "frozen":
        return _frozen(cache, cached).root()
    if meta["kind"] == "files":
        register_arrays()
        return _files(cache, cached)
    if meta["kind"] == "bytes":
        return memoryview(cached)  # type: ignore[arg-type]
    if meta["kind"] == "samples":
        raise _core.CacheError(
            f"headrace: '{cached.info()['name']}' has samples of a dataset; use headrace.cache_samples(dataset, "
            "name=...)"
        )
    if meta["kind"] == "shared":
        raise _core.CacheError(
            f"headrace: '{cached.info()['name']}' is an array that several processes write; use "
            "headrace.cache.shared(name)"
        )
    raise _core.CacheError(f"headrace: this version cannot read objects of the kind {meta['kind']!r}; update headrace")


def _array(cached: _core.Cached, meta: dict[str, Any]) -> Any:
    import numpy as np

    register_arrays()
    dtype, shape = np.dtype(meta["dtype"]), tuple(meta["shape"])
    if math.prod(shape) * dtype.itemsize != cached.bytes:
        raise _core.CacheError(
            f"headrace: '{cached.info()['name']}' has {cached.bytes} bytes, not those of an array of shape {shape} and "
            f"dtype {dtype}; remove it and build it again"
        )
    return np.ndarray(shape, dtype, buffer=cached)  # type: ignore[arg-type]


def _files(cache: _core.Cache, cached: _core.Cached) -> Any:
    info = cached.info()
    files = Files(cached)
    if not info["is_private"]:
        files.handle = (cache.root, info["name"], info["version"], info["id"])
    return files


def _frozen(cache: _core.Cache, cached: _core.Cached) -> _core.Frozen:
    info = cached.info()
    key = (cache.root, info["id"])
    frozen = _values.get(key)
    if frozen is None:
        from headrace.frozen import _freeze, _pickling  # not at the top: workers that only get arrays do not need it

        _freeze.know_arrays()
        frozen = _core.frozen_over(cached, True)
        _pickling.remember(frozen, None)
        if not info["is_private"]:
            frozen.handle = (_load_frozen, (cache.root, info["name"], info["version"], info["id"]))
        frozen.open_file = functools.partial(_open_again, cached.fd)
        _values[key] = frozen
        if "numpy" in sys.modules:  # it may contain arrays
            register_arrays()
    return frozen


def _open_again(fd: int) -> int:
    """Opens the file of a descriptor again, so that it does not share the lock by which this process claims it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


# ---- handles ----


def _load_frozen(root: str, name: str, version: str, identity: str) -> _core.Frozen:
    cache = opening.open_cache(root)
    return _frozen(cache, attach_sent(cache, name, version, identity))


def attach_sent(cache: _core.Cache, name: str, version: str, identity: str) -> _core.Cached:
    try:
        return attach(cache, name, version, identity)
    except FileNotFoundError as error:
        raise _core.CacheError(
            f"headrace: the object '{name}' that another process sent is not in {cache.root} any more: that process "
            "and all others that had it have ended. The sender must live until its message has been received"
        ) from error


def _load_files(root: str, name: str, version: str, identity: str) -> Files:
    register_arrays()
    cache = opening.open_cache(root)
    files: Files = _files(cache, attach_sent(cache, name, version, identity))
    return files


def _reduce_files(files: Files) -> Any:
    if files.handle is None:
        raise pickle.PicklingError("headrace: the folder of this cache was removed, so the data cannot be sent")
    return _load_files, files.handle


def _load_array(
    handle: tuple[str, str, str, str], offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    import numpy as np

    register_arrays()
    root, name, version, identity = handle
    cached = attach_sent(opening.open_cache(root), name, version, identity)
    return np.ndarray(shape, dtype, buffer=cached, offset=offset, strides=strides)  # type: ignore[arg-type]


def _range_at(address: int) -> tuple[int, int, Handle, bool] | None:
    """Returns start, end and handle of the object that is mapped at an address, and whether it is written to."""
    at = bisect.bisect_right(_starts, address) - 1
    if at < 0:
        return None
    end, handle, is_shared = _ranges[_starts[at]]
    return (_starts[at], end, handle, is_shared) if address < end else None


def _locate(array: Any) -> tuple[Handle, int, bool] | None:
    """Returns the handle of the object that an array lies in, the offset of its first element, and whether the object
    is written to; or None."""
    if array.dtype.hasobject or not array.size:
        return None
    address = array.__array_interface__["data"][0]
    found = _range_at(address)
    if found is None:
        return None
    start, end, handle, is_shared = found
    steps = [stride * (count - 1) for stride, count in zip(array.strides, array.shape, strict=True)]
    first = address + sum(step for step in steps if step < 0)
    last = address + sum(step for step in steps if step > 0) + array.itemsize
    return (handle, address - start, is_shared) if start <= first and last <= end else None


def is_written(address: int) -> bool:
    """Returns True if the memory at an address is that of an array that several processes write."""
    found = _range_at(address)
    return found is not None and found[3]


def find(array: Any) -> tuple[Handle, int] | None:
    """Returns the handle and the offset of a read-only array of the cache; or None."""
    found = None if array.flags.writeable else _locate(array)
    return None if found is None or found[2] else found[:2]


def find_shared(array: Any) -> tuple[Handle, int] | None:
    """Returns the handle and the offset of an array that several processes write; or None."""
    found = _locate(array)
    return found[:2] if found is not None and found[2] else None


def _reduce_array(array: Any) -> Any:
    found = find(array)
    if found is not None:
        return _load_array, (found[0], found[1], array.dtype, array.shape, array.strides)
    if "headrace._cache.shared" in sys.modules:
        from headrace._cache import shared  # it imports this module

        sent = shared.reduce_array(array)
        if sent is not None:
            return shared.load_array, sent
    previous = _state["previous"]
    return previous(array) if previous else array.__reduce_ex__(4)


ForkingPickler.register(Files, _reduce_files)


def register_arrays() -> None:
    """Makes multiprocessing's pickler send arrays of the cache as handles. All other arrays are sent as before."""
    import numpy as np

    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    if reducers.get(np.ndarray) is not _reduce_array:
        _state["previous"] = reducers.get(np.ndarray)
        ForkingPickler.register(np.ndarray, _reduce_array)
