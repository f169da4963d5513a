# SPDX-License-Identifier: Apache-2.0
"""Reads the code of functions: the code objects within one, its closure, and the names that it looks up.

The walks over users' objects use it: of growing memory, random number generators, samplers, repairs, and the digests of
the cache.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

REMEMBERING = type(functools.lru_cache(len))  # what functools.cache and lru_cache make of a function
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_READS = (*_READS_GLOBAL, "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_GETS = ("LOAD_ATTR", "LOAD_METHOD")
_ATTRIBUTES = (*_GETS, "STORE_ATTR", "DELETE_ATTR")
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those within it, of inner functions, classes and comprehensions."""
    yield code
    for part in code.co_consts:
        if type(part) is CodeType:
            yield from codes(part)


def cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value of each variable of the closure that is set."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # the cell is empty
            yield name, cell.cell_contents


def names(code: CodeType) -> list[str]:
    """Returns the names that code, and the code within it, may look up as global variables. Names of attributes are
    among them."""
    return list({name: None for one in codes(code) for name in one.co_names})


def constants(code: CodeType) -> list[Any]:
    """Returns the constants of code and of the code within it."""
    return [constant for one in codes(code) for constant in one.co_consts if type(constant) is not CodeType]


def globals_named(function: FunctionType) -> list[tuple[str, Any]]:
    """Returns the global variables of these names."""
    space = function.__globals__
    return [(name, space[name]) for name in names(function.__code__) if name in space]


# ---- what runs ----


def described(code: CodeType) -> bytes:
    """Returns bytes that differ if code does something else: its instructions, names and constants, without lines and
    files. They are the same in each process."""
    parts = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    table = getattr(code, "co_exceptiontable", b"")
    constants = [_described_constant(one) for one in code.co_consts]
    return _joined(repr((parts, counts)).encode(errors="surrogatepass"), code.co_code, table, *constants)


def _joined(*parts: bytes) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _described_constant(constant: Any) -> bytes:
    if isinstance(constant, CodeType):
        return described(constant)
    if isinstance(constant, frozenset):  # its order is another one in each process
        return b"set" + _joined(*sorted(map(_described_constant, constant)))
    if isinstance(constant, tuple):
        return b"tuple" + _joined(*map(_described_constant, constant))
    return repr(constant).encode(errors="surrogatepass")


class Import(NamedTuple):
    """An import inside a function. names: each name of `from module import name as variable`, with its variable.
    variable: that of `import module as variable`, or ""."""

    level: int
    module: str
    names: tuple[tuple[str, str], ...]
    variable: str


@functools.lru_cache(1024)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")


def globals_read(code: CodeType) -> list[str]:
    """Returns the global variables that code reads, without the code within it. code.co_names has the names of
    attributes, too."""
    return list({one.argval: None for one in _instructions(code) if one.opname in _READS_GLOBAL})


def imports(code: CodeType) -> list[Import]:
    """Returns the imports of code, without the code within it."""
    found, all_ = [], _instructions(code)
    for at, one in enumerate(all_):
        if one.opname == "IMPORT_NAME":
            level, names = all_[at - 2].argval, all_[at - 1].argval or ()
            stores = [it.argval for it in all_[at + 1 :] if it.opname.startswith("STORE_")]
            variables = [str(it[0] if isinstance(it, tuple) else it) for it in stores]
            pairs = tuple(zip(names, variables, strict=False))
            found.append(Import(level if isinstance(level, int) else 0, one.argval, pairs, "".join(variables[:1])))
    return found


def escaping(code: CodeType) -> set[str]:
    """Returns the variables that code, or the code within it, does more with than to read an attribute of them."""
    found: set[str] = set()
    for one, after in _read(code):
        variables = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        found.update(variables[:-1] if after.opname in _ATTRIBUTES else variables)
    return found


def attributes_read(code: CodeType) -> set[tuple[str, str]]:
    """Returns the variables of which code, or the code within it, reads an attribute, each with the attribute."""
    return {
        (one.argval[-1] if isinstance(one.argval, tuple) else one.argval, after.argval)
        for one, after in _read(code)
        if after.opname in _ATTRIBUTES
    }


def _read(code: CodeType) -> Iterator[tuple[dis.Instruction, dis.Instruction]]:
    """Yields the instructions that read variables, each with the next one."""
    for inner in codes(code):
        for one, after in itertools.pairwise(_instructions(inner)):
            if one.opname.startswith(_READS) or "_LOAD_FAST" in one.opname:
                yield one, after


class Access(NamedTuple):
    """An access to a variable, and to attributes of it. called: the first argument if the result is called with a
    constant, () if it is called without arguments, otherwise None."""

    variable: str
    is_global: bool
    attributes: tuple[str, ...]
    called: tuple[Any, ...] | None


def accesses(code: CodeType) -> Iterator[Access]:
    """Yields the accesses to variables in code, without the code within it."""
    all_ = [one for one in _instructions(code) if one.opname not in ("PUSH_NULL", "PRECALL")]
    for at, one in enumerate(all_):
        if not (one.opname.startswith(_READS) or "_LOAD_FAST" in one.opname):
            continue
        variable = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
        end = at + 1
        while all_[end].opname in _GETS:
            end += 1
        attributes, after = tuple(it.argval for it in all_[at + 1 : end]), all_[end]
        called: tuple[Any, ...] | None = None
        if after.opname.startswith("LOAD_CONST"):
            called = (after.argval,)
        elif after.opname in _CALLS and after.arg == 0:
            called = ()
        yield Access(variable, one.opname in _READS_GLOBAL, attributes, called)


# ---- classes ----


def functions_of(member: Any) -> Iterator[FunctionType]:
    """Yields the functions that a member of a class consists of, also of one with decorators."""
    parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,)
    for part in parts:
        function = getattr(part, "func", part) if isinstance(part, functools.cached_property) else part
        function = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        while isinstance(function, (FunctionType, REMEMBERING)):
            if isinstance(function, FunctionType):
                yield function
            function = vars(function).get("__wrapped__")


def described_class(cls: type, is_users: Callable[[str], bool]) -> bytes:
    """Returns the name and annotations of a class, and the code of its methods. What they refer to, and the values of
    attributes, are added on their own."""
    parts = [cls.__qualname__.encode(), _ADDRESS.sub("", repr(vars(cls).get("__annotations__", {}))).encode()]
    for name, member in sorted(vars(cls).items()):
        functions = [one for one in functions_of(member) if is_users(one.__code__.co_filename)]
        if functions:
            parts += [
                name.encode(),
                type(member).__name__.encode(),
                *(described(one.__code__) for one in functions),
            ]
    return b"\0".join(parts)
