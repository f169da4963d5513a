# SPDX-License-Identifier: Apache-2.0
"""Computes a digest of the function that builds an object, to find out whether its code or values have changed.

It contains the source text of the function and of the user's own functions and classes that it names, its constants,
defaults and closure values, up to 64 MiB. It does not contain libraries, files or the environment.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from headrace._cache import building, fingerprint
from headrace._errors.units import in_units
from headrace._inspect import users_code
from headrace._inspect.attributes import own_attributes

MOST_BYTES = 64 << 20
_DEEPEST = 50
_SILENT_S, _SAY_EACH_S = 2.0, 10.0  # when, and how often, a line says how much of a dataset was read
_MUCH_BYTES = 1 << 30
_UNSET = "a variable that is not set yet"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


class TooLarge(Exception):
    """Raised if a value that belongs to the function is too large for a digest. Its text is the value's name."""


class Digest:
    """Collects what belongs to a function. `seen` lists it by name, with a short digest of each part, so that a later
    one can say what changed."""

    def __init__(self, skips_large: bool, watch: Callable[[int], None] | None = None) -> None:
        self._skips_large = skips_large
        self._watch = watch  # is told how many bytes were read; then there is no limit
        self._left = MOST_BYTES if watch is None else sys.maxsize
        self._depth = 0  # of names that the code of names names
        self._known: dict[int, str] = {}  # the name under which a value was added first
        self._alive: list[Any] = []  # so that no id is used twice
        self.seen: dict[str, str] = {}
        self.unknown: list[str] = []  # values of which only the class counts

    def _note(self, name: str, data: bytes) -> None:
        self.seen[name] = hashlib.blake2b(data, digest_size=8).hexdigest()

    def add(self, value: Any, name: str) -> None:
        """Adds a function, a class, or a value that a function uses. Raises TooLarge."""
        if id(value) in self._known:  # which of several values an attribute is may be what matters
            self._note(name, f"the same as {self._known[id(value)]}".encode())
            return
        if self._depth == _DEEPEST:
            return
        self._depth += 1
        try:
            self._add(value, name)
        finally:
            self._depth -= 1

    def _add(self, value: Any, name: str) -> None:
        if isinstance(value, functools.partial):
            self.add(value.func, name)
            self._add_value((value.args, sorted(value.keywords.items())), f"{name}: arguments of partial")
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, name)
            self._add_value(value.__self__, f"{name}: self")
        elif isinstance(value, types.FunctionType):
            self._add_function(getattr(value, "__wrapped__", value), name)
        elif isinstance(value, type):
            self._add_class(value, name)
        elif isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            return
        else:
            self._add_value(value, name)

    # ---- code ----

    def _remember(self, value: Any, name: str) -> None:
        self._known[id(value)] = name
        self._alive.append(value)

    def _add_function(self, function: Any, name: str) -> None:
        self._remember(function, name)
        if not isinstance(function, types.FunctionType):
            self.add(function, name)
            return
        code = function.__code__
        self._note(name, _text_of(function))
        if function.__defaults__ or function.__kwdefaults__:
            self._add_value((function.__defaults__, function.__kwdefaults__), f"{name}: defaults")
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            self._add_cell(cell, f"{name}: {variable}")
        self._add_names(code, function.__globals__)

    def _add_cell(self, cell: Any, name: str) -> None:
        value = _contents(cell)
        if value is not _UNSET:
            self._add_used(value, name)

    def _add_names(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        for name in code.co_names:
            if name in variables:
                self._add_used(variables[name], name)
                self._add_attributes(variables[name], name, code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_names(constant, variables)

    def _add_attributes(self, module: Any, name: str, code: types.CodeType) -> None:
        """Adds module.function, for a module of the user."""
        if not isinstance(module, types.ModuleType) or not users_code.is_users(getattr(module, "__file__", None)):
            return
        for attribute in code.co_names:
            if attribute in vars(module):
                self._add_used(vars(module)[attribute], f"{name}.{attribute}")

    def _add_used(self, value: Any, name: str) -> None:
        """Adds a value that code names. One that cannot be compared, such as a lock, does not count as unknown."""
        if id(value) in self._known:
            return
        unknown = len(self.unknown)
        if isinstance(value, (types.FunctionType, type)):
            if users_code.is_users(users_code.file_of(value)):
                self.add(value, name)
        elif not isinstance(value, types.ModuleType):
            self.add(value, name)
        del self.unknown[unknown:]

    def _add_class(self, cls: type, name: str) -> None:
        self._remember(cls, name)
        self._note(name, _class_text(cls))
        for base in cls.__mro__[1:]:
            if id(base) not in self._known and users_code.is_users(users_code.file_of(base)):
                self.add(base, f"class {base.__qualname__}")
        for attribute, member in list(vars(cls).items()):
            function = getattr(member, "__func__", member)
            if isinstance(function, types.FunctionType):
                self._remember(function, f"{name}.{attribute}")
                self._add_names(function.__code__, function.__globals__)
            elif attribute == "__wrapped__":
                self._add_used(function, f"{name}.{attribute}")

    # ---- values ----

    def _add_value(self, value: Any, name: str) -> None:
        if isinstance(value, _PLAIN):
            self._note(name, f"{type(value).__name__} {value!r}".encode(errors="surrogatepass"))
            return
        self._remember(value, name)
        hashed = hashlib.blake2b(digest_size=8)
        size = _bytes_of(value)
        try:
            if isinstance(size, int) and size > self._left:
                raise fingerprint.TooLarge
            self._left -= fingerprint.write(value, hashed.update, self._left, self._code_of, watch=self._watch)
        except fingerprint.TooLarge:
            self._refuse(name, f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}")
            return
        except fingerprint.Unknown:  # only its class counts
            self.unknown.append(name)
            self._note(name, f"an instance of {type(value).__module__}.{type(value).__qualname__}".encode())
        else:
            self.seen[name] = hashed.hexdigest()
        if users_code.is_users(users_code.file_of(type(value))):
            self.add(type(value), f"class of {name}")

    def _code_of(self, value: Any) -> bytes | None:
        """Returns the text of a function or class of the user, not of what these name. None: pickle names it."""
        if not users_code.is_users(users_code.file_of(value)) and getattr(value, "__name__", "") != "<lambda>":
            return None
        if isinstance(value, type):
            return _class_text(value)
        closure = [_contents(cell) for cell in value.__closure__ or ()]
        values = fingerprint.fingerprint((value.__defaults__, value.__kwdefaults__, closure), self._code_of)
        return b"\0".join([value.__qualname__.encode(), _text_of(value), values])

    def _refuse(self, name: str, description: str = "") -> None:
        if not self._skips_large:
            raise TooLarge(name)
        self._note(name, f"too large {description}".encode())


def _bytes_of(value: Any) -> Any:
    try:
        return value.nbytes if hasattr(type(value), "nbytes") else 0
    except Exception:  # a sparse tensor has no such number
        return 0


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def _class_text(cls: type) -> bytes:
    try:
        return inspect.getsource(cls).encode(errors="surrogatepass")
    except (OSError, TypeError):
        return cls.__qualname__.encode()


def _text_of(function: types.FunctionType) -> bytes:
    """Returns the source text; of a lambda also the code, because a line may have several; only the code if there is no
    text, because it was typed in or made by exec."""
    try:
        text = inspect.getsource(function).encode(errors="surrogatepass")
    except (OSError, TypeError):
        return _code_bytes(function.__code__)
    return text + _code_bytes(function.__code__) if function.__name__ == "<lambda>" else text


def _code_bytes(code: types.CodeType) -> bytes:
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *map(_constant_bytes, code.co_consts)])


def _constant_bytes(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return _code_bytes(constant)
    if isinstance(constant, frozenset):  # its order is another one in each process
        return b"set" + b"\0".join(sorted(map(_constant_bytes, constant)))
    if isinstance(constant, tuple):
        return b"tuple" + b"\0".join(map(_constant_bytes, constant))
    return repr(constant).encode()


def seen_by(function: Any, has_version: bool) -> dict[str, str]:
    """Returns the parts that belong to a function, each with a short digest. Raises ValueError if a value is too large
    and the user has not given a version."""
    digest = Digest(has_version)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    try:
        digest.add(function, name)
    except TooLarge as error:
        raise ValueError(
            f"headrace.cache: {error} is larger than {MOST_BYTES >> 20} MiB, too large to see whether it changes; give "
            "version=, and another one whenever it changes"
        ) from None
    return digest.seen


class _Reading:
    """Says how far it is, if reading the values of a dataset takes long."""

    def __init__(self, name: str) -> None:
        self._name, self._bytes, self._next = name, 0, time.monotonic() + _SILENT_S

    def __call__(self, count: int) -> None:
        self._bytes += count
        if self._bytes > _MUCH_BYTES and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_EACH_S
            building.say(
                f"cache: reading the attributes of {self._name}, to see whether another job has its samples: "
                f"{in_units(self._bytes)} so far"
            )


def seen_in(value: Any) -> tuple[dict[str, str], list[str]]:
    """Returns the parts of a dataset: its class, its items if it is a list or a dict, and each of its attributes, of
    any size. And the names of attributes that cannot be compared."""
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
    return digest.seen, digest.unknown
