# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a module was edited after this process imported it. A process that is started by spawn or a fork
server imports the edited file, so the samples that it makes are not those of the name that this process computed."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any

from headrace._base import code, lookup


def _start_of_process() -> float:
    """Returns when this process was started, in seconds since 1970; 0 if that is not known."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK") - 1
    except (OSError, ValueError, IndexError):
        return 0.0


def _functions_in(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yields the functions of a module that are in its file, and those of its classes."""
    for value in list(vars(module).values()):
        members: list[Any] = list(vars(value).values()) if isinstance(value, type) else [value]
        for function in (one for member in members for one in code.functions_of(member)):
            if function.__code__.co_filename == lookup.attribute(module, "__file__"):
                yield function


def _is_edited(module: types.ModuleType, file: str) -> bool:
    with open(file, "rb") as source:
        now = compile(source.read(), file, "exec", dont_inherit=True)
    known = {code.described(one) for one in code.codes(now)}
    return any(code.described(function.__code__) not in known for function in _functions_in(module))


def edited_file(modules: Iterable[str]) -> str | None:
    """Returns the file of the first of these modules that has other functions now than this process."""
    start = _start_of_process()
    for name in modules:
        module = sys.modules.get(name)
        file = lookup.attribute(module, "__file__")
        try:
            if isinstance(module, types.ModuleType) and file and os.stat(file).st_mtime >= start:
                if _is_edited(module, file):
                    return str(file)
        except (OSError, SyntaxError, ValueError):  # it is gone, or is being edited
            return str(file)
    return None
