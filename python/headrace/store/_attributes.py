# SPDX-License-Identifier: Apache-2.0
"""freeze_attributes: the large containers that a data set holds, replaced by views of one frozen image."""

from __future__ import annotations

import logging
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from headrace._errors import exception_text
from headrace.store import _freeze

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, defaultdict, OrderedDict, Counter)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str, bytes, bytearray, int, float)
THRESHOLD_BYTES = 1_000_000
_SAMPLED = 256  # items of a container that its size is estimated from
_LOOKED_AT = 1 << 14  # items in items, at each depth: a list of lists of lists has no end
_FEW = 1000  # a container of so many items is looked into for data sets
_DEPTH = 6
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class FrozenAttribute:
    """A container that was frozen. path: an expression that begins with `dataset`; bytes: what it took as Python
    objects, estimated from a sample of its items."""

    path: str
    type: str
    items: int
    bytes: int


@dataclass(frozen=True)
class FreezeReport:
    """What freeze_attributes did. image_bytes: of the one image that all processes share. skipped: path and reason of
    what is large and could not be frozen."""

    frozen: tuple[FrozenAttribute, ...] = ()
    image_bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def saved_bytes(self) -> int:
        """What each process that reads all of it saves: it would have had a copy of its own."""
        return sum(one.bytes for one in self.frozen)

    def __str__(self) -> str:
        if not self.frozen and not self.skipped:
            return "nothing was frozen: no attribute holds a large container"
        lines = [f"frozen: {one.path}, a {one.type} of {one.items:,} items, {_mb(one.bytes)}" for one in self.frozen]
        if self.frozen:
            image, saved = _mb(self.image_bytes), _mb(self.saved_bytes)
            lines.append(f"one image of {image} holds them for all processes; {saved} of Python objects are gone")
        return "\n".join([*lines, *(f"not frozen: {path}: {reason}" for path, reason in self.skipped)])


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


@dataclass
class _Place:
    """Where a container is held, and how to put another in its stead."""

    path: str
    value: Any
    replace: list[Callable[[Any], None]] = field(default_factory=list)


# ---- sizes


def _dict_of(value: Any) -> dict[str, Any]:
    """The attributes of an instance, as it has them: a proxy is not asked what it stands for."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:  # a property of that name may raise anything
        return {}
    return held if type(held) is dict else {}


def _is_any(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """isinstance, by the type alone: a proxy says it is what it stands for."""
    return issubclass(type(value), kinds)


def _items_of(value: Any) -> Iterable[Any]:
    if _is_any(value, dict):
        return (one for pair in dict.items(value) for one in pair)
    return value if type(value) in _CONTAINERS else _dict_of(value).values()


def _count_of(value: Any) -> int:
    if _is_any(value, dict):
        return 2 * dict.__len__(value)
    return len(value) if type(value) in _CONTAINERS else len(_dict_of(value))


def _sample(value: Any, most: int) -> list[Any]:
    """Some of its items, from all of it where it can be indexed, else its first."""
    if type(value) in (list, tuple) and len(value) > most:
        return [value[at * len(value) // most] for at in range(most)]
    return list(islice(_items_of(value), 2 * most))


def _own_bytes(value: Any) -> int:
    try:
        return sys.getsizeof(value)
    except Exception:  # of its own __sizeof__
        return 0


def estimate_bytes(value: Any, depth: int = _DEPTH, budget: int = _LOOKED_AT, above: tuple[Any, ...] = ()) -> int:
    """What a value takes as Python objects, nested ones included, estimated from samples.

    budget: how many items may be looked at. above: what holds it; what leads back there is counted there.
    """
    if any(one is value for one in above):
        return 0
    own = _own_bytes(value)
    if depth == 0 or _is_any(value, _NOT_LOOKED_INTO):
        return own
    sample = _sample(value, min(_SAMPLED, budget))
    if not sample:
        return own
    share = max(1, budget // len(sample))
    sampled = [estimate_bytes(one, depth - 1, share, (*above, value)) for one in sample]
    return own + sum(sampled) * _count_of(value) // len(sampled)


# ---- finding


def _is_code(value: Any) -> bool:
    """Is it something with a behaviour of its own, as a data set or a transform is? It stays; what it holds is frozen.

    Each read of a frozen list gives an instance anew: what such a one keeps from call to call would be lost.
    """
    kind = type(value)
    behaves = any(name in vars(base) for name in ("__getitem__", "__call__", "__next__") for base in kind.__mro__)
    return behaves and kind.__dictoffset__ != 0 and kind not in _CONTAINERS and not issubclass(kind, type)


def _attributes(owner: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    held = _dict_of(owner)
    for name in list(held):
        yield f".{name}", held[name], partial(held.__setitem__, name)
    for name, slot in [pair for kind in type(owner).__mro__ for pair in vars(kind).items()]:
        if not isinstance(slot, MemberDescriptorType):
            continue
        try:
            value = slot.__get__(owner)
        except AttributeError:  # it was never set
            continue
        yield f".{name}", value, partial(slot.__set__, owner)


def _text_of(key: Any) -> str:
    try:
        return repr(key)
    except Exception:
        return f"<a {type(key).__name__}>"


def _entries(container: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    if _is_any(container, dict):
        for key, value in container.items():
            yield f"[{_text_of(key)}]", value, partial(container.__setitem__, key)
    elif isinstance(container, (list, tuple)):
        for at, value in enumerate(container):
            put = partial(container.__setitem__, at) if isinstance(container, list) else None
            yield f"[{at}]", value, put


class Freezer:
    """freeze_attributes for each iteration of a loader: what could not be frozen is tried, and told of, once."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def freeze(self, dataset: Any) -> None:
        freeze_more(dataset, THRESHOLD_BYTES, self._refused)


class _Search:
    """Goes through a data set, and the data sets in it, for large containers. Each object is looked at once."""

    def __init__(self, threshold_bytes: int, refused: set[int]) -> None:
        self._threshold_bytes = threshold_bytes
        self._refused = refused  # by identity
        self._seen: set[int] = set()
        self.places: dict[int, _Place] = {}

    def run(self, path: str, value: Any) -> list[_Place]:
        """The containers that were not found before."""
        known = set(self.places)
        left: list[tuple[str, Any]] = [(path, value)]
        while left:
            path, owner = left.pop()
            if id(owner) in self._seen or _is_any(owner, _NOT_LOOKED_INTO):
                continue
            self._seen.add(id(owner))
            parts = _entries(owner) if type(owner) in _CONTAINERS else _attributes(owner)
            left += [(path + step, value) for step, value, put in parts if not self._takes(path + step, value, put)]
        return [place for name, place in self.places.items() if name not in known]

    def _takes(self, path: str, value: Any, put: Callable[[Any], None] | None) -> bool:
        """A container: is it dealt with? Notes its place if it is to be frozen. False: look into it."""
        if type(value) not in _CONTAINERS:
            return False
        if id(value) in self._refused:
            return True
        if len(value) <= _FEW and any(map(_is_code, _items_of(value))):
            return False
        if put is None or (id(value) not in self.places and estimate_bytes(value) < self._threshold_bytes):
            return True
        self.places.setdefault(id(value), _Place(path, value)).replace.append(put)
        return True


# ---- freezing


def _makes_entries(value: Any) -> bool:
    """Is there a defaultdict in it that gives what it does not have?"""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if type(one) is defaultdict and one.default_factory is not None:
            return True
        if id(one) not in seen and not _is_any(one, _NOT_LOOKED_INTO):
            seen.add(id(one))
            left.extend(_items_of(one))
    return False


def _freeze_if_alike(value: Any) -> Any:
    """A view that reads as the value does. TypeError where there is none, or what code of the user's raises."""
    view, kinds = _freeze.freeze_natively(value)
    if "other" in kinds and _makes_entries(value):  # deques, Counters and their like
        raise TypeError(
            "headrace.freeze: obj has a defaultdict that makes missing entries, which a view does not; set its "
            "default_factory to None"
        )
    return view


def _reason(error: Exception, path: str) -> str:
    text = str(error) if type(error) is TypeError else exception_text.in_words(error)
    return text.replace("headrace.freeze: obj", path, 1)


def _try_each(search: _Search, places: list[_Place]) -> tuple[list[_Place], list[tuple[_Place, str]]]:
    """The places that can be frozen, and what cannot be, with reasons. What a container that cannot holds may."""
    left, good, refused = list(places), [], []
    while left:
        place = left.pop(0)
        try:
            _freeze_if_alike(place.value)
            good.append(place)
        except MemoryError:
            raise
        except Exception as error:  # code of items' classes runs, too
            refused.append((place, _reason(error, place.path)))
            if len(place.value) <= _FEW:
                left += search.run(place.path, place.value)
    return good, refused


def _freeze_together(search: _Search, places: list[_Place]) -> tuple[list[_Place], Any, list[tuple[_Place, str]]]:
    """The places that could be frozen, a view of the list of their values, and what could not be."""
    try:
        return places, _freeze_if_alike([place.value for place in places]), []
    except MemoryError:
        raise
    except Exception:
        if not places:
            raise
    good, refused = _try_each(search, places)
    return good, _freeze_if_alike([place.value for place in good]), refused


def _what_is_itself_large(dataset: Any, threshold_bytes: int) -> list[tuple[str, str]]:
    kind = type(dataset)
    if kind not in _CONTAINERS or (len(dataset) <= _FEW and any(map(_is_code, _items_of(dataset)))):
        return []
    if estimate_bytes(dataset) < threshold_bytes:
        return []
    return [
        ("dataset", f"a {kind.__name__} itself, with no attribute to replace; use headrace.freeze(dataset) instead")
    ]


def freeze_attributes(dataset: Any, threshold_bytes: int = THRESHOLD_BYTES) -> FreezeReport:
    """Replaces the large containers that a data set's attributes hold by views of one frozen image, in place.

    Lists, tuples, dicts, sets and their like of `threshold_bytes` or more are frozen, also those of data sets inside
    the data set. Arrays and tensors are left: nothing is written to them when they are read. What cannot be frozen
    stays as it is, but for what it holds that can. The report is returned, and logged by the logger `headrace`.

    A view is read-only: code of the data set that writes into such a container gets a TypeError. A defaultdict whose
    reads make missing entries stays as it is.
    """
    return freeze_more(dataset, threshold_bytes, set())


def freeze_more(dataset: Any, threshold_bytes: int, refused_before: set[int]) -> FreezeReport:
    """As freeze_attributes, for what has not been refused before; adds what is refused now."""
    search = _Search(threshold_bytes, refused_before)
    good, views, refused = _freeze_together(search, search.run("dataset", dataset))
    frozen = []
    for place, view in zip(good, views, strict=True):
        value, place.value = place.value, None
        frozen.append(FrozenAttribute(place.path, type(value).__name__, len(value), estimate_bytes(value)))
        for put in place.replace:
            put(view)
    refused_before.update(id(place.value) for place, _ in refused)
    skipped = [(place.path, why) for place, why in refused if estimate_bytes(place.value) >= threshold_bytes]
    skipped += _what_is_itself_large(dataset, threshold_bytes)
    report = FreezeReport(tuple(frozen), _freeze.nbytes(views) if frozen else 0, tuple(skipped))
    if frozen or skipped:
        _log.log(logging.WARNING if skipped else logging.INFO, "headrace: %s", report)
    return report
