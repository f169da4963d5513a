# SPDX-License-Identifier: Apache-2.0
"""Finds the object that a user names on the command line: module:name, script.py:name, or a file with a pickle."""

from __future__ import annotations

import difflib
import os
import pickle
import sys
import types
from typing import Any

from headrace._commands.common import Failed, reports_failure


def load(source: str) -> Any:
    """Returns the object that the user names. Afterwards, modules in the current directory and in the script's can be
    imported. Raises Failed."""
    sys.argv[:] = [source]  # code that parses arguments when it is imported should not get ours
    sys.path.insert(0, "")  # the current directory
    if os.path.isfile(source) and not source.endswith(".py"):
        return _unpickle(source)
    place, _, name = source.rpartition(":")
    if not (place and name):
        raise Failed(
            f"{source} is neither a file with a pickled dataset nor module:name nor path/script.py:name"
            + (f"; which of its names is the dataset? {source}:NAME" if source.endswith(".py") else "")
        )
    with reports_failure(f"{place} cannot be imported"):
        module = _run_script(place) if place.endswith(".py") else _import(place)
    with reports_failure(f"{source} cannot be looked up"):
        return _look_up(module, name)


def _unpickle(path: str) -> Any:
    with reports_failure(
        f"{path} cannot be unpickled; write it with pickle.dump(dataset, file), and define its classes in modules that "
        "can be imported from here (not in a script: for that, replay path/script.py:name)"
    ):
        with open(path, "rb") as file:
            return pickle.load(file)


def _import(name: str) -> types.ModuleType:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # the missing module is another one, which this one imports
            raise
        raise Failed(
            f"{error}; looked in the current directory and on the path of {sys.executable}. SOURCE should be "
            "module:name, path/script.py:name, or a file with a pickled dataset"
        ) from None
    return sys.modules[name]


def _run_script(path: str) -> types.ModuleType:
    """Runs a script as spawn's workers would, without its main guard. It becomes the main module, so that its classes
    can be pickled."""
    if not os.path.isfile(path):
        raise Failed(f"there is no script {path}")
    module = types.ModuleType("__mp_main__")
    module.__file__ = os.path.abspath(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # of a link, Python takes the target's directory too
    with open(path, "rb") as file:
        code = compile(file.read(), module.__file__, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _look_up(module: types.ModuleType, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            close = difflib.get_close_matches(part, dir(value), 1)
            where = getattr(module, "__file__", None) or module.__name__
            raise Failed(f"{where} has no {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        value = getattr(value, part)
    return value
