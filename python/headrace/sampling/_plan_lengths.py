# SPDX-License-Identifier: Apache-2.0
"""The lengths that a plan is made from, of one or of several names, and what each sample costs: their checks, their
digests, and those of some samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace.sampling._state import StateError

if TYPE_CHECKING:
    import numpy as np

    from headrace.sampling._plan_settings import PlanSettings

_LONGEST = 2**31 - 1
_MOST_NAMES = 4  # HR_PLAN_LENGTHS_MAX
_COST_MAX = 2**24  # HR_PLAN_COST_MAX
_HINT = "give the length of each sample, as an array or a list of ints; headrace.lengths(dataset) measures them"


@dataclass(frozen=True)
class SampleLengths:
    """The lengths of samples: an int32 array for each name, in the order of the names. A plan of one length has one
    array, with the name "". costs: what each sample costs, if that was measured, as whole numbers of 24 bits, uint32;
    cost_digest: a digest of what was measured."""

    arrays: dict[str, np.ndarray[Any, Any]]
    costs: np.ndarray[Any, Any] | None = None
    cost_digest: str | None = None

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(next(iter(self.arrays.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, or () if there is one length."""
        return () if "" in self.arrays else tuple(self.arrays)

    def of(self, samples: np.ndarray[Any, Any]) -> SampleLengths:
        """Returns the lengths of some samples, by their numbers."""
        arrays = {name: array[samples] for name, array in self.arrays.items()}
        return replace(self, arrays=arrays, costs=None if self.costs is None else self.costs[samples])

    def check_for(self, settings: PlanSettings) -> None:
        """Raises StateError if settings of a state need names or measured costs that these samples do not have."""
        if settings.names != self.names:
            raise StateError(
                f"headrace: this state is of a plan with {_kinds(settings.names)}, and this plan has "
                f"{_kinds(self.names)}; give it the same names"
            )
        if isinstance(settings.cost, str) and settings.cost != self.cost_digest:
            raise StateError(
                "headrace: this state is of a plan with measured costs (cost=), and this plan has "
                f"{'none' if self.cost_digest is None else 'other ones'}; give it the same costs, or use "
                "on_changed='next_epoch' to leave the rest of the epoch out" + help_on("order-changed")
            )

    def fitting(self, settings: PlanSettings, left: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
        """Returns the positions of the samples that a plan has, of those that are left (None: all): without those that
        exceed a limit if these are skipped."""
        import numpy as np

        if settings.oversized != "skip" or not settings.longest:
            return left
        fits = np.logical_and.reduce([self.arrays[limit.name] <= limit.most for limit in settings.longest])
        found: np.ndarray[Any, Any] = np.flatnonzero(fits) if left is None else left[fits[left]]
        return left if fits.all() else found


def _kinds(names: tuple[str, ...]) -> str:
    return f"lengths of {' and '.join(map(repr, names))}" if names else "one length"


@dataclass(frozen=True)
class PlanLengths:
    """The arguments `lengths` and `cost` of a plan, after checks: `all` has the lengths of all samples."""

    all: SampleLengths
    measured: np.ndarray[Any, Any] | None = None  # what each sample costs, float64
    _digests: dict[int, Any] = field(default_factory=dict, compare=False)

    def first(self, n: int) -> PlanLengths:
        """Returns the lengths of the first n samples, as a plan that was made with these has them."""
        arrays = {name: array[:n] for name, array in self.all.arrays.items()}
        return _lengths_of(arrays, None if self.measured is None else self.measured[:n])

    def digest(self, n: int) -> str | dict[str, str]:
        """Returns a digest of the lengths of the first n samples (BLAKE2b, 64 bits), for each name if there are
        several."""
        if n not in self._digests:
            found = {name: _digest_of(array[:n], "<i4") for name, array in self.all.arrays.items()}
            self._digests[n] = found if self.all.names else found[""]
        return self._digests[n]  # type: ignore[no-any-return]


def _lengths_of(arrays: dict[str, np.ndarray[Any, Any]], measured: np.ndarray[Any, Any] | None) -> PlanLengths:
    if measured is None:
        return PlanLengths(SampleLengths(arrays))
    return PlanLengths(SampleLengths(arrays, _as_numbers(measured), _digest_of(measured, "<f8")), measured)


def _digest_of(array: np.ndarray[Any, Any], kind: str) -> str:
    return hashlib.blake2b(array.astype(kind).tobytes(), digest_size=8).hexdigest()


def _as_numbers(measured: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns costs as whole numbers: 2**24 is the largest cost. So their sums are exact, and equal on each machine."""
    import numpy as np

    largest = measured.max() if len(measured) else 1.0
    found: np.ndarray[Any, Any] = np.maximum(np.rint(measured / largest * _COST_MAX), 1).astype(np.uint32)
    return found


# ---- checks ----


def check_lengths(given: Any, costs: Any = None) -> tuple[PlanLengths, tuple[str, ...]]:
    """Returns the lengths that the argument `lengths` of a plan gives, with measured costs if there are any, and the
    names that they were given with, sorted. Raises TypeError and ValueError, which name the length and the sample."""
    arrays = _check_names(given) if isinstance(given, Mapping) else {"": _check_array(given, "")}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        sizes = " and ".join(f"{count:,} of {name!r}" for name, count in counts.items())
        raise ValueError(f"Plan: lengths has {sizes}; give each name the length of each sample")
    measured = None if costs is None else _check_costs(costs, next(iter(counts.values())))
    names = () if "" in arrays else tuple(arrays)
    return _lengths_of({"": next(iter(arrays.values()))} if len(arrays) == 1 else arrays, measured), names


def _check_names(given: Mapping[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    for name in given:
        if not isinstance(name, str) or not name:
            raise TypeError(f"Plan: the names of lengths should be strings, but got {name!r}")
    if not 1 <= len(given) <= _MOST_NAMES:
        raise ValueError(
            f"Plan: lengths has {len(given)} names; give 1 to {_MOST_NAMES}, such as "
            "{'text': tokens, 'patches': patches}"
        )
    return {name: _check_array(given[name], name) for name in sorted(given)}


def _check_array(given: Any, name: str) -> np.ndarray[Any, Any]:
    """Returns lengths as a new array of int32, shape (n,). Raises TypeError and ValueError, which name the sample."""
    import numpy as np

    what = f"lengths[{name!r}]" if name else "lengths"
    is_array = lookup.has_attribute(given, "__array__") or lookup.has_attribute(given, "__array_interface__")
    if not is_array and not (isinstance(given, (list, tuple, range)) or lookup.has_attribute(given, "buffer_info")):
        raise TypeError(f"Plan: {what} is a {type(given).__name__}; {_HINT}")
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of several lengths
        raise TypeError(f"Plan: {what} is no array of numbers ({error}); {_HINT}") from None
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int32)
    if array.ndim != 1:
        raise ValueError(f"Plan: {what} has the shape {array.shape}, but should have one number per sample; {_HINT}")
    if array.dtype.kind not in "iu":
        raise TypeError(_describe_kind(array, name))
    _check_range(array, name)
    return array.astype(np.int32)


def _of(name: str) -> str:
    return f" {name!r}" if name else ""


def _describe_kind(array: Any, name: str) -> str:
    if array.dtype.kind == "f":
        import numpy as np

        bad = np.flatnonzero(~np.isfinite(array))
        at = int(bad[0]) if len(bad) else 0
        fix = "" if len(bad) else "; round them: lengths.astype('int64')"
        return f"Plan: lengths{_of(name)} should be ints, but that of sample {at} is {array[at]} ({array.dtype}){fix}"
    at = next((i for i, one in enumerate(array.tolist()) if type(one) is not int), 0)
    return f"Plan: lengths{_of(name)} should be ints, but that of sample {at} is {array[at]!r} ({array.dtype})"


def _check_range(array: Any, name: str) -> None:
    at = int(array.argmin())
    if array[at] < 0:
        raise ValueError(f"Plan: the length{_of(name)} of sample {at} is {array[at]}; lengths should be 0 or more")
    at = int(array.argmax())
    if array[at] > _LONGEST:
        raise ValueError(
            f"Plan: the length{_of(name)} of sample {at} is {array[at]}, above 2**31 - 1; give lengths in a larger unit"
        )


def _check_costs(given: Any, n: int) -> np.ndarray[Any, Any]:
    """Returns measured costs as float64, shape (n,). Raises TypeError and ValueError."""
    import numpy as np

    try:
        array = np.asarray(given)
    except ValueError as error:
        raise TypeError(f"Plan: cost is no array of numbers ({error}); give what each sample costs") from None
    if array.dtype.kind not in "iuf" and array.size:
        raise TypeError(
            f"Plan: cost should be a dict such as {{'text': (1, 0), 'patches': (64, 1)}}, or what each sample costs, "
            f"but got {given!r:.80}"
        )
    if array.shape != (n,):
        raise ValueError(
            f"Plan: cost has the shape {array.shape}, but there are {n:,} samples; give one cost per sample"
        )
    found: np.ndarray[Any, Any] = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(bad):
        raise ValueError(
            f"Plan: the cost of sample {bad[0]} is {array[bad[0]]} ({len(bad):,} of {n:,} are like that); costs should "
            "be finite and more than 0"
        )
    return found
