# SPDX-License-Identifier: Apache-2.0
"""Computes a digest of the function that builds an object, or of a dataset, to find out whether code or values differ,
and notes which values a builder changes itself."""

from __future__ import annotations

import time
from typing import Any

from headrace._base import users_code
from headrace._base.attributes import own_attributes
from headrace._base.units import in_units
from headrace._base.warn import say
from headrace._cache import parts, unfollowed
from headrace._cache.parts import Digest, Held, TooLarge, changes

_SILENT_S, _SAY_EACH_S = 2.0, 10.0  # when, and how often, a line says how much of a dataset was read
_MUCH_BYTES = 1 << 30


def seen_by(function: Any, has_version: bool, arguments: Any = ()) -> Digest:
    """Returns the digest of a function, and of the code that belongs to its arguments. Raises ValueError if a value is
    too large and the user has not given a version."""
    digest = Digest(has_version)
    try:
        digest.add_root(function)
        digest.add_code_in(arguments)
        digest.close()
    except TooLarge as error:
        raise ValueError(
            f"headrace.cache: {error} is larger than {parts.MOST_BYTES >> 20} MiB, too large to see whether it "
            "changes; give version=, and another one whenever it changes"
        ) from None
    if not has_version:
        unknown = [f"{name}, which cannot be compared," for name in digest.unknown]
        unfollowed.say([*digest.unfollowed, *digest.unseeded(), *unknown])
    return digest


class _Reading:
    """Says how far it is, if reading the values of a dataset takes long."""

    def __init__(self, name: str) -> None:
        self._name, self._bytes, self._next = name, 0, time.monotonic() + _SILENT_S

    def __call__(self, count: int) -> None:
        self._bytes += count
        if self._bytes > _MUCH_BYTES and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_EACH_S
            say(
                f"cache: reading the attributes of {self._name}, to see whether another job has its samples: "
                f"{in_units(self._bytes)} so far"
            )


def seen_in(value: Any, has_version: bool = False) -> tuple[dict[str, str], list[str], tuple[str, ...]]:
    """Returns the parts of a dataset: its class, its items if it is a list or a dict, and each of its attributes, of
    any size; the names of attributes that cannot be compared; and the modules of the user that have the code."""
    name = type(value).__qualname__
    digest = Digest(False, _Reading(name))
    if users_code.is_users(users_code.file_of(type(value))):
        digest.add(type(value), f"class {name}")
    else:
        digest.seen[f"class {name}"] = f"{type(value).__module__}.{name}"
    attributes = {attribute: part for attribute, part, _ in own_attributes(value)}
    for attribute, part in sorted(attributes.items()):
        digest.add(part, f"{name}.{attribute}")
    if isinstance(value, (list, tuple)):
        digest.add(list(value), f"the items of {name}")
    elif isinstance(value, dict):
        digest.add(list(dict.items(value)), f"the items of {name}")
    elif not attributes and not hasattr(value, "__dict__"):
        digest.add(value, name)
    digest.close()
    if not has_version:
        unfollowed.say(list(digest.unfollowed))
    return digest.seen, digest.unknown, tuple(digest.modules)


# ---- values that a builder changes ----


def note_changes(before: Digest, function: Any, arguments: Any, name: str) -> str:
    """Notes which values a builder has changed, such as a memo, a counter or a generator of random numbers: as long as
    nothing else changes them, they count as they were before it. Returns a relative path that was not there before."""
    after = Digest(True)
    try:
        after.add_root(function)
        after.add_code_in(arguments)
        after.close()
    except Exception:  # of the user's code; what was built is right
        return ""
    changed = []
    for key, now in after.values.items():
        was = before.values.get(key, Held(now.holders, {}, frozenset()))
        if now.parts != was.parts:
            changed.append(next(iter(now.parts), key[1]))
            changes[key] = (was, now)
    if changed:
        say(
            f"cache {name}: building it changes {', '.join(sorted(changed)[:3])}; what was there before counts, so "
            "that this alone does not build it again"
        )
    return "" if before.path else after.path
