# SPDX-License-Identifier: Apache-2.0
"""The type that a column has in all of several Parquet files: writers choose others for the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.sources._arrow import need_pyarrow


def unify(one: Any, other: Any) -> Any:
    """Returns a type of pyarrow that has all values of both, or None: what really differs, such as text and numbers.

    What differs without a difference: `not null`, integers and floats of several sizes, text and lists with offsets of
    32 or 64 bits, a column of nulls, and dictionaries, which are other ways to store their values.
    """
    types = need_pyarrow("Parquet").types
    if one.equals(other):
        return one
    if types.is_null(one) or types.is_null(other):
        return other if types.is_null(one) else one
    if types.is_dictionary(one) or types.is_dictionary(other):
        return unify(*(kind.value_type if types.is_dictionary(kind) else kind for kind in (one, other)))
    ways: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
        (types.is_integer, _wider_integer),
        (types.is_floating, lambda a, b: a if a.bit_width > b.bit_width else b),
        (_is_text, lambda a, b: need_pyarrow("Parquet").large_string()),
        (_is_binary, lambda a, b: need_pyarrow("Parquet").large_binary()),
        (_is_list, _list_of_both),
        (types.is_struct, _struct_of_both),
    )
    return next((way(one, other) for is_such, way in ways if is_such(one) and is_such(other)), None)


def _wider_integer(one: Any, other: Any) -> Any:
    pyarrow = need_pyarrow("Parquet")
    types = pyarrow.types
    if types.is_signed_integer(one) == types.is_signed_integer(other):
        return one if one.bit_width > other.bit_width else other
    unsigned, signed = (one, other) if types.is_signed_integer(other) else (other, one)
    bits = max(2 * unsigned.bit_width, signed.bit_width)
    return {16: pyarrow.int16(), 32: pyarrow.int32(), 64: pyarrow.int64()}.get(bits)


def _is_text(kind: Any) -> bool:
    types = need_pyarrow("Parquet").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")


def _is_binary(kind: Any) -> bool:
    types = need_pyarrow("Parquet").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or str(kind) == "binary_view")


def _is_list(kind: Any) -> bool:
    types = need_pyarrow("Parquet").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_of_both(one: Any, other: Any) -> Any:
    pyarrow = need_pyarrow("Parquet")
    value = unify(one.value_type, other.value_type)
    if value is None:
        return None
    sizes = {kind.list_size if pyarrow.types.is_fixed_size_list(kind) else None for kind in (one, other)}
    if len(sizes) == 1 and None not in sizes:
        return pyarrow.list_(value, sizes.pop())
    is_large = any(map(pyarrow.types.is_large_list, (one, other)))
    return pyarrow.large_list(value) if is_large else pyarrow.list_(value)


def _struct_of_both(one: Any, other: Any) -> Any:
    pyarrow = need_pyarrow("Parquet")
    kinds = [
        {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)} for kind in (one, other)
    ]
    if kinds[0].keys() != kinds[1].keys() or len(kinds[0]) < one.num_fields:
        return None
    found = {name: unify(kind, kinds[1][name]) for name, kind in kinds[0].items()}
    return None if None in found.values() else pyarrow.struct(list(found.items()))
