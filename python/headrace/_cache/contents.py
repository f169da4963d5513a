# SPDX-License-Identifier: Apache-2.0
"""Writes what a function built into the space of an object: an array, pieces of one, frozen data, or a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, SupportsIndex

from headrace import _core
from headrace.frozen import _freeze

_BLOCK_BYTES = 8 << 20  # an array that is not contiguous is copied in blocks of this size

_ADVICE = {
    "pandas": "cache its columns: headrace.cache(name, lambda: {c: df[c].to_numpy() for c in df})",
    "polars": "cache its columns: headrace.cache(name, lambda: df.to_dict(as_series=False))",
    "datasets": "it is memory-mapped already, so that processes share it; cache what you compute from it, for example "
    "dataset.with_format('numpy')[:]",
    "pyarrow": "cache its columns: {name: table[name].to_numpy() for name in table.column_names}",
}


def is_plain_array(value: Any) -> bool:
    np = sys.modules.get("numpy")
    if np is None or type(value) not in (np.ndarray, np.memmap):
        return False
    dtype = value.dtype
    return not dtype.hasobject and dtype.names is None and dtype.itemsize > 0 and dtype.kind in "?biufcmMSU"


def is_pieces(value: Any) -> bool:
    return isinstance(value, GeneratorType)


def join_pieces(pieces: Any) -> Any:
    """Returns what the pieces of a generator are together, in ordinary memory."""
    items = list(pieces)
    if items and is_plain_array(items[0]) and items[0].ndim:
        import numpy as np

        return np.concatenate(items)
    return items


def write(build: _core.CacheBuild, value: Any, size_hint: int) -> str:
    """Writes a value into the space of a build, and returns the meta text. Raises TypeError for a value that cannot be
    frozen, and OSError or MemoryError if there is not enough room."""
    if is_pieces(value):
        return _write_pieces(build, value, size_hint)
    if is_plain_array(value):
        return _write_array(build, value)
    return _write_frozen(build, value, size_hint)


def meta_of_array(dtype: Any, shape: tuple[int, ...]) -> str:
    return json.dumps({"kind": "array", "dtype": dtype.str, "shape": list(shape)})


# ---- arrays ----


def blocks(array: Any, block_bytes: int = _BLOCK_BYTES) -> Iterator[Any]:
    """Yields an array as C-contiguous pieces, in order."""
    import numpy as np

    if array.flags.c_contiguous or array.ndim == 0:
        yield np.ascontiguousarray(array)
        return
    rows = max(1, block_bytes // max(1, array[:1].nbytes))
    for at in range(0, len(array), rows):
        yield np.ascontiguousarray(array[at : at + rows])


def bytes_of(block: Any) -> memoryview:
    """Returns the bytes of a C-contiguous array."""
    import numpy as np

    return memoryview(block.reshape(-1).view(np.uint8)) if block.size else memoryview(b"")


def _write_array(build: _core.CacheBuild, array: Any) -> str:
    meta = meta_of_array(array.dtype, array.shape)
    build.reserve(array.nbytes, 0, meta)
    at = 0
    for block in blocks(array):
        build.write(at, bytes_of(block))
        at += block.nbytes
    return meta


def _write_pieces(build: _core.CacheBuild, pieces: Any, size_hint: int) -> str:
    """Writes what a generator yields: arrays become one array, one after the other; other values become a list."""
    first = next(pieces, None)
    if first is None:
        return _write_frozen(build, [], size_hint)
    if not is_plain_array(first) or first.ndim == 0:
        return _write_records(build, first, pieces, size_hint)
    build.file(size_hint)
    rows, piece = 0, first
    while piece is not None:
        if not is_plain_array(piece) or piece.dtype != first.dtype or piece.shape[1:] != first.shape[1:]:
            raise TypeError(
                f"headrace.cache: the function yielded arrays of shape (n, {str(first.shape[1:])[1:-1]}) and dtype "
                f"{first.dtype}, and then {_describe(piece)}; all pieces need the same dtype and row shape"
            )
        for block in blocks(piece):
            build.append(bytes_of(block))
        rows += len(piece)
        piece = next(pieces, None)
    return meta_of_array(first.dtype, (rows, *first.shape[1:]))


def _describe(piece: Any) -> str:
    if is_plain_array(piece):
        return f"an array of shape {piece.shape} and dtype {piece.dtype}"
    return f"a {type(piece).__name__}"


# ---- frozen data ----


def _write_records(build: _core.CacheBuild, first: Any, rest: Any, size_hint: int) -> str:
    _freeze.know_arrays()
    builder = _core.Builder(build.file(size_hint), False, None)
    try:
        builder.append(first)
        for record in rest:
            builder.append(record)
        builder.finish()
    except TypeError as error:
        raise TypeError(f"{error}{_advice(first)}") from error
    finally:
        builder.close()
    return json.dumps({"kind": "frozen"})


def _write_frozen(build: _core.CacheBuild, value: Any, size_hint: int) -> str:
    _freeze.know_arrays()
    path = build.file(max(size_hint, _least_bytes(value)))
    try:
        _core.freeze(value, path, False, None, None)
    except TypeError as error:
        raise TypeError(f"{error}{_advice(value)}") from error
    return json.dumps({"kind": "frozen"})


def _least_bytes(value: Any) -> int:
    """Returns a size that the frozen data has at least, as far as it can be seen quickly."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value[:10_000]))
    return size_of(value)


def size_of(value: Any) -> int:
    """Returns the size of an array or a tensor, 0 if it has none: a sparse tensor raises an error."""
    try:
        size = value.nbytes if hasattr(type(value), "nbytes") else 0
        return int(size) if isinstance(size, SupportsIndex) else 0
    except Exception:
        return 0


def _advice(value: Any) -> str:
    """Says what to do with objects of well-known libraries that cannot be frozen."""
    library = type(value).__module__.partition(".")[0]
    if library in _ADVICE:
        return f". A {library} {type(value).__name__} cannot be kept in shared memory as it is; {_ADVICE[library]}"
    return ". Return arrays, or lists, dicts and other plain data that hold arrays"


# ---- files ----


def write_file(build: _core.CacheBuild, path: str) -> str:
    """Copies a file: the array of a .npy file, otherwise its bytes."""
    if path.endswith(".npy"):
        import numpy as np

        array = np.load(path, mmap_mode="r")  # raises ValueError for an array of objects
        return write(build, array, array.nbytes)
    meta = json.dumps({"kind": "bytes"})
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        build.reserve(size, 0, meta)
        at = 0
        while data := file.read(_BLOCK_BYTES):
            if at + len(data) > size:
                raise OSError(f"headrace.cache: {path} became longer while it was copied; try again")
            build.write(at, data)
            at += len(data)
    if at < size:
        raise OSError(f"headrace.cache: {path} became shorter while it was copied; try again")
    return meta
