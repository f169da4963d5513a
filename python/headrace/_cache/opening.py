# SPDX-License-Identifier: Apache-2.0
"""Opens caches, and checks the arguments that all functions of the cache have in common."""

from __future__ import annotations

import os
import re
from typing import Any

from headrace import _core
from headrace._base.units import size_of

KEEPS = {"job": _core.CACHE_KEEP_JOB, "boot": _core.CACHE_KEEP_BOOT, "disk": _core.CACHE_KEEP_DISK}
KEEP_NAMES = {number: name for name, number in KEEPS.items()}
_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_open: dict[tuple[str | None, str | None], _core.Cache] = {}

Root = str | os.PathLike[str] | None


def is_disabled() -> bool:
    return os.environ.get("HEADRACE_DISABLE", "0") not in ("", "0")


def open_cache(root: Root = None) -> _core.Cache:
    """Returns the cache in a folder, or the user's cache on this machine. Raises OSError if the folder cannot be used.

    A cache whose folder was removed is opened again, which makes the folder again.
    """
    path = None if root is None else os.path.abspath(os.fspath(root))
    key = (path, os.environ.get("HEADRACE_CACHE"))
    cache = _open.get(key)
    if cache is None or not os.path.isdir(os.path.join(cache.root, "v1", "locks")):
        cache = _open[key] = _core.Cache(path)
    return cache


def exists(root: Root = None) -> bool:
    """Returns True if the cache that open_cache would open exists."""
    return _core.Cache.exists(None if root is None else os.path.abspath(os.fspath(root)))


def check_name(name: Any) -> str:
    """Returns the name. Raises TypeError or ValueError; the library checks the rest."""
    if not isinstance(name, str):
        raise TypeError(f"headrace.cache: a name is a str, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError(f"headrace.cache: the name {name!r} has a NUL character; remove it")
    return name


def check_version(version: object) -> str:
    """Returns a version, an int or a str, as a str."""
    if not isinstance(version, (int, str)):
        raise TypeError(f"headrace.cache: version is an int or a str, not {type(version).__name__}")
    text = str(version)
    if "\0" in text:
        raise ValueError(f"headrace.cache: the version {text!r} has a NUL character; remove it")
    return text


def check_keep(keep: object) -> int:
    if not isinstance(keep, str) or keep not in KEEPS:
        raise ValueError(f'headrace.cache: keep is "job", "boot" or "disk", not {keep!r}')
    return KEEPS[keep]


def check_dtype(dtype: Any, function: str) -> Any:
    """Returns the numpy.dtype. Raises TypeError with the name of the function of headrace.cache that got it."""
    import numpy as np

    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(
            f"headrace.cache.{function}: dtype is {dtype!r}, which numpy refuses ({error}); give one such as 'float32' "
            "or numpy.int64"
        ) from None


def check_size(size: object, what: str) -> int:
    """Returns a number of bytes: see size_of."""
    return size_of(size, f"headrace.cache: {what}")


def check_seconds(time: object, what: str) -> float:
    """Returns seconds, given as a number or as a text such as "7d". Raises ValueError or TypeError."""
    if isinstance(time, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", time.strip())
        if match is None:
            raise ValueError(f'headrace.cache: {what} is {time!r}; give seconds, or a text such as "7d" or "12h"')
        return float(match[1]) * _TIMES[match[2]]
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(f'headrace.cache: {what} is a number of seconds or a text such as "7d", not {time!r}')
    if not 0 <= time < 1e10:
        raise ValueError(f"headrace.cache: {what} is {time}; give 0 or more seconds")
    return float(time)
