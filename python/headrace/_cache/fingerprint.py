# SPDX-License-Identifier: Apache-2.0
"""Turns any object into bytes that are the same in each process: what a pickle says, without addresses, and without the
names of scripts. They are only compared, never loaded.

Arrays and tensors are written by a digest of their values, functions and classes of the user by their source text and
code, a set in the order of its parts, and what cannot be pickled by its attributes.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace import _core
from headrace._base.attributes import own_attributes
from headrace._base.cores import usable_cores
from headrace._base.lookup import static_dict, static_mro
from headrace._cache import attached, contents, mapped_files
from headrace._samples import tensor_parts

REMEMBERING = type(functools.lru_cache(len))  # what functools.cache and lru_cache make of a function
_PIECE_BYTES = 64 << 20  # of an array, between two looks at the progress


class TooLarge(Exception):
    """Raised if the bytes are more than allowed."""


class Unknown(Exception):
    """Raised for an object that can be compared in no way, such as an open file. Its text is the object's class."""


class _Limited(io.RawIOBase):
    """Passes bytes on, up to a number. watch: is told how many were read."""

    def __init__(self, take: Callable[[Any], None], most: int, watch: Callable[[int], None] | None) -> None:
        self.take, self.left, self.watch = take, most, watch

    def writable(self) -> bool:
        return True

    def count(self, bytes_: int) -> None:
        self.left -= bytes_
        if self.left < 0:
            raise TooLarge
        if self.watch is not None:
            self.watch(bytes_)

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.count(count)
        self.take(data)
        return count


def _marker(*parts: Any) -> None:
    """Stands for an object in the bytes."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: _Limited, code_of: Callable[[Any], bytes | None]) -> None:
        super().__init__(file, 4)
        self._file = file
        self._code_of = code_of

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, REMEMBERING):
            return _marker, ("remembering", value.__wrapped__)
        if isinstance(value, (types.FunctionType, type)):
            code = None if value is _marker else self._code_of(value)
            return NotImplemented if code is None else (_marker, ("code", code))
        if type(value).__module__.partition(".")[0] == "numpy" or hasattr(value, "__array_finalize__"):
            found = self._of_array(value)
            if found is not None:
                return found
        if hasattr(value, "untyped_storage") and hasattr(value, "layout"):
            return self._of_tensor(value)
        if isinstance(value, types.ModuleType):
            return _marker, ("module", value.__name__)
        return self._by_attributes(value)

    def _of_array(self, array: Any) -> Any:
        np = sys.modules.get("numpy")
        if np is None or not isinstance(array, np.ndarray) or array.dtype.hasobject:
            return None
        if type(array) not in (np.ndarray, np.memmap):  # its own pickle may leave attributes out
            return _marker, (
                "array",
                *array.__reduce_ex__(4),
                sorted(vars(array).items()) if hasattr(array, "__dict__") else [],
            )
        place: Any = attached.find(array) or mapped_files.place_of(array) or self._digest_of(array)
        return _marker, ("array", array.dtype, array.shape, array.strides, place)

    def _of_tensor(self, tensor: Any) -> Any:
        parts = tensor_parts.parts_of(tensor)
        strides = (
            tensor.stride() if not parts.more and hasattr(tensor, "stride") and tensor.layout == _strided() else ()
        )
        values = [self._digest_of(part) for part in parts.values]
        return _marker, ("tensor", parts.description, strides, values, parts.more)

    def _digest_of(self, array: Any) -> bytes:
        """Reads an array of any size in pieces, without a copy of all of it."""
        hashed = hashlib.blake2b(digest_size=16)
        if array.nbytes > self._file.left:
            raise TooLarge
        for block in contents.blocks(array):
            data = contents.bytes_of(block)
            pieces = [data[at : at + _PIECE_BYTES] for at in range(0, data.nbytes, _PIECE_BYTES)]
            for digest in _digests_of(pieces):
                hashed.update(digest)
                self._file.count(_PIECE_BYTES if len(pieces) > 1 else data.nbytes)
        return hashed.digest()

    def _by_attributes(self, value: Any) -> Any:
        """Writes an object by its attributes if pickle has no way to."""
        if type(value) in copyreg.dispatch_table:  # such as that of `re.compile`
            return NotImplemented
        try:
            value.__reduce_ex__(4)
        except Exception:
            pass
        else:
            return NotImplemented
        attributes = sorted((name, held) for name, held, _ in own_attributes(value))
        if not attributes or not _has_only_attributes(type(value)):
            raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}")
        return _marker, (type(value), attributes)


def _has_only_attributes(cls: type) -> bool:
    """Returns False for classes whose instances have more than attributes, such as an open file, or a dict."""
    slotted = [base for base in static_mro(cls) if "__slots__" in static_dict(base)]  # a class in C has none
    slots = sum(isinstance(one, types.MemberDescriptorType) for base in slotted for one in static_dict(base).values())
    places = slots + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return not cls.__itemsize__ and cls.__basicsize__ == object.__basicsize__ + places * struct.calcsize("P")


def _digest_of_piece(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()  # most processors have instructions for it


def _digests_of(pieces: list[memoryview]) -> Iterator[bytes]:
    """Yields the digest of each piece, computed by a thread for each core if there are several pieces."""
    if len(pieces) < 2:
        yield from map(_digest_of_piece, pieces)
        return
    with ThreadPoolExecutor(usable_cores(_core.machine())) as pool:
        yield from pool.map(_digest_of_piece, pieces)


def _strided() -> Any:
    return sys.modules["torch"].strided


def write(
    value: Any,
    take: Callable[[Any], None],
    most: int,
    code_of: Callable[[Any], bytes | None],
    watch: Callable[[int], None] | None = None,
) -> int:
    """Passes the bytes of a value to `take`, and returns how many were read. code_of: returns the text of a function or
    class of the user, None for others. Raises TooLarge, Unknown."""
    limited = _Limited(take, most, watch)
    try:
        if isinstance(value, (set, frozenset)):  # the pickler does not ask for sets; one within a list keeps its order
            value = sorted(fingerprint(one, code_of) for one in value)
        _Pickler(limited, code_of).dump(value)
    except (TooLarge, Unknown):
        raise
    except Exception as error:
        raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}: {error}") from None
    return most - limited.left


def fingerprint(value: Any, code_of: Callable[[Any], bytes | None]) -> bytes:
    parts: list[bytes] = []
    write(value, lambda data: parts.append(bytes(data)), sys.maxsize, code_of)
    return b"".join(parts)
