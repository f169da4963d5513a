# SPDX-License-Identifier: Apache-2.0
"""The settings of a plan: their checks, what they are for the extension, and as a part of a state."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace import _core

_TAILS = {"pad": _core.PLAN_PAD, "drop": _core.PLAN_DROP, "exact": _core.PLAN_EXACT}
OVERSIZED = ("error", "skip", "alone")
ALGORITHM = 1  # of hr_plan_new; a state names it
_ENDLESS = 2**31 - 1  # the longest length that there can be
_MOST = 2**62
_LEAST_WINDOW, _WINDOW_A_BATCH = 20_000, 2_500


def check_int(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """Returns a setting as an int. Raises TypeError and ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"Plan: {name} should be an int, but got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"Plan: {name} should be an int, but got {value!r}")
    if not least <= number <= most:
        is_open = most == _MOST and number < least
        range_ = f"{least} or more" if is_open else f"from {least} to {most:,}"
        raise ValueError(f"Plan: {name} should be {range_}, but got {number}")
    return number


def _check_cost(name: str, value: Any) -> int:
    """Returns the factor of a cost. Raises TypeError, with what to give in place of a fraction, and ValueError."""
    if isinstance(value, float):
        raise TypeError(
            f"Plan: {name} should be an int, because costs are exact, but got {value!r}; only the ratio of cost_linear "
            "and cost_quadratic counts, so multiply both: cost_linear=1000, cost_quadratic=1 in place of 1 and 0.001"
        )
    return check_int(name, value, 0)


def _check_optional(name: str, value: Any, most: int = _MOST) -> int | None:
    return None if value is None else check_int(name, value, 1, most)


def _check_word(name: str, value: Any, words: tuple[str, ...]) -> str:
    if value not in words:
        raise ValueError(f"Plan: {name} should be one of {words}, but got {value!r}")
    return str(value)


def _check_buckets(given: Any) -> tuple[tuple[int | None, int], ...] | None:
    """Returns pairs (longest, batch size) with rising lengths and batch sizes that do not rise."""
    if given is None:
        return None
    try:
        pairs = [(longest, size) for longest, size in given]
    except (TypeError, ValueError):
        raise TypeError(
            f"Plan: buckets should be pairs (longest, batch size) such as [(100, 32), (220, 24), (None, 16)], but got "
            f"{given!r}"
        ) from None
    if not pairs:
        raise ValueError("Plan: buckets is empty; give at least one pair (longest, batch size)")
    found: list[tuple[int | None, int]] = []
    for at, (longest, size) in enumerate(pairs):
        if longest is None and at < len(pairs) - 1:
            raise ValueError(f"Plan: bucket {at} is for any length (None), so it has to be the last one")
        length = None if longest is None else check_int(f"the length of bucket {at}", longest, 0, _ENDLESS)
        found.append((length, check_int(f"the batch size of bucket {at}", size, 1)))
        _check_pair(found)
    return tuple(found)


def _check_pair(found: list[tuple[int | None, int]]) -> None:
    if len(found) < 2:
        return
    (before, size_before), (longest, size) = found[-2:]
    if longest is not None and before is not None and longest <= before:
        raise ValueError(f"Plan: buckets should be sorted by length, but {longest} comes after {before}")
    if size > size_before:
        raise ValueError(
            f"Plan: the batch sizes of buckets should not rise with the length, but {size} comes after {size_before}; "
            "what does not fill a step of a bucket joins the next one"
        )


@dataclass(frozen=True)
class PlanSettings:
    """How the batches of a plan are formed: see headrace.Plan, whose arguments these are."""

    max_sum: int | None = None
    max_padded: int | None = None
    max_batch: int | None = None
    buckets: tuple[tuple[int | None, int], ...] | None = None
    pack: int | None = None
    cost_linear: int = 1
    cost_quadratic: int = 0
    window: int | None = None
    accumulate: int = 1
    tail: str = "pad"
    oversized: str = "error"

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> PlanSettings:
        """Returns checked settings. Raises TypeError and ValueError."""
        settings = cls(
            max_sum=_check_optional("max_sum", given["max_sum"]),
            max_padded=_check_optional("max_padded", given["max_padded"]),
            max_batch=_check_optional("max_batch", given["max_batch"]),
            buckets=_check_buckets(given["buckets"]),
            pack=_check_optional("pack", given["pack"], 2**24),
            cost_linear=_check_cost("cost_linear", given["cost_linear"]),
            cost_quadratic=_check_cost("cost_quadratic", given["cost_quadratic"]),
            window=_check_optional("window", given["window"]),
            accumulate=check_int("accumulate", given["accumulate"], 1, 2**24),
            tail=_check_word("tail", given["tail"], tuple(_TAILS)),
            oversized=_check_word("oversized", given["oversized"], OVERSIZED),
        )
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        limits = [name for name in ("max_sum", "max_padded") if getattr(self, name) is not None]
        if self.max_batch is not None and self.pack is None:
            limits.append("max_batch")
        ways = [*limits[:1], *(name for name in ("buckets", "pack") if getattr(self, name) is not None)]
        if not ways:
            raise ValueError("Plan: give what bounds a batch: max_sum, max_padded, max_batch, buckets or pack")
        if len(ways) > 1:
            raise ValueError(
                f"Plan: {' and '.join(ways)} do not go together; give limits (max_sum, max_padded, max_batch), or "
                "buckets, or pack with or without max_batch"
            )

    @property
    def longest(self) -> tuple[str, int] | None:
        """The limit that a single sample may exceed, with its name; None if no length is too long."""
        if self.buckets is not None:
            last = self.buckets[-1][0]
            return None if last is None else ("the longest bucket", last)
        limits = {"max_sum": self.max_sum, "max_padded": self.max_padded, "pack": self.pack}
        given = [(value, name) for name, value in limits.items() if value is not None]
        return (min(given)[1], min(given)[0]) if given else None

    @property
    def counts_padding(self) -> bool:
        """True if the samples of a batch are padded to the longest one; False if they are laid end to end."""
        return self.pack is None and (self.max_sum is None or self.max_padded is not None)

    def arguments(self, width: int) -> dict[str, Any]:
        """Returns the arguments of _core.plan for so many batches a step."""
        if self.buckets is not None:
            pairs = tuple((_ENDLESS if longest is None else longest, size) for longest, size in self.buckets)
            ways: dict[str, Any] = {"buckets": pairs}
        else:
            names = ("max_sum", "max_padded", "max_batch", "pack")
            ways = {name: value for name in names if (value := getattr(self, name)) is not None}
        costs = {"cost_linear": self.cost_linear, "cost_quadratic": self.cost_quadratic}
        return {"width": width, "tail": _TAILS[self.tail], "window": self._window(width), **ways, **costs}

    def _window(self, width: int) -> int:
        if self.window is not None:
            return self.window
        return 0 if self.pack is not None else max(_LEAST_WINDOW, _WINDOW_A_BATCH * width)

    def as_fields(self) -> dict[str, Any]:
        """Returns the settings that are not the default, as JSON can contain them."""
        changed = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}
        return {"algorithm": ALGORITHM, **changed}

    @classmethod
    def of_fields(cls, given: Mapping[str, Any]) -> PlanSettings:
        """Returns what as_fields was called on. Raises TypeError and ValueError for fields that are wrong."""
        if given.get("algorithm") != ALGORITHM:
            raise ValueError(
                f"it needs algorithm {given.get('algorithm')!r} of plans, which this version of headrace does not have"
            )
        known = {one.name: one.default for one in fields(cls)}
        if unknown := set(given) - set(known) - {"algorithm"}:
            raise ValueError(f"unknown setting {sorted(unknown)[0]!r}")
        return cls.checked({**known, **{name: given[name] for name in known if name in given}})
