# SPDX-License-Identifier: Apache-2.0
"""Lists the attributes that an object holds. Growth, headrace.freeze_attributes and the doctor use it."""

from __future__ import annotations

from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any

from headrace import _core
from headrace._base.lookup import static_dict, static_mro


def own_attributes(value: object) -> Iterator[tuple[str, Any, MemberDescriptorType | None]]:
    """Yields (name, value, slot) of every attribute that an instance holds. `slot` is None if it is in the __dict__.

    It runs no code of the object's class: no properties, no __getattr__, no metaclass.
    """
    for name, held in list((_core.Walker.attributes(value) or {}).items()):
        yield name, held, None
    for cls in static_mro(type(value)):
        for name, slot in list(static_dict(cls).items()):
            if isinstance(slot, MemberDescriptorType):
                try:
                    held = slot.__get__(value)
                except AttributeError:  # the slot is not set
                    continue
                yield name, held, slot
