# SPDX-License-Identifier: Apache-2.0
"""Turns any object into bytes that are the same in each process: what a pickle says, without addresses, and without the
names of scripts. They are only compared, never loaded.

Arrays and tensors are written by a digest of their values, functions and classes of the user by their code, a set in
the order of its parts, and what cannot be pickled by its attributes. It is a pickler, so it sees what a copy of the
object would have, at the speed of C.
"""

from __future__ import annotations

import contextvars
import copyreg
import enum
import functools
import hashlib
import io
import pickle
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace import _core
from headrace._base import code, users_code
from headrace._base.attributes import own_attributes
from headrace._base.cores import usable_cores
from headrace._base.lookup import static_dict, static_mro
from headrace._cache import attached, contents, mapped_files
from headrace._samples import tensor_parts

_SORTED = frozenset((str, bytes, int))
# Objects of which pickle takes a name, or which it refuses, each with what counts of it: nothing of a lock.
_VIEWS: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): lambda lock: None,
    type(threading.RLock()): lambda lock: None,
    types.MappingProxyType: dict,
    memoryview: lambda view: (view.format, view.shape, view.tobytes()),
    weakref.ref: lambda reference: reference(),
    contextvars.ContextVar: lambda variable: (variable.name, _current(variable)),
    types.CodeType: code.described,
    types.MethodType: lambda method: (method.__self__, method.__func__),  # pickle takes the name of the function
    staticmethod: lambda method: method.__func__,
    classmethod: lambda method: method.__func__,
    property: lambda one: (one.fget, one.fset, one.fdel),
}
_DEEPEST_STATE = 3  # of containers in which what pickle takes of an object has its attributes
_PIECE_BYTES = 64 << 20  # of an array, between two looks at the progress


class TooLarge(Exception):
    """Raised if the bytes are more than allowed."""


class Unknown(Exception):
    """Raised for an object that can be compared in no way, such as an open file. Its text is the object's class."""


class _Hashing(io.RawIOBase):
    """Hashes bytes, up to a number. watch: is told how many were read."""

    def __init__(self, most: int, watch: Callable[[int], None] | None) -> None:
        self.hashed, self.left, self.watch = hashlib.blake2b(digest_size=8), most, watch

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
        self.hashed.update(data)
        return count


def _current(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (variable.get(),)
    except LookupError:
        return ()


def _marker(*parts: Any) -> None:
    """Stands for an object in the bytes."""


def _of_set(file: _Hashing, code_of: Callable[[Any], bytes | None], value: Any) -> Any:
    """Returns a set by its parts in order. Pickle writes them in that of their hashes, which is another one in each
    process."""
    if len(kinds := set(map(type, value))) == 1 and kinds <= _SORTED:
        return type(value).__name__, sorted(value)
    return type(value).__name__, sorted(digest_of(one, file.left, code_of)[0] for one in value)


class _Pickler(pickle.Pickler):
    """Writes one value."""

    def __init__(
        self,
        most: int,
        watch: Callable[[int], None] | None,
        code_of: Callable[[Any], bytes | None],
        left_out: Callable[[type, list[str]], None] | None,
    ) -> None:
        self.file = _Hashing(most, watch)
        super().__init__(self.file, 4)
        self._code_of, self._left_out = code_of, left_out
        self._leaves_out: dict[type, bool] = {}  # whether a class decides itself what pickle takes
        self.persistent_id = _core.for_sets(  # type: ignore[method-assign]
            functools.partial(_of_set, self.file, code_of)
        )

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, code.REMEMBERING):
            return _marker, ("remembering", value.__wrapped__)
        if isinstance(value, (types.FunctionType, type)):
            found = None if value is _marker else self._code_of(value)
            return NotImplemented if found is None else (_marker, ("code", found))
        if type(value).__module__.partition(".")[0] == "numpy" or hasattr(value, "__array_finalize__"):
            found = self._of_array(value)
            if found is not None:
                return found
        if hasattr(value, "untyped_storage") and hasattr(value, "layout"):
            return self._of_tensor(value)
        if isinstance(value, types.ModuleType):
            return _marker, ("module", value.__name__, self._code_of(value))
        if isinstance(value, (set, frozenset)):  # of a class of its own; others are not asked for here
            attributes = sorted((name, held) for name, held, _ in own_attributes(value))
            return _marker, (type(value), _of_set(self.file, self._code_of, value), attributes)
        if type(value) in _VIEWS:
            return _marker, (type(value).__name__, _VIEWS[type(value)](value))
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
        if array.nbytes > self.file.left:
            raise TooLarge
        for block in contents.blocks(array):
            data = contents.bytes_of(block)
            pieces = [data[at : at + _PIECE_BYTES] for at in range(0, data.nbytes, _PIECE_BYTES)]
            for digest in _digests_of(pieces):
                hashed.update(digest)
                self.file.count(_PIECE_BYTES if len(pieces) > 1 else data.nbytes)
        return hashed.digest()

    def _by_attributes(self, value: Any) -> Any:
        """Writes an object by its attributes if pickle has no way to."""
        cls = type(value)
        own = copyreg.dispatch_table.get(cls)  # such as that of `re.compile`
        if cls not in self._leaves_out:
            self._leaves_out[cls] = self._left_out is not None and _pickles_itself(cls)
        if own is not None and not self._leaves_out[cls]:
            return NotImplemented
        try:
            reduced = value.__reduce_ex__(4) if own is None else own(value)
        except Exception:
            if own is not None:
                return NotImplemented
        else:
            if self._left_out is not None and self._leaves_out[cls]:
                names = _names_left_out(value, reduced)
                if names:
                    self._left_out(cls, names)
            return NotImplemented
        attributes = sorted((name, held) for name, held, _ in own_attributes(value))
        if not attributes or not _has_only_attributes(type(value)):
            raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}")
        return _marker, (type(value), attributes)


def _pickles_itself(cls: type) -> bool:
    """Returns True for a class of the user whose instances are not pickled by all their attributes."""
    if issubclass(cls, enum.Enum) or not users_code.is_users(users_code.file_of(cls)):
        return False
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return cls in copyreg.dispatch_table or any(
        name in static_dict(base) for base in static_mro(cls) if base is not object for name in names
    )


def _names_left_out(value: Any, reduced: Any) -> list[str]:
    """Returns the attributes that are not in what pickle takes of an object, except those that cannot be compared."""
    taken: set[Any] = set()
    places = [reduced]
    for _ in range(_DEEPEST_STATE):
        inner: list[Any] = []
        for one in places:
            if type(one) in (tuple, list):
                inner += one
            elif type(one) is dict:
                taken.update(name for name in one if type(name) is str)
                inner += one.values()
        taken.update(map(id, inner))
        places = inner
    return [
        name
        for name, held, slot in own_attributes(value)
        if name not in taken and id(held) not in taken and held is not None
        if slot is None or users_code.is_users(users_code.file_of(slot.__objclass__))
        if _can_be_pickled(held)
    ]


def _can_be_pickled(value: Any) -> bool:
    try:
        value.__reduce_ex__(4)
    except Exception:  # such as a lock, or an open file
        return False
    return True


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


def pickled(value: Any) -> bytes:
    """Returns a pickle whose sets are in order. Raises the exceptions of pickle."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 4)
    by_parts = lambda one: (type(one).__name__, sorted(map(pickled, one)))  # noqa: E731
    pickler.persistent_id = _core.for_sets(by_parts)  # type: ignore[method-assign]
    pickler.dump(value)
    return file.getvalue()


def digest_of(
    value: Any,
    most: int,
    code_of: Callable[[Any], bytes | None],
    watch: Callable[[int], None] | None = None,
    left_out: Callable[[type, list[str]], None] | None = None,
) -> tuple[str, int]:
    """Returns a digest of the bytes of a value, and how many were read. code_of: returns a description of a function,
    class or module of the user, None for others. left_out: is called with a class of the user and the attributes of an
    instance that its pickle does not have. Raises TooLarge, Unknown."""
    try:
        pickler = _Pickler(most, watch, code_of, left_out)
        pickler.dump(value)
    except (TooLarge, Unknown):
        raise
    except Exception as error:
        raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}: {error}") from None
    return pickler.file.hashed.hexdigest(), most - pickler.file.left
