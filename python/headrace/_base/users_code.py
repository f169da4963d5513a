# SPDX-License-Identifier: Apache-2.0
"""Tells code of the user from that of Python and of installed packages. The digests of the cache, and the search for
random number generators, follow only the former. A package that pip has installed from a folder of this machine is the
user's own, because its version stays while its code changes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import site
import sys
import sysconfig
import types
from typing import Any

from headrace._base import code, lookup


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    known = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], site.getusersitepackages()]
    known.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(os.path.join(os.path.realpath(path), "") for path in known)


@functools.cache
def _is_installed(folder: str) -> bool:
    """Returns True for a folder of a package that pip has installed into another place, which is on sys.path."""
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


@functools.cache
def _local_packages(folder: str) -> frozenset[str]:
    """Returns the packages and modules in a folder of installed packages that come from a folder of this machine."""
    found: set[str] = set()
    for name in _infos(folder):
        try:
            with open(os.path.join(folder, name, "direct_url.json"), encoding="utf-8") as file:
                if "dir_info" not in json.load(file):
                    continue
            with open(os.path.join(folder, name, "RECORD"), encoding="utf-8") as file:
                found.update(line.partition(",")[0].partition("/")[0].partition(".")[0] for line in file)
        except (OSError, ValueError):
            continue
    return frozenset(found)


def _infos(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".dist-info"))
    except OSError:
        return []


def is_users(file: str | None) -> bool:
    """Returns True for a file that is not of Python, of an installed package, or of headrace itself."""
    if not file or file.startswith("<frozen"):
        return False
    path = os.path.realpath(file)
    folder = max((one for one in _library_folders() if path.startswith(one)), key=len, default="")
    if folder == _library_folders()[-1]:
        return False
    if folder:
        return path[len(folder) :].partition("/")[0].partition(".")[0] in _local_packages(folder)
    return not _is_installed(os.path.dirname(path))


# ---- code behind that of libraries ----


def is_followed(value: Any) -> bool:
    """Returns True for functions, classes and modules of the user, and for what a library has made of them."""
    if isinstance(value, types.ModuleType):
        return is_users_module(value)
    return getattr(value, "__name__", "") == "<lambda>" or leads_to_users(value, set())


def leads_to_users(value: Any, met: set[int], depth: int = 8) -> bool:
    """Returns True for code of the user, and for a function of a library with such code behind it: in what it wraps, in
    its closure, or in containers in these. met: the ids of what was looked at."""
    if id(value) in met or isinstance(value, (str, bytes, int, float, complex, type(None))):
        return False
    met.add(id(value))
    parts: list[Any]
    if isinstance(value, (types.FunctionType, code.REMEMBERING)):
        if isinstance(value, types.FunctionType) and is_users(value.__code__.co_filename):
            return True
        parts = [vars(value).get("__wrapped__")]
        if isinstance(value, types.FunctionType):
            parts += [part for _, part in code.cells(value)]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif type(value) in (list, tuple, dict, types.MappingProxyType):
        parts = list(itertools.islice(value.values() if hasattr(value, "values") else value, 100))
    else:
        return is_users(file_of(value if isinstance(value, type) else type(value)))
    return depth > 0 and any(leads_to_users(part, met, depth - 1) for part in parts)


# ---- modules ----


def is_users_module(module: types.ModuleType) -> bool:
    """Returns True for a module of the user, also for a package that is a folder without __init__.py."""
    return is_users(lookup.attribute(module, "__file__") or next(iter(lookup.attribute(module, "__path__", ())), None))


def file_of_module(name: str) -> str | None:
    """Returns the file of a module, or the folder of a package without one, whether it is imported or not. None: there
    is no such module, or it has none."""
    module = sys.modules.get(name)
    try:
        found = lookup.attribute(module, "__spec__") or importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        found = None
    file = lookup.attribute(module, "__file__") or lookup.attribute(found, "origin")
    places = lookup.attribute(found, "submodule_search_locations")
    return file if file else next(iter(places), None) if places else None


@functools.cache
def version_of(package: str) -> str:
    """Returns the version of an installed package, or of Python for a module of the standard library; "" if it is not
    known."""
    if package in sys.stdlib_module_names:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    file = file_of_module(package)
    if file is None:
        return ""
    folder = os.path.dirname(file)
    while os.path.basename(folder).partition(".")[0] == package:
        folder = os.path.dirname(folder)
    found = [name.removesuffix(".dist-info").rpartition("-") for name in _infos(folder)]
    same = [version for name, _, version in found if name.lower().replace("-", "_") == package.lower()]
    return ", ".join(same or _versions_with(folder, package))


def _versions_with(folder: str, package: str) -> list[str]:
    """Returns the versions of the distributions that have files of a package."""
    found = []
    for name in _infos(folder):
        with contextlib.suppress(OSError), open(os.path.join(folder, name, "RECORD"), "rb") as file:
            if any(line.startswith((f"{package}/".encode(), f"{package}.".encode())) for line in file):
                found.append(name.removesuffix(".dist-info"))
    return found


def file_of(value: Any) -> str | None:
    """Returns the file that a function or a class, or the class of an instance, was written in."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    name = getattr(value, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file or _place_of(value if isinstance(value, type) else type(value), name)


def _place_of(cls: type, module: str) -> str | None:
    """Returns where a class comes from whose module is no file, such as that of a notebook: where its methods do."""
    members = list(lookup.static_dict(cls).values())
    files = [one.__code__.co_filename for one in members if isinstance(one, types.FunctionType)]
    return files[0] if files else "<typed in>" if module == "__main__" else None
