# SPDX-License-Identifier: Apache-2.0
"""Finds what code uses of the state of its process: the command line, the working directory, and the random number
generators that all code shares. parts.py counts the first two, and names the generators, which are not compared."""

from __future__ import annotations

import glob
import os
import pathlib
import random
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace._base import code, lookup

# Methods of the parsers of argparse, optparse and transformers that read the command line.
_PARSING = frozenset(("parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"))
_HERE = (os.getcwd, os.getcwdb)
# Functions that use the working directory if their path is relative, or is not given.
_OF_PATHS = (os.listdir, os.scandir, os.walk, os.fwalk, os.path.abspath, os.path.realpath, glob.glob, glob.iglob)
_POINTS = ("", ".", "..")
_TORCHS = "bernoulli multinomial normal poisson rand rand_like randint randint_like randn randn_like randperm".split()
_READING = frozenset(("getstate", "get_state"))
_SEEDING = frozenset(("seed", "setstate", "set_state", "manual_seed", "set_rng_state"))
_SEEDING_ALL = frozenset(("seed_everything", "set_seed", "set_determinism", "enable_full_determinism"))
_ALL = frozenset(("random", "numpy.random", "torch"))


class Used(NamedTuple):
    """The parts of the state of its process that code uses. folder: by what it uses the working directory, or "".
    draws, seeds: the modules of which it draws from the generator, and those of which it seeds it."""

    command_line: bool
    folder: str
    draws: frozenset[str]
    seeds: frozenset[str]


def used_by(function: types.CodeType, variables: Mapping[str, Any], closure: Mapping[str, Any]) -> Used:
    """Returns what code uses, and the code within it. variables: its global variables."""
    command_line = not _PARSING.isdisjoint(code.names(function))
    folder, draws, seeds = "", set(), set()
    inner = {**closure, **_imported(function)}
    for one in code.codes(function):
        gives_generator = any(type(it) is tuple and "generator" in it for it in one.co_consts)  # names of arguments
        for access in code.accesses(one):
            space = variables if access.is_global else inner
            if access.variable not in space:
                continue
            value, rest = _follow(space[access.variable], access.attributes)
            command_line = command_line or (value is sys and rest[:1] == ("argv",)) or value is sys.argv
            if not folder and _uses_folder(value, rest, access.called):
                folder = ".".join((access.variable, *access.attributes))
            if not rest:
                seeds |= seeded_by(value)
                draws |= drawn_by(value) - ({"torch"} if gives_generator else set())
    return Used(command_line, folder, frozenset(draws), frozenset(seeds))


def _imported(function: types.CodeType) -> dict[str, Any]:
    """Returns the values of the variables into which code imports something, if it is imported already."""
    found: dict[str, Any] = {}
    for one in (one for inner in code.codes(function) for one in code.imports(inner) if not one.level):
        module = sys.modules.get(one.module)
        for name, variable in one.names if module is not None else ():
            found[variable] = _follow(module, (name,))[0]
        if not one.names:
            top = one.module.partition(".")[0]
            found[one.variable] = sys.modules.get(top) if one.variable == top else module
    return found


def _follow(value: Any, attributes: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Follows attributes of modules. Returns the last value that is found so, and the attributes that are left."""
    for at, name in enumerate(attributes):
        if not isinstance(value, types.ModuleType):
            return value, attributes[at:]
        found = vars(value).get(name, sys.modules.get(f"{value.__name__}.{name}"))
        if found is None:
            return value, attributes[at:]
        value = found
    return value, ()


def _uses_folder(value: Any, rest: tuple[str, ...], called: tuple[Any, ...] | None) -> bool:
    is_path = isinstance(value, type) and issubclass(value, pathlib.PurePath)
    if any(value is one for one in _HERE) or (is_path and rest[:1] == ("cwd",)):
        return True
    if rest or called is None:
        return False
    first = called[0] if called and called[0] is not None else ""
    if is_path or not isinstance(first, (str, bytes)):
        return is_path and first in _POINTS
    return any(value is one for one in _OF_PATHS) and not os.path.isabs(first)


# ---- generators ----


def generator_of(value: Any) -> str:
    """Returns the module to whose generator a value gives access: that module, a method of the generator, or a function
    that draws from it or seeds it. "" for other values."""
    owner, name, module = lookup.attribute(value, "__self__"), _name_of(value), lookup.attribute(value, "__module__")
    numpys = sys.modules.get("numpy.random")
    if value is random or owner is _owner(random.random):
        return "random"
    if numpys is not None and (value is numpys or owner is _owner(numpys.random)):
        return "numpy.random"
    if module == "numpy.random" and name in ("seed", "sample", "ranf"):  # functions that call methods of it
        return "numpy.random"
    is_torchs = (module == "torch" and name in _TORCHS) or (module == "torch.random" and name in _SEEDING)
    return "torch" if is_torchs or (module == "torch.utils.data.dataset" and name == "random_split") else ""


def _owner(method: Any) -> Any:
    return lookup.attribute(method, "__self__", method)


def _name_of(value: Any) -> str:
    name = lookup.attribute(value.__func__ if isinstance(value, types.MethodType) else value, "__name__")
    return name if isinstance(name, str) else ""


def drawn_by(value: Any) -> set[str]:
    """Returns the module from whose generator a function draws, or nothing."""
    is_other = _name_of(value) in _SEEDING | _READING
    return set() if is_other else {generator_of(value)} - {""}


def seeded_by(value: Any) -> set[str]:
    """Returns the modules whose generators a function seeds."""
    name = _name_of(value)
    if name in _SEEDING_ALL and isinstance(value, types.FunctionType):
        return set(_ALL)
    return {generator_of(value)} - {""} if name in _SEEDING else set()
