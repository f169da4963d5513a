# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a mixture, and makes whole numbers of its weights."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from headrace._base import lookup
from headrace.sampling._index_sequence import END, LEAST, IndexSequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fractions import Fraction

UNTIL = ("first", "all")
_MOST = 2**63 - 1
_MOST_BITS = 62  # of a weight, for the C library


def check_sources(sources: Any) -> dict[str, Any]:
    """Returns the datasets by name. Raises TypeError and ValueError."""
    if not isinstance(sources, Mapping):
        raise TypeError(
            f'Mixture: sources should be a dict of datasets by name, {{"web": dataset, ...}}, but got a '
            f"{type(sources).__name__}"
        )
    if not sources:
        raise ValueError("Mixture: there is no source; give a dict of datasets by name")
    for name, dataset in sources.items():
        _check_name(name)
        _check_dataset(name, dataset)
    return dict(sources)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"Mixture: the name of a source should be a str, but got {name!r}")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        data = b""
    if not data or b"\0" in data:
        raise ValueError(f"Mixture: the name of a source should be a text without a null character, but got {name!r}")


def _check_dataset(name: str, dataset: Any) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, IndexSequence):
        hint = "; give its .dataset" if hasattr(dataset, "dataset") else ""
        raise TypeError(f"Mixture: source {name!r} is a {kind}, which is a sampler, but should be a dataset{hint}")
    for method in ("__getitem__", "__len__"):
        if not lookup.has_special(dataset, method):
            raise TypeError(
                f"Mixture: source {name!r} is a {kind} without {method}, but sources are map-style datasets, of which "
                "each sample can be read by its index"
            )
    if not len(dataset):
        raise ValueError(f"Mixture: source {name!r} is empty, it has no sample; leave it out")


# ---- weights ----


def check_weights(weights: Any, names: list[str]) -> list[int]:
    """Returns the weights of the sources as whole numbers in the same proportion. Raises TypeError and ValueError."""
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"Mixture: weights should be a dict of numbers by the names of the sources, but got a "
            f"{type(weights).__name__}"
        )
    missing, unknown = [one for one in names if one not in weights], [one for one in weights if one not in names]
    if missing or unknown:
        parts = [f"no weight for {_listed(missing)}"] if missing else []
        parts += [f"no source {_listed(unknown)}"] if unknown else []
        raise ValueError(f"Mixture: weights and sources have other names: there is {', and '.join(parts)}")
    return _whole_numbers([_fraction(name, weights[name]) for name in names])


def _listed(names: list[Any]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fraction(name: str, weight: Any) -> Fraction:
    """Returns a weight as it is written: 0.7 is 7/10."""
    import decimal  # not above: it takes long, and few use mixtures
    from fractions import Fraction

    is_number = isinstance(weight, (numbers.Real, decimal.Decimal)) and not isinstance(weight, bool)
    if not is_number:
        raise TypeError(f"Mixture: the weight of {name!r} should be a number, but got {weight!r}")
    try:
        is_rational = isinstance(weight, numbers.Rational)
        found = Fraction(int(weight.numerator), int(weight.denominator)) if is_rational else Fraction(str(weight))
    except ValueError:  # nan and inf
        found = Fraction(0)
    if found <= 0:
        raise ValueError(
            f"Mixture: the weight of {name!r} should be a number above 0, but is {weight!r}; leave a source out that "
            "should not be read"
        )
    return found


def _whole_numbers(weights: list[Fraction]) -> list[int]:
    scale = math.lcm(*(one.denominator for one in weights))
    whole = [one.numerator * (scale // one.denominator) for one in weights]
    divisor = math.gcd(*whole)
    surplus = max(0, (max(whole) // divisor).bit_length() - _MOST_BITS)
    return [max(1, one // divisor >> surplus) for one in whole]


# ---- numbers ----


def check_int(name: str, value: Any, least: int, most: int) -> int:
    """Returns an int. Raises TypeError and ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"Mixture: {name} should be an int, but got {value!r}") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"Mixture: {name} should be from {least} to {most}, but got {value!r}")
    return number


def check_seed(seed: Any) -> int:
    """Returns the seed. Raises TypeError and ValueError."""
    return check_int("seed", seed, LEAST, END - 1)


def check_epoch(epoch: Any) -> int:
    """Returns the epoch. Raises TypeError and ValueError."""
    return check_int("epoch", epoch, 0, _MOST)


def check_end(until: Any, length: Any) -> tuple[str, int]:
    """Returns "first", "all" or "length", and the length (0: it is computed). Raises TypeError and ValueError."""
    if length is None:
        word = "first" if until is None else until
        if word not in UNTIL:
            raise ValueError(f'Mixture: until should be "first" or "all", but got {until!r}')
        return word, 0
    if until is not None:
        raise ValueError(f"Mixture: give until or length, not both; got until={until!r} and length={length!r}")
    return "length", check_int("length", length, 1, _MOST)
