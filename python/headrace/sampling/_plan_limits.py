# SPDX-License-Identifier: Apache-2.0
"""Checks the numbers of a plan: limits and costs, for one length or by name."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

Limits = tuple[tuple[str, int], ...]  # by name, sorted
Costs = tuple[tuple[str, tuple[int, int]], ...]

MOST = 2**62
PACK_MOST = 2**24  # HR_PLAN_PACK_MAX


def check_int(name: str, value: Any, least: int, most: int = MOST) -> int:
    """Returns a setting as an int. Raises TypeError and ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"Plan: {name} should be an int, but got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"Plan: {name} should be an int, but got {value!r}")
    if not least <= number <= most:
        is_open = most == MOST and number < least
        range_ = f"{least} or more" if is_open else f"from {least} to {most:,}"
        raise ValueError(f"Plan: {name} should be {range_}, but got {number}")
    return number


def check_optional(name: str, value: Any, most: int = MOST) -> int | None:
    """Returns a limit, or None if it is not given. Raises TypeError and ValueError."""
    return None if value is None else check_int(name, value, 1, most)


def check_word(name: str, value: Any, words: tuple[str, ...]) -> str:
    """Returns a setting that is one of some words. Raises ValueError."""
    if value not in words:
        raise ValueError(f"Plan: {name} should be one of {words}, but got {value!r}")
    return str(value)


def check_cost(name: str, value: Any) -> int:
    """Returns the factor of a cost. Raises TypeError, with what to give in place of a fraction, and ValueError."""
    if isinstance(value, float):
        raise TypeError(
            f"Plan: {name} should be an int, because costs are exact, but got {value!r}; only the ratio of the factors "
            "counts, so multiply all: 1000 and 1 in place of 1 and 0.001"
        )
    return check_int(name, value, 0)


# ---- by name ----


def check_limits(setting: str, value: Any, names: tuple[str, ...], most: int = MOST) -> int | Limits | None:
    """Returns a limit, of the length of a plan without names, or those of several names. Raises TypeError and
    ValueError."""
    if value is None:
        return None
    if not names:
        if isinstance(value, Mapping):
            raise TypeError(
                f"Plan: {setting} is a dict, but lengths has no names; give lengths as a dict too, or an int"
            )
        return check_optional(setting, value, most)
    _check_keys(setting, value, names, "8192")
    if not value:
        raise ValueError(f"Plan: {setting} is empty; give a limit of {_or(names)}, or None")
    return tuple((name, check_int(f"{setting}[{name!r}]", value[name], 1, most)) for name in sorted(value))


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))


def _check_keys(setting: str, value: Any, names: tuple[str, ...], example: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(
            f"Plan: lengths has the names {', '.join(map(repr, names))}, so {setting} should be a dict such as "
            f"{{{names[0]!r}: {example}}}, but got {value!r:.80}"
        )
    for name in value:
        if name not in names:
            raise ValueError(
                f"Plan: {setting} has {name!r}, but lengths are given for {', '.join(map(repr, names))}; use the names "
                "of the lengths"
            )


def check_costs(value: Mapping[Any, Any], names: tuple[str, ...]) -> Costs:
    """Returns the factors of each name, 0 for those that are not given. Raises TypeError and ValueError."""
    if not names:
        raise TypeError(
            "Plan: cost is a dict, but lengths has no names; give cost_linear and cost_quadratic, or what each sample "
            "costs"
        )
    _check_keys("cost", value, names, "(1, 0)")
    return tuple((name, _check_factors(name, value[name]) if name in value else (0, 0)) for name in names)


def _check_factors(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"Plan: cost[{name!r}] should be a pair (linear, quadratic) such as (64, 1), but got {value!r:.80}"
        )
    linear, square = (
        check_cost(f"the {kind} factor of cost[{name!r}]", one)
        for kind, one in zip(("linear", "quadratic"), value, strict=True)
    )
    return linear, square
