# SPDX-License-Identifier: Apache-2.0
"""Turns any object into bytes that are the same in each process: what a pickle says, without addresses, and without the
names of scripts. They are only compared, never loaded.

Tensors are written by their values, functions and classes of the user by their source text and code, a set in the order
of its parts, and what cannot be pickled by its attributes.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any

from headrace._samples.compare import tensor_bytes


class TooLarge(Exception):
    """Raised if the bytes are more than allowed."""


class Unknown(Exception):
    """Raised for an object that can be compared in no way, such as an open file. Its text is the object's class."""


class _Limited(io.RawIOBase):
    """Passes bytes on, up to a number."""

    def __init__(self, take: Callable[[bytes], None], most: int) -> None:
        self._take, self.left = take, most

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.left -= count
        if self.left < 0:
            raise TooLarge
        self._take(bytes(data))
        return count


def _marker(*parts: Any) -> None:
    """Stands for an object in the bytes."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, code_of: Callable[[Any], bytes | None]) -> None:
        super().__init__(file, 4)
        self._code_of = code_of

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (types.FunctionType, type)):
            code = None if value is _marker else self._code_of(value)
            return NotImplemented if code is None else (_marker, ("code", code))
        if hasattr(value, "untyped_storage") and hasattr(value, "layout"):
            return _marker, ("tensor", str(value.dtype), tuple(value.shape), tensor_bytes(value))
        if isinstance(value, types.ModuleType):
            return _marker, ("module", value.__name__)
        return self._by_attributes(value)

    def _by_attributes(self, value: Any) -> Any:
        """Writes an object by its attributes if pickle has no way to."""
        try:
            value.__reduce_ex__(4)
        except Exception:
            pass
        else:
            return NotImplemented
        if not getattr(value, "__dict__", None):
            raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}")
        return _marker, (type(value), sorted(vars(value).items()))


def write(value: Any, take: Callable[[bytes], None], most: int, code_of: Callable[[Any], bytes | None]) -> int:
    """Passes the bytes of a value to `take`, and returns how many. code_of: returns the text of a function or class of
    the user, None for others. Raises TooLarge, Unknown."""
    limited = _Limited(take, most)
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
    write(value, parts.append, 1 << 40, code_of)
    return b"".join(parts)
