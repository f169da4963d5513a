# SPDX-License-Identifier: Apache-2.0
"""What a key is made of, for types that have a name in an image: so that it is looked up in the image itself.

Here is each type of which Python finds equal exactly what has the same name and parts (src/store/key.c,
is_like_no_other). The others Python compares itself: a Decimal equals numbers of any type, a time with a time zone
those of other zones, an instance what its class says.
"""

from __future__ import annotations

import datetime
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

from headrace.store.types.tables import TYPES


def _as_stored(cls: type) -> Callable[[Any], Any]:
    name, parts = TYPES[cls]
    return lambda value: (name, parts(value))


def _without_zone(cls: type) -> Callable[[Any], Any]:
    """Two that differ in their fold only are equal."""
    name, parts = TYPES[cls]
    return lambda value: None if value.tzinfo is not None else (name, (*parts(value)[:-1], 0))


def _posix_path(value: pathlib.PurePath) -> Any:
    return ("Path", ("PosixPath", str(value)))


# type -> a function that gives (name, parts), or None: Python must look
PARTS: dict[type, Callable[[Any], Any]] = {
    **{cls: _as_stored(cls) for cls in (datetime.date, datetime.timedelta, uuid.UUID)},
    **{cls: _without_zone(cls) for cls in (datetime.datetime, datetime.time)},
    pathlib.PosixPath: _posix_path,
    pathlib.PurePosixPath: _posix_path,
}
