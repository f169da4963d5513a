# SPDX-License-Identifier: Apache-2.0
"""freeze_attributes: replaces the large containers that a dataset holds with views of frozen data.

Its search differs from the walks of _base/growth.py and _pickles/search.py: it must be able to replace what it
finds, so it goes through attributes and items that can be set, without a limit on the depth, and calls no reductions.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from headrace import _core
from headrace._base import exception_text, growth, lookup
from headrace._base.attributes import own_attributes
from headrace._base.lookup import is_a
from headrace.frozen import _freeze, _hidden

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, defaultdict, OrderedDict, Counter)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str, bytes, bytearray, int, float)
THRESHOLD_BYTES = 1_000_000
_SAMPLED = 256  # the size of a container is estimated from this many of its items
_LOOKED_AT = 1 << 14  # items at each depth, because a list of lists of lists may have very many
_FEW = 1000  # containers of up to this many items are searched for datasets
_DEPTH = 6
# Containers of up to so many items in all are read as ordinary objects. A dataset takes records out of what is frozen,
# and it, a transform or collate_fn may write to them or ask for their type.
SMALL_ITEMS = 1000
_CODE = (FunctionType, BuiltinFunctionType, MethodType)
_NAMES = {"ndarray": "an array", "Index": "an Index"}
_AT_FIRST = "put headrace.freeze of it there when the object is made"
_IN_CODE = "that code of the dataset uses by a variable; put headrace.freeze of it there"
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


@dataclass
class _Container:
    """The place of a container, and functions that put another object there."""

    path: str
    value: Any
    replace: list[Callable[[Any], None]] = field(default_factory=list)


# ---- sizes


def _dict_of(value: Any) -> dict[str, Any]:
    """Returns the __dict__ of an instance, without running code: a proxy would answer with another object's."""
    return _core.Walker.attributes(value) or {}


def _table_of(value: Any) -> str | None:
    """Returns "ndarray", "DataFrame", "Series" or "Index" for such a table of Python objects; else None."""
    kind = type(value)
    top, name = kind.__module__.partition(".")[0], kind.__name__
    if top == "numpy":
        return name if name == "ndarray" and value.dtype.hasobject else None
    if top != "pandas" or name not in growth.TABLES:
        return None
    dtypes = value.dtypes if name == "DataFrame" else [value.dtype]
    return name if any(map(_is_of_objects, dtypes)) else None


def _is_of_objects(dtype: Any) -> bool:
    return dtype.kind == "O" and "pyarrow" not in str(getattr(dtype, "storage", "python"))


def _table_bytes(value: Any) -> int:
    """Estimates the bytes of a table of Python objects."""
    if type(value).__name__ == "DataFrame":
        return sum(_table_bytes(value[name]) if _table_of(value[name]) else 0 for name in value.columns)
    count = int(value.size)
    flat = value.reshape(-1) if hasattr(value, "reshape") else value.array
    some = [flat[at * count // _SAMPLED] for at in range(_SAMPLED)] if count > _SAMPLED else list(flat)
    return 8 * count + sum(estimate_bytes(one, 2, _SAMPLED) for one in some) * count // max(1, len(some))


def _items_of(value: Any) -> Iterable[Any]:
    base = _hidden.base_of(value)
    if base is dict:
        return (one for pair in dict.items(value) for one in pair)
    return _dict_of(value).values() if base is None else base.__iter__(value)


def _count_of(value: Any) -> int:
    count = _length(value)
    return 2 * count if is_a(value, dict) else count


def _length(value: Any) -> int:
    """Returns the number of entries of a container, or of attributes. It does not call the __len__ of a class of the
    user's."""
    base = _hidden.base_of(value)
    return len(_dict_of(value)) if base is None else base.__len__(value)


def _sample(value: Any, most: int) -> list[Any]:
    """Returns some of the items: from all parts of a list or a tuple, else the first ones."""
    if type(value) in (list, tuple) and len(value) > most:
        return [value[at * len(value) // most] for at in range(most)]
    return list(islice(_items_of(value), 2 * most))


def _own_bytes(value: Any) -> int:
    try:
        return sys.getsizeof(value)
    except Exception:  # raised by its own __sizeof__
        return 0


def estimate_bytes(value: Any, depth: int = _DEPTH, budget: int = _LOOKED_AT, above: tuple[Any, ...] = ()) -> int:
    """Estimates from samples the bytes of a value as Python objects, including nested ones.

    budget: how many items may be looked at. above: the objects that hold it; they are not counted again.
    """
    if any(one is value for one in above):
        return 0
    own = _own_bytes(value)
    if depth and type(value).__module__.partition(".")[0] in ("numpy", "pandas") and _table_of(value):
        return _table_bytes(value)
    if depth == 0 or is_a(value, _NOT_LOOKED_INTO):
        return own
    sample = _sample(value, min(_SAMPLED, budget))
    if not sample:
        return own
    share = max(1, budget // len(sample))
    sampled = [estimate_bytes(one, depth - 1, share, (*above, value)) for one in sample]
    return own + sum(sampled) * _count_of(value) // len(sampled)


# ---- finding


def _is_code(value: Any) -> bool:
    """Returns True for instances with behaviour, such as datasets and transforms. They stay; what they hold is frozen.

    Each read of a frozen list makes a new instance, so what a transform keeps from call to call would be lost.
    """
    kind = type(value)
    behaves = any(name in vars(base) for name in ("__getitem__", "__call__", "__next__") for base in kind.__mro__)
    return behaves and kind.__dictoffset__ != 0 and kind not in _CONTAINERS and not issubclass(kind, type)


def _attributes(owner: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    """Yields the steps to what an object holds, the values, and the functions that put something else there; None: its
    class, made in C, does not let it be replaced."""
    held = _dict_of(owner)
    for name, value, slot in own_attributes(owner):
        if slot is None:
            yield f".{name}", value, partial(held.__setitem__, name)
        elif value is not held:  # __dict__ of a SimpleNamespace
            yield f".{name}", value, _setter_of(owner, slot, value)


def _setter_of(owner: Any, slot: MemberDescriptorType, value: Any) -> Callable[[Any], None] | None:
    put = partial(slot.__set__, owner)
    try:
        put(value)
    except (AttributeError, TypeError):  # it is read-only
        return None
    return put


def _arguments(owner: partial[Any]) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    """Yields the same of a functools.partial, whose arguments can be replaced one by one."""
    for at, value in enumerate(owner.args):
        yield f".args[{at}]", value, partial(_put_argument, owner, at)
    for name, value in owner.keywords.items():
        yield f".keywords[{name!r}]", value, partial(owner.keywords.__setitem__, name)
    yield ".func", owner.func, None
    for name, value in _dict_of(owner).items():
        yield f".{name}", value, partial(_dict_of(owner).__setitem__, name)


def _put_argument(owner: partial[Any], at: int, value: Any) -> None:
    args = (*owner.args[:at], value, *owner.args[at + 1 :])
    partial.__setstate__(owner, (owner.func, args, owner.keywords, _dict_of(owner) or None))  # type: ignore[attr-defined]


def _text_of(key: Any) -> str:
    try:
        return repr(key)
    except Exception:
        return f"<a {type(key).__name__}>"


def _entries(container: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    """Yields the same of a container. It calls no methods of a class of the user's."""
    base = _hidden.base_of(container)
    if base is dict:
        for key, value in list(dict.items(container)):
            yield f"[{_text_of(key)}]", value, partial(dict.__setitem__, container, key)
    elif base in (list, tuple):
        for at, value in enumerate(list(base.__iter__(container))):
            yield f"[{at}]", value, partial(list.__setitem__, container, at) if base is list else None


def _parts(owner: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    if type(owner) in _CONTAINERS:
        return _entries(owner)
    if is_a(owner, (FunctionType, BuiltinFunctionType)):
        return iter(())
    if is_a(owner, partial):
        return _arguments(owner)
    return chain(_entries(owner), _attributes(owner)) if _length_if_few(owner) else _attributes(owner)


def _length_if_few(value: Any) -> int:
    """Returns the number of entries of a container of a class of its own, or 0 if they are too many to be searched."""
    count = 0 if _hidden.base_of(value) is None else _length(value)
    return count if count <= _FEW else 0


def _with_article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _described(container: Any) -> str:
    return f"{_with_article(container)} of {_length(container):,} items"


class Freezer:
    """Runs freeze_attributes in each iteration of a loader. It tries and reports what cannot be frozen only once."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def freeze(self, dataset: Any) -> None:
        freeze_more(dataset, THRESHOLD_BYTES, self._refused)


class _Search:
    """Searches a dataset, and the datasets in it, for large containers. It looks at each object once."""

    def __init__(self, threshold_bytes: int, refused: set[int]) -> None:
        self._threshold_bytes = threshold_bytes
        self._refused = refused  # by identity
        self._seen: set[int] = set()
        self._of_code: set[tuple[str, int]] = set()
        self.places: dict[int, _Container] = {}
        self.fixed: list[tuple[str, Any, str]] = []  # path, large container, and why nothing can be put in its place
        self.tables: list[tuple[str, Any, str]] = []  # path, table and its kind: large tables of Python objects

    def run(self, path: str, value: Any) -> list[_Container]:
        """Returns the containers that were not found before."""
        known = set(self.places)
        left: list[tuple[str, Any]] = [(path, value)]
        in_code: list[tuple[str, Any]] = []  # what code uses comes last, because nothing is replaced there
        while left or in_code:
            is_of_code = not left
            path, owner = left.pop() if left else in_code.pop()
            if id(owner) in self._seen or (is_a(owner, _NOT_LOOKED_INTO) and not is_a(owner, _CODE)):
                continue
            self._seen.add(id(owner))
            parts = list(_parts(owner))
            further = [one for one in parts if not self._takes(path + one[0], one[1], one[2], is_of_code)]
            (in_code if is_of_code else left).extend((path + step, value) for step, value, _ in further)
            self._look_behind(path, owner, [value for _, value, _ in parts])
            in_code += self._look_into_code(owner)
        return [place for name, place in self.places.items() if name not in known]

    def _takes(self, path: str, value: Any, put: Callable[[Any], None] | None, is_of_code: bool) -> bool:
        """Notes the place of a container if it is to be frozen. Returns False if the search should look into it."""
        if id(value) in self._refused:
            return True
        if type(value) not in _CONTAINERS:
            return self._is_table(path, value) or self._is_of_own_class(path, value)
        if len(value) <= _FEW and any(map(_is_code, _items_of(value))):
            return False
        if id(value) not in self.places and estimate_bytes(value) < self._threshold_bytes:
            return True
        if put is None or is_of_code:
            what = _IN_CODE if is_of_code else f"in a place that cannot be set; {_AT_FIRST}"
            self.fixed.append((path, value, f"{_described(value)} {what}"))
            return len(value) > _FEW
        self.places.setdefault(id(value), _Container(path, value)).replace.append(put)
        return True

    def _look_behind(self, path: str, owner: Any, shown: list[Any]) -> None:
        """Notes large containers that an object holds and does not show, and the arguments of a functools.partial."""
        if is_a(owner, partial) and estimate_bytes(owner.args) >= self._threshold_bytes:
            self.fixed.append(
                (path, owner, f"a functools.partial with large arguments, which are a tuple; {_AT_FIRST}")
            )
        for value in _hidden.in_c(owner, shown, _CONTAINERS):
            if self._is_large(value):
                what = f"{_with_article(owner)}, which holds {_described(value)}; {_AT_FIRST}"
                self.fixed.append((path, value, what))

    def _look_into_code(self, owner: Any) -> list[tuple[str, Any]]:
        """Notes large containers in variables that a function uses, or the methods of an object. Other code has these
        variables too, so they stay. Returns what else is to be searched there."""
        further = []
        for name, value in _hidden.in_code(owner):
            if _hidden.base_of(value) is None:
                further += [(name, value)] if _hidden.leads_on(value) else []
            elif (name, id(value)) not in self._of_code and self._is_large(value):
                self._of_code.add((name, id(value)))
                self.fixed.append((name, value, f"{_described(value)} {_IN_CODE}"))
        return further

    def _is_large(self, value: Any) -> bool:
        return id(value) not in self._refused and estimate_bytes(value) >= self._threshold_bytes

    def _is_of_own_class(self, path: str, value: Any) -> bool:
        """Notes a large container of a class that is derived from Python's: a view would not have that class. Returns
        True if it has too many entries to be searched."""
        if _hidden.base_of(value) is None or not self._is_large(value):
            return False
        what = (
            f"{_described(value)}, and a view would not be a {type(value).__name__}; keep them in a list or dict of it"
        )
        self.fixed.append((path, value, what))
        return not _length_if_few(value)

    def _is_table(self, path: str, value: Any) -> bool:
        """Notes a large table of Python objects. Its view would be a list, so it stays."""
        kind = _table_of(value) if type(value).__module__.partition(".")[0] in ("numpy", "pandas") else None
        if kind is None:
            return False
        if _table_bytes(value) >= self._threshold_bytes:
            self.tables.append((path, value, kind))
        return True


# ---- freezing


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
        if type(one).__module__ == "numpy" and _table_of(one) and one.size > SMALL_ITEMS:
            return (
                "an array of Python objects, whose view would be a list, or would be made again at each read; use its "
                "tolist(), or an array of texts"
            )
        if id(one) not in seen and not is_a(one, _NOT_LOOKED_INTO):
            seen.add(id(one))
            left.extend(_items_of(one))
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


def _try_each(search: _Search, places: list[_Container]) -> tuple[list[_Container], list[tuple[_Container, str]]]:
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
            if len(place.value) <= _FEW:
                left += search.run(place.path, place.value)
    return good, refused


def _freeze_together(
    search: _Search, places: list[_Container]
) -> tuple[list[_Container], Any, list[tuple[_Container, str]]]:
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
    if _length(dataset) <= _FEW and any(map(_is_code, _items_of(dataset))):
        return []
    how = "use headrace.freeze(dataset) instead" if kind in _CONTAINERS else "keep its items in an attribute"
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
    search = _Search(threshold_bytes, refused_before)
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
