# SPDX-License-Identifier: Apache-2.0
"""headrace.cache.function: a decorator; the result of a function is built once per machine for each of its
arguments."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from headrace._cache import fingerprint

Function = TypeVar("Function", bound=Callable[..., Any])

_READABLE = re.compile(r"[A-Za-z0-9_=,.' +-]{0,80}")
_PLAIN = (type(None), bool, int, float, str)


def name_of_call(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns the name of the object for a call: readable if the arguments are short numbers and texts, otherwise with
    a digest of them. Raises TypeError for arguments that cannot be pickled."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    items = list(bound.arguments.items())
    if not items:
        return name
    text = ", ".join(f"{key}={value!r}" for key, value in items if isinstance(value, _PLAIN))
    if all(isinstance(value, _PLAIN) for _, value in items) and _READABLE.fullmatch(text):
        return f"{name}({text})"
    try:
        data = fingerprint.pickled(items)
    except Exception as error:
        raise TypeError(
            f"headrace.cache.function: the arguments of {name} are part of its name in the cache, but they cannot be "
            f"pickled ({error}); give paths, numbers or arrays instead"
        ) from error
    return f"{name}({hashlib.blake2b(data, digest_size=8).hexdigest()})"


def decorate(call: Callable[..., Any], name: Any, version: object, options: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns the decorator. `call` is NamedCache._obtain; the values of arguments are part of the name, and their code
    is part of the stamp."""
    if not isinstance(name, str):
        raise TypeError(
            'headrace.cache.function needs a name: write @headrace.cache.function("features") above the function'
        )

    def decorator(function: Function) -> Function:
        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> Any:
            own_name = name_of_call(name, function, args, kwargs)
            build = functools.partial(function, *args, **kwargs) if args or kwargs else function
            return call(own_name, build, function, [args, kwargs], version=version, **options)

        return cached  # type: ignore[return-value]

    return decorator
