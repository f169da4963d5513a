# SPDX-License-Identifier: Apache-2.0
"""numpy's dtypes as text, arrays of objects, and arrays that have no buffer."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from headrace._core import FrozenError

# ---- dtypes ----


def _describe_plain(dtype: Any) -> str:
    """Returns numpy's text for a dtype. The format of a long double differs between kinds of machines of the same item
    size, so the number of bits of its mantissa is added."""
    numpy = importlib.import_module("numpy")
    if dtype.type not in (numpy.longdouble, numpy.clongdouble):
        return str(dtype.str)
    return f"{dtype.str}/{numpy.finfo(dtype).nmant}"


def _build_plain(text: str) -> Any:
    numpy = importlib.import_module("numpy")
    name, _, mantissa = text.partition("/")
    dtype = numpy.dtype(name)
    if _describe_plain(dtype) != text and dtype.type in (numpy.longdouble, numpy.clongdouble):
        there, here = mantissa or "an unknown number of", numpy.finfo(dtype).nmant
        raise ValueError(
            f"its long doubles have {there} bits of mantissa, and this machine's have {here}; freeze the data here"
        )
    return dtype


def _describe_dtype(dtype: Any) -> Any:
    """Returns a dtype as JSON can hold it. Unlike dtype.descr, it has offsets, alignment and nested dtypes."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe_dtype(base), "shape": list(shape)}
    if dtype.names is None:
        return _describe_plain(dtype)
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_describe_dtype(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "titles": [field[2] if len(field) > 2 and isinstance(field[2], str) else None for field in fields],
        "itemsize": dtype.itemsize,
        "align": bool(dtype.isalignedstruct),
    }


def _build_dtype(description: Any) -> Any:
    numpy = importlib.import_module("numpy")
    if isinstance(description, str):
        return _build_plain(description)
    if "base" in description:
        return numpy.dtype((_build_dtype(description["base"]), tuple(description["shape"])))
    parts = {name: description[name] for name in ("names", "offsets", "itemsize")}
    parts["formats"] = [_build_dtype(part) for part in description["formats"]]
    if any(description["titles"]):
        parts["titles"] = description["titles"]
    return numpy.dtype(parts, align=description["align"])


def any_dtype_text(dtype: Any) -> str | None:
    description = _describe_dtype(dtype)
    text = description if isinstance(description, str) else json.dumps(description)
    try:
        return text if any_dtype_from_text(text) == dtype else None
    except Exception:  # a dtype of another package; numpy does not know its text
        return None


def any_dtype_from_text(text: str) -> Any:
    return _build_dtype(json.loads(text) if text.startswith("{") else text)


def dtype_text(dtype: Any) -> str | None:
    """Returns a dtype as text, or None if its values are not plain bytes or its text cannot be read back."""
    return None if dtype.hasobject or not dtype.itemsize else any_dtype_text(dtype)


def dtype_from_text(text: str) -> Any:
    """Returns the dtype of a text. Raises FrozenError."""
    try:
        dtype = any_dtype_from_text(text)
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        raise FrozenError(f"headrace: this frozen data has an array of dtype {text[:80]!r}: {error!r}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise FrozenError(f"headrace: this frozen data has an array of dtype {text[:80]!r}, which has no plain bytes")
    return dtype


# ---- arrays ----


def object_array_parts(value: Any) -> Any:
    text = any_dtype_text(value.dtype)
    return ((text, value.shape), value.ravel().tolist()) if text and value.dtype.hasobject else None


def make_object_array(extra: Any, count: int) -> Any:
    """Returns an array of objects that are not set yet. Raises FrozenError."""
    numpy = importlib.import_module("numpy")
    text, shape = extra
    if numpy.prod(shape, dtype=object) != count:
        raise FrozenError("headrace: the size of an array of objects of this frozen data is not the size of its shape")
    return numpy.empty(shape, any_dtype_from_text(text))


def raw_array(value: Any) -> Any:
    """Returns an array whose dtype has no buffer (dates) as bytes of the same size."""
    return value.view(f"V{value.dtype.itemsize}")


def scalar_array(value: Any) -> Any:
    """Returns a numpy scalar as an array, or None if the value is not a numpy scalar that an array can hold."""
    numpy = sys.modules["numpy"]
    if not isinstance(value, numpy.generic):
        return None
    made = numpy.asarray(value)
    return made if (made.dtype.itemsize and not made.dtype.hasobject and made[()] == value) or value != value else None


def column(values: list[Any]) -> Any:
    """Returns a list of ints, of floats or of bools as an array; None for any other list."""
    kinds = set(map(type, values))
    if not values or kinds not in ({int}, {float}, {bool}):
        return None
    numpy = importlib.import_module("numpy")
    try:
        return numpy.array(values, dtype={int: "i8", float: "f8", bool: "?"}[kinds.pop()])
    except OverflowError:  # an int of more than 64 bits
        return None
