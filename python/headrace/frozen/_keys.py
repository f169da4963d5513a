# SPDX-License-Identifier: Apache-2.0
"""Gives the stored form of keys such as dates, so that the extension can look them up in the frozen data itself.

This works for types whose values are equal only if their names and parts are equal (src/frozen/key.c,
is_like_no_other). Python compares keys of other types itself: a Decimal can equal numbers of any type, a time with a
time zone can equal times of other zones, and an instance what its class decides.
"""

from __future__ import annotations

import datetime
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

from headrace.frozen.types.tables import TYPES


def _as_stored(cls: type) -> Callable[[Any], Any]:
    name, parts = TYPES[cls]
    return lambda value: (name, parts(value))


def _without_zone(cls: type) -> Callable[[Any], Any]:
    """Returns the parts without the fold, because values that differ only in their fold are equal."""
    name, parts = TYPES[cls]
    return lambda value: None if value.tzinfo is not None else (name, (*parts(value)[:-1], 0))


def _posix_path(value: pathlib.PurePath) -> Any:
    return ("Path", ("PosixPath", str(value)))


# type -> a function that returns (name, parts), or None if Python must compare the key
PARTS: dict[type, Callable[[Any], Any]] = {
    **{cls: _as_stored(cls) for cls in (datetime.date, datetime.timedelta, uuid.UUID)},
    **{cls: _without_zone(cls) for cls in (datetime.datetime, datetime.time)},
    pathlib.PosixPath: _posix_path,
    pathlib.PurePosixPath: _posix_path,
}
