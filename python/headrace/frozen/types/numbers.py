# SPDX-License-Identifier: Apache-2.0
"""Numbers that are not built in, and large ints."""

from __future__ import annotations

import decimal
import fractions
import operator
from typing import Any

from headrace.frozen.types.row import Row


def _make_fraction(parts: Any) -> fractions.Fraction:
    return fractions.Fraction(operator.index(parts[0]), parts[1])  # a text such as "1e999999999" would take for ever


ROWS = (
    Row(decimal.Decimal, "Decimal", str, decimal.Decimal),
    Row(fractions.Fraction, "Fraction", lambda value: (value.numerator, value.denominator), _make_fraction),
)


def int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
