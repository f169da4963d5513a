# SPDX-License-Identifier: Apache-2.0
"""Turns steps from an object to another into a Python expression, such as `dataset.items[3].lock`.

A step is a tuple of _core.Walker: (kind, key, position). Python adds two kinds of its own.
"""

from __future__ import annotations

import keyword
import types
from collections.abc import Iterable, Iterator
from typing import Any

from headrace import _core
from headrace._base.lookup import is_a, static
from headrace._pickles import rules

INDEX, VALUE, KEY = _core.STEP_INDEX, _core.STEP_VALUE, _core.STEP_KEY
ELEMENT, ATTRIBUTE, PART = _core.STEP_ELEMENT, _core.STEP_ATTRIBUTE, _core.STEP_PART
TEXT, WRAP = PART + 1, PART + 2  # TEXT: the key is appended; WRAP: key(...) is put around the expression

_LONGEST_KEY = 100  # in an expression

Step = tuple[int, Any, int]
Steps = tuple[Step, ...]


def attribute(name: str) -> Step:
    return (ATTRIBUTE, name, 0)


def text(suffix: str) -> Step:
    return (TEXT, suffix, 0)


def _is_literal(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_is_literal, key))
    if type(key) is float:
        return key - key == 0  # neither infinite nor NaN
    if type(key) in (str, bytes) and len(key) > _LONGEST_KEY:
        return False
    return key is None or type(key) in (str, bytes, int, bool)


def _is_shadowed(owner: Any, name: str) -> bool:
    """Returns True if `owner.name` would run a property although the object has an attribute of that name."""
    return is_a(static(type(owner), name), property) and name in (_core.Walker.attributes(owner) or {})


def _after(path: str, step: Step, owner: Any) -> str:
    kind, key, position = step
    if kind == INDEX:
        return f"{path}[{position}]"
    if kind == VALUE:
        return f"{path}[{key!r}]" if _is_literal(key) else f"list({path}.values())[{position}]"
    if kind in (KEY, ELEMENT):
        return f"list({path})[{position}]"
    if kind == ATTRIBUTE:
        is_name = type(key) is str and key.isidentifier() and not keyword.iskeyword(key)
        if is_name and not _is_shadowed(owner, key):
            return f"{path}.{key}"
        return f"{path}.__dict__[{key!r}]"
    return f"{path}{key}" if kind == TEXT else f"{key}({path})"


def expression(name: str, steps: Iterable[Step], value: Any) -> str:
    """Returns the expression for the steps that start at the object called `name`, which is `value`."""
    for step in steps:
        name = _after(name, step, value)
        value = _follow(value, step)
    return name


def shape(steps: Iterable[Step]) -> tuple[Any, ...]:
    """Returns what groups steps: it is equal for steps that differ in indices and keys only."""
    return tuple((kind, key) if kind in (ATTRIBUTE, TEXT, WRAP) else (kind,) for kind, key, _ in steps)


_NOTHING = object()


def _attribute_of(owner: Any, name: Any) -> Any:
    """Returns an attribute without running code; _NOTHING if that is not possible."""
    own = _core.Walker.attributes(owner)
    if own is not None and name in own:
        return own[name]
    member = static(type(owner), name)
    if isinstance(member, types.MemberDescriptorType):
        return member.__get__(owner)
    fields = static(type(owner), "_fields")
    if is_a(owner, tuple) and isinstance(fields, tuple) and name in fields:
        return tuple.__getitem__(owner, fields.index(name))
    return _NOTHING


def _follow(value: Any, step: Step) -> Any:
    kind, key, position = step
    if kind == ATTRIBUTE:
        return _attribute_of(value, key)
    if kind == INDEX and is_a(value, (list, tuple)):
        return value[position]
    if kind == VALUE and is_a(value, dict):
        return dict.get(value, key, _NOTHING)
    return _NOTHING


def owners(value: Any, steps: Steps) -> list[tuple[Any, str]]:
    """Returns (object, attribute) for the attributes among the steps, as far as they can be followed."""
    found = []
    for step in steps:
        if step[0] == ATTRIBUTE:
            found.append((value, step[1]))
        value = _follow(value, step)
        if value is _NOTHING:
            break
    return found


def inside(value: Any) -> Iterator[tuple[Step, Any]]:
    """Yields the items of a builtin container, or the attributes of a plain instance, with the steps to them."""
    if is_a(value, dict):
        for position, (key, child) in enumerate(value.items()):
            yield (KEY, key, position), key
            yield (VALUE, key, position), child
    elif is_a(value, (list, tuple)):
        for position, child in enumerate(value):
            yield (INDEX, None, position), child
    elif is_a(value, (set, frozenset)):
        for position, child in enumerate(value):
            yield (ELEMENT, None, position), child
    else:
        for name, child in (_core.Walker.attributes(value) or {}).items():
            yield attribute(name), child
        for name in rules.plain_slots(type(value)) or ():
            if (child := _attribute_of(value, name)) is not _NOTHING:
                yield attribute(name), child
