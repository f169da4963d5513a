# SPDX-License-Identifier: Apache-2.0
"""Steps from an object to another, and the Python expression that they are.

A step is what _core.Walker gives: (kind, key, position). Python's own kinds come after the walker's.
"""

from __future__ import annotations

import keyword
import types
from collections.abc import Iterable, Iterator
from typing import Any

from headrace import _core
from headrace._inspect.lookup import is_a, static
from headrace.doctor.pickle import rules

INDEX, VALUE, KEY, ELEMENT, ATTRIBUTE, PART = range(6)  # enum step_kind (_core/walk.c)
TEXT, WRAP = 6, 7  # .key appended as it is; key(...) around it

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
        return key - key == 0  # neither infinite nor nan
    if type(key) in (str, bytes) and len(key) > _LONGEST_KEY:
        return False
    return key is None or type(key) in (str, bytes, int, bool)


def _is_shadowed(owner: Any, name: str) -> bool:
    """Would `owner.name` run a property, though the object has an attribute of that name?"""
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
    """The expression that follows the steps from the object called `name`, which is `value`."""
    for step in steps:
        name = _after(name, step, value)
        value = _follow(value, step)
    return name


def shape(steps: Iterable[Step]) -> tuple[Any, ...]:
    """Equal for steps that differ in indices and keys only: for grouping."""
    return tuple((kind, key) if kind in (ATTRIBUTE, TEXT, WRAP) else (kind,) for kind, key, _ in steps)


_NOTHING = object()


def _attribute_of(owner: Any, name: Any) -> Any:
    """An attribute's value, read without running code; _NOTHING where that cannot be."""
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
    """(object, attribute) for the attributes on the way from an object, as far as it can be followed."""
    found = []
    for step in steps:
        if step[0] == ATTRIBUTE:
            found.append((value, step[1]))
        value = _follow(value, step)
        if value is _NOTHING:
            break
    return found


def inside(value: Any) -> Iterator[tuple[Step, Any]]:
    """What a builtin container or a plain instance holds, one level down."""
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
