# SPDX-License-Identifier: Apache-2.0
"""freeze_attributes: replaces the large containers that a dataset holds with views of frozen data."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace._base import exception_text, growth, lookup
from headrace._base.lookup import is_a
from headrace.frozen import _freeze, _hidden
from headrace.frozen._search import CONTAINERS, FEW, Container, Search, is_code
from headrace.frozen._sizes import NOT_LOOKED_INTO, estimate_bytes, items_of, length, table_of

THRESHOLD_BYTES = 1_000_000
# Containers of up to so many items in all are read as ordinary objects. A dataset takes records out of what is frozen,
# and it, a transform or collate_fn may write to them or ask for their type.
SMALL_ITEMS = 1000
_NAMES = {"ndarray": "an array", "Index": "an Index"}
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class FrozenAttribute:
    """A container that was frozen. path: an expression that begins with `dataset`. bytes: its size as Python objects,
    estimated from a sample of its items."""

    path: str
    type: str
    items: int
    bytes: int


@dataclass(frozen=True)
class FreezeReport:
    """The result of freeze_attributes. frozen_bytes: the size of the data, which all processes share. skipped: path
    and reason for each large container that could not be frozen."""

    frozen: tuple[FrozenAttribute, ...] = ()
    frozen_bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Returns the bytes that each process saves if it reads everything: it would have made its own copy."""
        return sum(one.bytes for one in self.frozen)

    def __str__(self) -> str:
        if not self.frozen and not self.skipped:
            return "nothing was frozen: no attribute holds a large container"
        lines = [f"frozen: {one.path}, a {one.type} of {one.items:,} items, {_mb(one.bytes)}" for one in self.frozen]
        if self.frozen:
            frozen, saved = _mb(self.frozen_bytes), _mb(self.saved_bytes)
            lines.append(f"{frozen} of frozen data hold them for all processes; {saved} of Python objects are gone")
        return "\n".join([*lines, *(f"not frozen: {path}: {reason}" for path, reason in self.skipped)])


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _unlike(value: Any) -> str:
    """Returns what in a value a view does not read as it is, or ""."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if any(test(one) for test in lookup.kept_as_they_are):
            return (
                "an array of headrace.cache.shared, and a view would not see what is written to it; keep the array in "
                "an attribute of its own"
            )
        if type(one) is defaultdict and one.default_factory is not None:
            return "a defaultdict that makes missing entries, which a view does not; set its default_factory to None"
        if type(one).__module__ == "numpy" and table_of(one) and one.size > SMALL_ITEMS:
            return (
                "an array of Python objects, whose view would be a list, or would be made again at each read; use its "
                "tolist(), or an array of texts"
            )
        if id(one) not in seen and not is_a(one, NOT_LOOKED_INTO):
            seen.add(id(one))
            left.extend(items_of(one))
    return ""


def _freeze_if_alike(value: Any) -> Any:
    """Returns a view that reads as the value does. Raises TypeError if it cannot, or what user code raises."""
    view, kinds = _freeze.freeze_natively(value)
    is_other = "other" in kinds or lookup.kept_as_they_are  # deques, defaultdicts, arrays of objects, shared arrays
    if is_other and (what := _unlike(value)):
        raise TypeError(f"headrace.freeze: obj has {what}")
    return view


def _reason(error: Exception, path: str) -> str:
    text = str(error) if type(error) is TypeError else exception_text.in_words(error)
    return text.replace("headrace.freeze: obj", path, 1)


def _try_each(search: Search, places: list[Container]) -> tuple[list[Container], list[tuple[Container, str]]]:
    """Returns the places that can be frozen, and the others with reasons. If a container cannot be frozen, it tries the
    containers in it."""
    left, good, refused = list(places), [], []
    while left:
        place = left.pop(0)
        try:
            _freeze_if_alike(place.value)
            good.append(place)
        except MemoryError:
            raise
        except Exception as error:  # freezing runs code of the items' classes too
            refused.append((place, _reason(error, place.path)))
            if len(place.value) <= FEW:
                left += search.run(place.path, place.value)
    return good, refused


def _freeze_together(
    search: Search, places: list[Container]
) -> tuple[list[Container], Any, list[tuple[Container, str]]]:
    """Returns the places that could be frozen, a view of the list of their values, and the places that could not."""
    try:
        return places, _freeze_if_alike([place.value for place in places]), []
    except MemoryError:
        raise
    except Exception:
        if not places:
            raise
    good, refused = _try_each(search, places)
    return good, _freeze_if_alike([place.value for place in good]), refused


def _itself_if_large(dataset: Any, threshold_bytes: int) -> list[tuple[str, str]]:
    kind = type(dataset)
    if _hidden.base_of(dataset) is None or estimate_bytes(dataset) < threshold_bytes:
        return []
    if length(dataset) <= FEW and any(map(is_code, items_of(dataset))):
        return []
    how = "use headrace.freeze(dataset) instead" if kind in CONTAINERS else "keep its items in an attribute"
    return [("dataset", f"a {kind.__name__} itself, with no attribute to replace; {how}")]


def _is_still_large(value: Any, threshold_bytes: int) -> bool:
    """Returns False for a container that is small now, because parts of it were frozen."""
    return estimate_bytes(value.args if is_a(value, partial) else value) >= threshold_bytes


def _has_part(path: str, paths: list[str]) -> bool:
    """Returns True if one of the paths leads to a part of what is at this path."""
    return any(one.startswith((f"{path}.", f"{path}[")) for one in paths)


def freeze_attributes(dataset: Any, threshold_bytes: int = THRESHOLD_BYTES) -> FreezeReport:
    """Replaces the large containers in a dataset's attributes with views of frozen data, in place.

    Lists, tuples, dicts, sets and their like of `threshold_bytes` or more are frozen, also those of datasets inside
    the dataset. Arrays and tensors stay: reading them does not write to their memory. Arrays of Python objects and
    DataFrames stay too, and the report says what to do with them. A container that cannot be frozen
    stays too, except for the containers in it that can, and so does one that nothing can be put in the place of, such
    as one that an object of a class made in C holds, or that code of the dataset uses by a variable (of a closure, a
    default, a global variable). The report names each. It is returned, and logged by the logger `headrace`.

    What is read out of a view is ordinary Python up to 1,000 items in all, with copies of its arrays up to 64 KiB: a
    record can be changed, which does not change the dataset. What is larger is a view.

    A view is read-only: code of the dataset that writes into such a container gets a TypeError. A defaultdict that
    makes missing entries when it is read stays as it is.
    """
    return freeze_more(dataset, threshold_bytes, set())


def freeze_more(dataset: Any, threshold_bytes: int, refused_before: set[int]) -> FreezeReport:
    """Does the same as freeze_attributes, except that it skips containers in `refused_before`, and adds those refused
    now."""
    search = Search(threshold_bytes, refused_before)
    good, views, refused = _freeze_together(search, search.run("dataset", dataset))
    frozen = []
    for place, view in zip(good, views, strict=True):
        value, place.value = place.value, None
        frozen.append(FrozenAttribute(place.path, type(value).__name__, len(value), estimate_bytes(value)))
        for put in place.replace:
            put(view)
    if frozen:
        _freeze.read_small_as_ordinary(views, SMALL_ITEMS)
    refused_before.update(id(place.value) for place, _ in refused)
    skipped = [(place.path, why) for place, why in refused if estimate_bytes(place.value) >= threshold_bytes]
    skipped += _itself_if_large(dataset, threshold_bytes)
    fixed = [one for one in search.fixed if _is_still_large(one[1], threshold_bytes)]
    paths = [path for path, *_ in (*skipped, *fixed)]
    skipped += [(path, what) for path, _, what in fixed if not _has_part(path, paths)]
    refused_before.update(id(value) for _, value, _ in fixed)
    refused_before.update(id(table) for _, table, _ in search.tables)
    skipped += [
        (path, f"{_NAMES.get(kind, f'a {kind}')} of Python objects; {growth.how_to_freeze(kind, path)}")
        for path, _, kind in search.tables
    ]
    report = FreezeReport(tuple(frozen), _freeze.nbytes(views) if frozen else 0, tuple(skipped))
    if frozen or skipped:
        _log.log(logging.WARNING if skipped else logging.INFO, "headrace: %s", report)
    return report


class Freezer:
    """Runs freeze_attributes in each iteration of a loader. It tries and reports what cannot be frozen only once."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def freeze(self, dataset: Any) -> None:
        freeze_more(dataset, THRESHOLD_BYTES, self._refused)
