# SPDX-License-Identifier: Apache-2.0
"""Computes a digest of the function that builds an object, or of a dataset, to find out whether code or values differ.

It contains the source text of the function and of the user's own functions and classes that it names, also where these
are parts of values, and of each its constants, defaults, closure values and class attributes, up to 64 MiB. It does not
contain libraries, files or the environment.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from headrace._base import users_code
from headrace._base.attributes import own_attributes
from headrace._base.code import cells
from headrace._base.units import in_units
from headrace._cache import building, contents, fingerprint
from headrace._samples.kept_generators import is_generator

MOST_BYTES = 64 << 20
_DEEPEST = 50
_SILENT_S, _SAY_EACH_S = 2.0, 10.0  # when, and how often, a line says how much of a dataset was read
_MUCH_BYTES = 1 << 30
_UNSET = "a variable that is not set yet"
_LOCKS = (type(threading.Lock()), type(threading.RLock()))  # have no value to compare
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
# Members of a class that say nothing which its text does not.
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, property, functools.cached_property)
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


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
        self._variables: set[tuple[int, str]] = set()  # the global variables that were added
        self._counts: dict[str, int] = {}  # of values by name
        self._met: dict[int, Any] = {}  # the functions and classes that are parts of the value which is added now
        self._alive: list[Any] = []  # so that no id is used twice
        self.seen: dict[str, str] = {}
        self.unknown: list[str] = []  # values of which only the class counts

    def _note(self, name: str, data: bytes) -> None:
        self._put(name, hashlib.blake2b(data, digest_size=8).hexdigest())

    def _put(self, name: str, found: str) -> None:
        """Functions, classes and variables of several modules may have the same name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self.seen[name if count == 1 else f"{name} ({count})"] = found

    def add(self, value: Any, name: str) -> None:
        """Adds a function, a class, or a value that a function uses. Raises TooLarge."""
        if id(value) in self._known and type(value) not in (tuple, frozenset):  # of which Python may make one of two
            # Which of several values an attribute is may be what matters.
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
        elif isinstance(value, (types.FunctionType, fingerprint.REMEMBERING)):
            self._add_function(value, name)
        elif isinstance(value, type):
            self._add_class(value, name)
        elif isinstance(value, types.ModuleType):
            self._note(name, f"module {value.__name__}".encode())
        elif isinstance(value, types.BuiltinFunctionType):
            self._add_builtin(value, name)
        else:
            self._add_value(value, name)

    # ---- code ----

    def _remember(self, value: Any, name: str) -> None:
        self._known[id(value)] = name
        self._alive.append(value)

    def _add_builtin(self, function: Any, name: str) -> None:
        """Adds a function that is not written in Python, such as the method `get` of a dict."""
        owner = function.__self__
        self._note(name, f"{function.__module__}.{function.__qualname__}".encode())
        if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not is_generator(owner):
            self._add_value(owner, f"{name}: self")

    def _add_function(self, function: Any, name: str) -> None:
        self._remember(function, name)
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self.add(wrapped, name)
            name = f"{name}: decorator"
        if isinstance(function, types.FunctionType):
            if wrapped is None or users_code.is_users(function.__code__.co_filename):
                self._note(name, _text_of(function))
                self._add_names(function.__code__, function.__globals__)
            self._add_held(function, name)

    def _add_held(self, function: types.FunctionType, name: str) -> None:
        """Adds the defaults and the closure of a function."""
        if function.__defaults__ or function.__kwdefaults__:
            self._add_value((function.__defaults__, function.__kwdefaults__), f"{name}: defaults")
        for variable, value in cells(function):
            self._add_used(value, f"{name}: {variable}")

    def _add_names(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        for name in _globals_of(code):
            if name in variables:
                self._add_variable(variables, name, name)
                self._add_attributes(variables[name], name, code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_names(constant, variables)

    def _add_variable(self, variables: dict[str, Any], variable: str, name: str) -> None:
        if (id(variables), variable) not in self._variables:
            self._variables.add((id(variables), variable))
            self._add_used(variables[variable], name)

    def _add_attributes(self, module: Any, name: str, code: types.CodeType, within: tuple[Any, ...] = ()) -> None:
        """Adds module.function, for a module of the user, or for one within it."""
        if not isinstance(module, types.ModuleType) or not users_code.is_users(getattr(module, "__file__", None)):
            return
        for attribute in code.co_names:
            if attribute in vars(module):
                self._add_variable(vars(module), attribute, f"{name}.{attribute}")
                value = vars(module)[attribute]
                if not any(value is one for one in (module, *within)):
                    self._add_attributes(value, f"{name}.{attribute}", code, (module, *within))

    def _add_used(self, value: Any, name: str) -> None:
        """Adds a value that code names. Libraries do not count, and neither do locks."""
        if isinstance(value, (types.FunctionType, type)):
            if users_code.is_users(users_code.file_of(value)):
                self.add(value, name)
        elif not isinstance(value, (types.ModuleType, *_LOCKS)):
            self.add(value, name)

    def _add_class(self, cls: type, name: str) -> None:
        self._remember(cls, name)
        self._note(name, _class_text(cls))
        for base in cls.__mro__[1:]:
            if id(base) not in self._known and users_code.is_users(users_code.file_of(base)):
                self.add(base, f"class {base.__qualname__}")
        for attribute, member in list(vars(cls).items()):
            self._add_member(member, attribute, f"{name}.{attribute}")

    def _add_member(self, member: Any, attribute: str, name: str) -> None:
        """Adds what a method refers to, whose text is in that of the class, or the value of an attribute."""
        functions = list(_functions_of(member))
        for function in functions:
            self._remember(function, name)
            self._add_held(function, name)
            if users_code.is_users(function.__code__.co_filename):
                self._add_names(function.__code__, function.__globals__)
        if not functions and not _is_pythons(attribute) and not isinstance(member, _DESCRIPTORS):
            self._add_used(member, name)

    # ---- values ----

    def _add_value(self, value: Any, name: str) -> None:
        if isinstance(value, _PLAIN):
            self._note(name, f"{type(value).__name__} {value!r}".encode(errors="surrogatepass"))
            return
        self._remember(value, name)
        met: dict[int, Any] = {}
        self._met = met
        hashed = hashlib.blake2b(digest_size=8)
        size = contents.size_of(value)
        try:
            if size > self._left:
                raise fingerprint.TooLarge
            self._left -= fingerprint.write(value, hashed.update, self._left, self._code_of, watch=self._watch)
        except fingerprint.TooLarge:
            self._refuse(name, f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}")
            return
        except fingerprint.Unknown:  # only its class counts
            self.unknown.append(name)
            self._note(name, f"an instance of {type(value).__module__}.{type(value).__qualname__}".encode())
        else:
            self._put(name, hashed.hexdigest())
        if users_code.is_users(users_code.file_of(type(value))):
            self.add(type(value), f"class of {name}")
        for one in met.values():
            self.add(one, f"{'class' if isinstance(one, type) else 'function'} {one.__qualname__}")

    def _code_of(self, value: Any) -> bytes | None:
        """Returns the text of a function or class of the user; what it names is added behind the value. None: pickle
        names it."""
        if users_code.is_users(users_code.file_of(value)):
            self._met[id(value)] = value
        elif getattr(value, "__name__", "") != "<lambda>":
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


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def _globals_of(code: types.CodeType) -> list[str]:
    """Returns the global variables that code reads. code.co_names has the names of attributes, too."""
    return list({one.argval: None for one in dis.get_instructions(code) if one.opname in _READS_GLOBAL})


def _functions_of(member: Any) -> Iterator[types.FunctionType]:
    """Yields the functions that a member of a class consists of, also of one with decorators."""
    parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,)
    for part in parts:
        function = getattr(part, "func", part) if isinstance(part, functools.cached_property) else part
        function = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        while isinstance(function, (types.FunctionType, fingerprint.REMEMBERING)):
            if isinstance(function, types.FunctionType):
                yield function
            function = vars(function).get("__wrapped__")


def _is_pythons(attribute: str) -> bool:
    """Returns True for an attribute that Python gives a class."""
    is_special = attribute.startswith("__") and attribute.endswith("__") and attribute != "__wrapped__"
    return is_special or attribute == "_abc_impl"


def _class_text(cls: type) -> bytes:
    """Returns the source text, and that of each method: if a class is defined again with the same name, or typed in,
    Python finds the text of its methods only."""
    try:
        text = inspect.getsource(cls)
    except (OSError, TypeError):
        text = cls.__qualname__
    functions = (function for member in list(vars(cls).values()) for function in _functions_of(member))
    texts = [_text_of(one) for one in functions if users_code.is_users(one.__code__.co_filename)]
    return b"\0".join([text.encode(errors="surrogatepass"), *texts])


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
