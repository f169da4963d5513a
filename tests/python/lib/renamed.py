# SPDX-License-Identifier: Apache-2.0
"""Makes the imported torch one that lacks a private name, as if a new version had renamed it.

Functions of torch that use the name use the new one, so that torch works as before. Names of C have no new name. Each
case runs in a child of this process, which must not have imported headrace.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MODULES = (
    "torch.utils.data",
    "torch._utils",
    "torch.storage",
    "torch.nn.modules",
    "torch.autograd.profiler",
    "torch.multiprocessing",
    "torch.utils._pytree",
    "torch.distributed.distributed_c10d",
)


def _is(value: Any, *kinds: type) -> bool:
    """Returns isinstance by the type alone: deprecated objects of torch warn when they are asked for their class."""
    return issubclass(type(value), kinds)


def _classes(module: types.ModuleType) -> list[type]:
    return [one for one in vars(module).values() if _is(one, type) and one.__module__ == module.__name__]


def _functions(owner: Any) -> Iterator[types.FunctionType]:
    """Yields the functions of a module, and of its classes, or of a class."""
    for one in list(vars(owner).values()):
        parts = [one.__func__] if _is(one, staticmethod, classmethod) else [one]
        parts = [one.fget, one.fset] if _is(one, property) else parts
        yield from (part for part in parts if _is(part, types.FunctionType))
    if _is(owner, types.ModuleType):
        for kind in _classes(owner):
            yield from _functions(kind)


def _with_name(code: types.CodeType, old: str, new: str) -> types.CodeType:
    names = tuple(new if name == old else name for name in code.co_names)
    consts = tuple(_constant(one, old, new) for one in code.co_consts)
    return code.replace(co_names=names, co_consts=consts)


def _constant(value: Any, old: str, new: str) -> Any:
    if isinstance(value, types.CodeType):
        return _with_name(value, old, new)
    return new if value == old and old.startswith("_") else value  # torch.nn.Module has names of attributes as strings


def _move(owner: Any, old: str, new: str) -> None:
    """Gives what a module or class has under a name another name."""
    if old not in vars(owner):
        return
    value = vars(owner)[old]
    try:
        setattr(owner, new, value)
        delattr(owner, old)
    except TypeError:  # a class of C that cannot be changed
        names = gc.get_referents(vars(owner))[0]
        names[new] = names.pop(old)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def _places(modules: list[types.ModuleType]) -> Iterator[Any]:
    for module in modules:
        yield module
        yield from _classes(module)


def rename(path: str) -> None:
    """Takes a name away: torch.x.Class.attribute, or torch.x.function."""
    owner_path, _, old = path.rpartition(".")
    new = f"{old}_renamed"
    owner: Any = sys.modules["torch"]
    for name in owner_path.split(".")[1:]:
        owner = getattr(owner, name)
    # These are names of modules too.
    names = (owner.__name__,) if old in ("collate", "pin_memory") else MODULES
    modules = [one for name, one in sys.modules.items() if name.startswith(names) and type(one) is types.ModuleType]
    for place in [*getattr(owner, "__mro__", [owner]), *_places(modules), sys.modules["torch._C"]]:
        _move(place, old, new)
    for module in modules:
        for function in _functions(module):
            function.__code__ = _with_name(function.__code__, old, new)


def run_each(paths: Iterable[str], case: Callable[[], Any]) -> dict[str, Any]:
    """Calls a function in a child of this process for each name, in which torch lacks that name; "": none. Returns the
    results, or the text of the exception."""
    return {path: _run(path, case) for path in paths}


def _run(path: str, case: Callable[[], Any]) -> Any:
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        try:
            if path:
                rename(path)
            found = case()
        except BaseException:
            found = traceback.format_exc()
        with open(write, "w") as file:
            json.dump(found, file)
        sys.stderr.flush()
        os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.wait()
    return json.loads(text) if text else "the process has died"
