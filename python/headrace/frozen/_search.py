# SPDX-License-Identifier: Apache-2.0
"""Finds the large containers that a dataset holds, for freeze_attributes.

The search differs from the walks of _base/growth.py and _pickles/search.py: it must be able to replace what it
finds, so it goes through attributes and items that can be set, without a limit on the depth, and calls no reductions.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

from headrace._base.attributes import own_attributes
from headrace._base.lookup import is_a
from headrace.frozen import _hidden
from headrace.frozen._sizes import NOT_LOOKED_INTO, dict_of, estimate_bytes, items_of, length, table_bytes, table_of

CONTAINERS = (list, tuple, dict, set, frozenset, deque, defaultdict, OrderedDict, Counter)
FEW = 1000  # containers of up to this many items are searched for datasets
_CODE = (FunctionType, BuiltinFunctionType, MethodType)
_AT_FIRST = "put headrace.freeze of it there when the object is made"
_IN_CODE = "that code of the dataset uses by a variable; put headrace.freeze of it there"


@dataclass
class Container:
    """The place of a container, and functions that put another object there."""

    path: str
    value: Any
    replace: list[Callable[[Any], None]] = field(default_factory=list)


def is_code(value: Any) -> bool:
    """Returns True for instances with behaviour, such as datasets and transforms. They stay; what they hold is frozen.

    Each read of a frozen list makes a new instance, so what a transform keeps from call to call would be lost.
    """
    kind = type(value)
    behaves = any(name in vars(base) for name in ("__getitem__", "__call__", "__next__") for base in kind.__mro__)
    return behaves and kind.__dictoffset__ != 0 and kind not in CONTAINERS and not issubclass(kind, type)


def _attributes(owner: Any) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    """Yields the steps to what an object holds, the values, and the functions that put something else there; None: its
    class, made in C, does not let it be replaced."""
    held = dict_of(owner)
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
    for name, value in dict_of(owner).items():
        yield f".{name}", value, partial(dict_of(owner).__setitem__, name)


def _put_argument(owner: partial[Any], at: int, value: Any) -> None:
    args = (*owner.args[:at], value, *owner.args[at + 1 :])
    partial.__setstate__(owner, (owner.func, args, owner.keywords, dict_of(owner) or None))  # type: ignore[attr-defined]


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
    if type(owner) in CONTAINERS:
        return _entries(owner)
    if is_a(owner, (FunctionType, BuiltinFunctionType)):
        return iter(())
    if is_a(owner, partial):
        return _arguments(owner)
    return chain(_entries(owner), _attributes(owner)) if _length_if_few(owner) else _attributes(owner)


def _length_if_few(value: Any) -> int:
    """Returns the number of entries of a container of a class of its own, or 0 if they are too many to be searched."""
    count = 0 if _hidden.base_of(value) is None else length(value)
    return count if count <= FEW else 0


def _with_article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _described(container: Any) -> str:
    return f"{_with_article(container)} of {length(container):,} items"


class Search:
    """Searches a dataset, and the datasets in it, for large containers. It looks at each object once."""

    def __init__(self, threshold_bytes: int, refused: set[int]) -> None:
        self._threshold_bytes = threshold_bytes
        self._refused = refused  # by identity
        self._seen: set[int] = set()
        self._of_code: set[tuple[str, int]] = set()
        self.places: dict[int, Container] = {}
        self.fixed: list[tuple[str, Any, str]] = []  # path, large container, and why nothing can be put in its place
        self.tables: list[tuple[str, Any, str]] = []  # path, table and its kind: large tables of Python objects

    def run(self, path: str, value: Any) -> list[Container]:
        """Returns the containers that were not found before."""
        known = set(self.places)
        left: list[tuple[str, Any]] = [(path, value)]
        in_code: list[tuple[str, Any]] = []  # what code uses comes last, because nothing is replaced there
        while left or in_code:
            is_of_code = not left
            path, owner = left.pop() if left else in_code.pop()
            if id(owner) in self._seen or (is_a(owner, NOT_LOOKED_INTO) and not is_a(owner, _CODE)):
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
        if type(value) not in CONTAINERS:
            return self._is_table(path, value) or self._is_of_own_class(path, value)
        if len(value) <= FEW and any(map(is_code, items_of(value))):
            return False
        if id(value) not in self.places and estimate_bytes(value) < self._threshold_bytes:
            return True
        if put is None or is_of_code:
            what = _IN_CODE if is_of_code else f"in a place that cannot be set; {_AT_FIRST}"
            self.fixed.append((path, value, f"{_described(value)} {what}"))
            return len(value) > FEW
        self.places.setdefault(id(value), Container(path, value)).replace.append(put)
        return True

    def _look_behind(self, path: str, owner: Any, shown: list[Any]) -> None:
        """Notes large containers that an object holds and does not show, and the arguments of a functools.partial."""
        if is_a(owner, partial) and estimate_bytes(owner.args) >= self._threshold_bytes:
            self.fixed.append(
                (path, owner, f"a functools.partial with large arguments, which are a tuple; {_AT_FIRST}")
            )
        for value in _hidden.in_c(owner, shown, CONTAINERS):
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
        kind = table_of(value) if type(value).__module__.partition(".")[0] in ("numpy", "pandas") else None
        if kind is None:
            return False
        if table_bytes(value) >= self._threshold_bytes:
            self.tables.append((path, value, kind))
        return True
