# SPDX-License-Identifier: Apache-2.0
"""Says why a value cannot be frozen, and what to do instead."""

from __future__ import annotations

import copyreg
import sys
import types
from typing import Any

from headrace import _core
from headrace.frozen.types import classes, names

_NO_DATA = {
    "lock": "a lock belongs to one process",
    "RLock": "a lock belongs to one process",
    "generator": "a generator is code that is partly executed",
    "module": "a module is imported, not stored",
    "TextIOWrapper": "an open file belongs to one process",
    "BufferedReader": "an open file belongs to one process",
}


def of_class(cls: type) -> str | None:
    """Returns why no instance of a well-known class can be frozen, or None."""
    if cls.__module__ == "torch" and cls.__name__ == "Tensor":  # plain tensors are frozen as arrays
        why = "only plain tensors on the CPU that need no gradient and have no attributes of yours can be"
        return f"{why}; use .detach().cpu()"
    if cls.__module__ in ("builtins", "_thread", "_io"):
        return _NO_DATA.get(cls.__name__)
    return None


def of_value(value: Any) -> str:
    """Returns why a value cannot be frozen although other instances of its class can."""
    cls = type(value)
    if issubclass(cls, names.BY_NAME):
        return "it cannot be imported by its name; define it at its module's top"
    if cls.__name__ == "ndarray" and value.dtype.kind == "T":
        return "numpy's StringDType keeps texts outside of the array; hold it as .tolist(), or as .astype('U')"
    slots = classes.slots_of(cls)
    attributes = _core.Walker.attributes(value) or {}
    if _is_plain(cls) and len(attributes) + len(slots) > _core.FROZEN_MAX_FIELDS:
        return (
            f"it has {len(attributes) + len(slots):,} attributes, and the maximum is {_core.FROZEN_MAX_FIELDS:,}; "
            "hold them in a dict that is one attribute"
        )
    return f"this instance has something that {cls.__name__} does not define, such as an attribute"


def _is_plain(cls: type) -> bool:
    is_object = classes.is_made_by_statement(cls) and not issubclass(cls, tuple)
    return is_object and classes.classify_object(cls)[0] == "object"


def may_pickle(value: Any) -> bool:
    """Returns True if a pickle of the value may be possible. It does not try if that would run hooks of the user's
    class, or copy a whole array (perhaps a memmap)."""
    cls = type(value)
    if cls in copyreg.dispatch_table:
        return True
    if issubclass(cls, names.BY_NAME):
        return False
    own = [name for name in classes.REDUCERS if isinstance(getattr(cls, name, None), types.FunctionType)]
    if "__reduce__" in own or "__reduce_ex__" in own:
        return True
    if classes.is_made_by_statement(cls) and names.name_of(cls) is None:
        return False
    numpy: Any = sys.modules.get("numpy")
    if own or (numpy is not None and issubclass(cls, numpy.ndarray)):
        return True
    try:
        return bool(value.__reduce_ex__(2))
    except Exception:
        return False
