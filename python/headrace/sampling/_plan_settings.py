# SPDX-License-Identifier: Apache-2.0
"""The settings of a plan: their checks, what they are for the extension, and as a part of a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace.sampling._plan_limits import (
    PACK_MOST,
    Costs,
    Limits,
    check_cost,
    check_costs,
    check_int,
    check_limits,
    check_optional,
    check_word,
)

if TYPE_CHECKING:
    from headrace.sampling._plan_lengths import SampleLengths

_TAILS = {"pad": _core.PLAN_PAD, "drop": _core.PLAN_DROP, "exact": _core.PLAN_EXACT}
OVERSIZED = ("error", "skip", "alone")
BALANCE = ("micro_batch", "optimizer_step")
# The algorithms, which a state names: that of hr_plan_new, and that of hr_plan_new_several.
ALGORITHM, ALGORITHM_OF_SEVERAL = 1, 2
_ENDLESS = 2**31 - 1  # the longest length that there can be
_LEAST_WINDOW, _WINDOW_A_BATCH = 20_000, 2_500
_LIMITS = ("max_sum", "max_padded", "pack")


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
class Longest:
    """A limit that a single sample may exceed. name: of the length, or "" if there is only one. text: how a user writes
    the limit."""

    name: str
    text: str
    most: int


@dataclass(frozen=True)
class PlanSettings:
    """How the batches of a plan are formed: see headrace.Plan, whose arguments these are. names: of the lengths, if
    there are several; limits are then pairs (name, limit). cost: of several lengths, pairs (name, (linear, quadratic));
    of measured costs, their digest."""

    max_sum: int | Limits | None = None
    max_padded: int | Limits | None = None
    max_batch: int | None = None
    buckets: tuple[tuple[int | None, int], ...] | None = None
    pack: int | Limits | None = None
    cost_linear: int = 1
    cost_quadratic: int = 0
    window: int | None = None
    accumulate: int = 1
    tail: str = "pad"
    oversized: str = "error"
    names: tuple[str, ...] = ()
    cost: Costs | str | None = None
    balance: str = "micro_batch"

    @classmethod
    def checked(cls, given: Mapping[str, Any], names: tuple[str, ...] = ()) -> PlanSettings:
        """Returns checked settings. names: those of the lengths. `cost` is a dict, a digest, or None. Raises TypeError
        and ValueError."""
        cost = given["cost"]
        if isinstance(cost, Mapping):
            cost = check_costs(cost, names)
        elif cost is None and len(names) > 1:
            cost = tuple((name, (1, 0)) for name in names)
        settings = cls(
            max_sum=check_limits("max_sum", given["max_sum"], names),
            max_padded=check_limits("max_padded", given["max_padded"], names),
            max_batch=check_optional("max_batch", given["max_batch"]),
            buckets=_check_buckets(given["buckets"]),
            pack=check_limits("pack", given["pack"], names, PACK_MOST),
            cost_linear=check_cost("cost_linear", given["cost_linear"]),
            cost_quadratic=check_cost("cost_quadratic", given["cost_quadratic"]),
            window=check_optional("window", given["window"]),
            accumulate=check_int("accumulate", given["accumulate"], 1, 2**24),
            tail=check_word("tail", given["tail"], tuple(_TAILS)),
            oversized=check_word("oversized", given["oversized"], OVERSIZED),
            names=names,
            cost=cost,
            balance=check_word("balance", given["balance"], BALANCE),
        )
        settings._check_together()
        return settings._of_one() if len(names) == 1 else settings

    def _of_one(self) -> PlanSettings:
        """Returns the settings of a plan without names, for lengths with one name."""
        changes: dict[str, Any] = {"names": ()}
        for name in _LIMITS:
            limit = getattr(self, name)
            changes[name] = limit[0][1] if limit else None
        if self.cost is not None and not isinstance(self.cost, str):
            changes["cost"] = None
            changes["cost_linear"], changes["cost_quadratic"] = self.cost[0][1]
        return PlanSettings(**{**vars(self), **changes})

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
        self._check_several()

    def _check_several(self) -> None:
        if self.buckets is not None and (self.names or self.cost is not None):
            what = "names" if self.names else "measured costs"
            raise ValueError(f"Plan: buckets are for one length without {what}; give max_padded, max_sum or pack")
        if (self.cost_linear, self.cost_quadratic) != (1, 0) and (len(self.names) > 1 or self.cost is not None):
            raise ValueError(
                "Plan: cost_linear and cost_quadratic are for one length without a name, and for no other cost; give "
                "cost={'text': (1, 0), ...} with the factors of each name, or cost= what each sample costs"
            )

    @property
    def algorithm(self) -> int:
        """Which algorithm makes the plan."""
        return ALGORITHM_OF_SEVERAL if self.is_of_several else ALGORITHM

    @property
    def is_of_several(self) -> bool:
        """True if hr_plan_new_several makes the plan."""
        return bool(self.names) or self.cost is not None

    @property
    def longest(self) -> list[Longest]:
        """The limits that a single sample may exceed, of each length the smallest one."""
        if self.buckets is not None:
            last = self.buckets[-1][0]
            return [] if last is None else [Longest("", "the longest bucket", last)]
        found = [one for name in _LIMITS for one in self._limits(name)]
        return [min((one for one in found if one.name == name), key=lambda one: one.most) for name in _names_of(found)]

    def _limits(self, setting: str) -> list[Longest]:
        limit = getattr(self, setting)
        if limit is None:
            return []
        if isinstance(limit, int):
            return [Longest("", setting, limit)]
        return [Longest(name, f"{setting}[{name!r}]", most) for name, most in limit]

    def limit_of(self, setting: str, name: str) -> int | None:
        """Returns a limit of one of the lengths, or None."""
        return next((one.most for one in self._limits(setting) if one.name == name), None)

    def counts_padding(self, name: str = "") -> bool:
        """Returns True if the samples of a batch are padded to the longest one of a length; False if they are laid end
        to end."""
        if self.is_of_several:
            return self.limit_of("max_padded", name) is not None
        return self.pack is None and (self.max_sum is None or self.max_padded is not None)

    def factors_of(self, name: str) -> tuple[int, int]:
        """Returns the linear and the quadratic factor of the cost of a length."""
        if isinstance(self.cost, tuple):
            return dict(self.cost)[name]
        return (0, 0) if self.cost is not None else (self.cost_linear, self.cost_quadratic)

    # ---- for the extension ----

    def plan(self, lengths: SampleLengths, world: int, seed: int, epoch: int) -> tuple[bytes, bytes, int]:
        """Returns what _core.plan or _core.plan_several makes of the samples of an epoch."""
        width = world * self.accumulate
        ranks = world if self.balance == "optimizer_step" else 0
        common: dict[str, Any] = {"width": width, "seed": seed, "epoch": epoch, "tail": _TAILS[self.tail]}
        common |= {"window": self._window(width), "max_batch": self.max_batch or 0, "ranks": ranks}
        if not self.is_of_several:
            return _core.plan(lengths.arrays[""], **common, **self._ways())
        found = tuple((array, *self._numbers_of(name)) for name, array in lengths.arrays.items())
        return _core.plan_several(found, costs=lengths.costs if isinstance(self.cost, str) else None, **common)

    def _numbers_of(self, name: str) -> tuple[int, int, int, int, int]:
        """Returns the limits and the factors of a length."""
        max_sum, max_padded, pack = (self.limit_of(setting, name) or 0 for setting in _LIMITS)
        return (max_sum, max_padded, pack, *self.factors_of(name))

    def _ways(self) -> dict[str, Any]:
        costs = {"cost_linear": self.cost_linear, "cost_quadratic": self.cost_quadratic}
        if self.buckets is not None:
            pairs = tuple((_ENDLESS if longest is None else longest, size) for longest, size in self.buckets)
            return {"buckets": pairs, **costs}
        return {**{name: value for name in _LIMITS if (value := getattr(self, name)) is not None}, **costs}

    def _window(self, width: int) -> int:
        if self.window is not None:
            return self.window
        is_whole = self.pack is not None or (
            self.is_of_several and self.max_padded is None and self.max_sum is not None
        )
        return 0 if is_whole else max(_LEAST_WINDOW, _WINDOW_A_BATCH * width)

    # ---- for states ----

    def as_fields(self) -> dict[str, Any]:
        """Returns the settings that are not the default, as JSON can contain them."""
        changed = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}
        if self.names:
            changed["names"] = list(self.names)
            changed |= {name: dict(changed[name]) for name in _LIMITS if name in changed}
        if isinstance(self.cost, tuple):
            changed["cost"] = {name: list(factors) for name, factors in self.cost}
        return {"algorithm": self.algorithm, **changed}

    @classmethod
    def of_fields(cls, given: Mapping[str, Any]) -> PlanSettings:
        """Returns what as_fields was called on. Raises TypeError and ValueError for fields that are wrong."""
        algorithm = given.get("algorithm")
        if algorithm not in (ALGORITHM, ALGORITHM_OF_SEVERAL):
            raise ValueError(f"it needs algorithm {algorithm!r} of plans, which this version of headrace does not have")
        known = {one.name: one.default for one in fields(cls)}
        if unknown := set(given) - set(known) - {"algorithm"}:
            raise ValueError(f"unknown setting {sorted(unknown)[0]!r}")
        found = cls.checked({**known, **{name: given[name] for name in known if name in given}}, _names(given))
        if found.algorithm != algorithm:
            raise ValueError(f"its settings are not those of algorithm {algorithm}")
        return found


def _names_of(found: list[Longest]) -> list[str]:
    return list(dict.fromkeys(one.name for one in found))


def _names(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the lengths in a state."""
    names = given.get("names", ())
    cost = given.get("cost")
    if not (isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names) and len(names) != 1):
        raise TypeError(f"names should be several strings, but got {names!r:.80}")
    if cost is not None and not isinstance(cost, (Mapping, str)):
        raise TypeError(f"cost should be a dict or a digest, but got {cost!r:.80}")
    return tuple(sorted(names))
