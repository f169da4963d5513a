# SPDX-License-Identifier: Apache-2.0
"""repair="auto": sends to workers objects that pickle refuses, if it is known how to make new ones there.

Each Finding.repair (known_classes.py, reasons.py) promises one of the repairs in this file.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import logging
import marshal
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from typing import Any

from headrace._base.code import globals_named
from headrace._pickles import main_script, reasons
from headrace._pickles.reports import Finding, Report

Reduction = tuple[Any, ...]
_NOTHING: dict[Any, Any] = {}
_VIEWS = (type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))


# ---- functions by value ----


def is_lost(function: types.FunctionType) -> bool:
    """Returns True if a worker will not find the function by its name."""
    if reasons.found_under(function.__module__, function.__qualname__) is not function:
        return True
    return reasons.is_mains(function) and reasons.of_main(function) is not None


def _lost_globals(function: types.FunctionType) -> dict[str, Any]:
    """Returns the globals of the function that will be missing in a worker's main module."""
    if not reasons.is_mains(function):
        return {}
    path = main_script.path_of_main()
    own = globals_named(function)
    return {name: value for name, value in own if not path or main_script.is_guarded(path, name)}


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """Returns the value of a cell in a tuple; () if it is not set yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _reduce_function(function: types.FunctionType) -> Reduction:
    cells = function.__closure__ or ()
    how = (marshal.dumps(function.__code__), function.__module__, function.__name__, function.__qualname__, len(cells))
    state = (
        function.__defaults__,
        function.__kwdefaults__,
        dict(vars(function)),
        [_contents(cell) for cell in cells],
        _lost_globals(function),
    )
    return _make_function, how, state, None, None, _fill_function  # filled later: it may refer to itself


def _make_function(code: bytes, module: str, name: str, qualified: str, cells: int) -> types.FunctionType:
    try:
        space = vars(importlib.import_module(module))
    except (ImportError, ValueError):
        space = {"__builtins__": __builtins__, "__name__": module}
    closure = tuple(types.CellType() for _ in range(cells))
    made = types.FunctionType(marshal.loads(code), space, name, None, closure)
    made.__qualname__ = qualified
    made.__module__ = module
    return made


def _fill_function(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    function.__defaults__, function.__kwdefaults__, attributes, contents, lost = state
    vars(function).update(attributes)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]
    for name, value in lost.items():
        function.__globals__.setdefault(name, value)


# ---- classes by value ----


def _is_lost_class(cls: type) -> bool:
    """Returns True for a class of a main module that is not a file, if cloudpickle can send it."""
    return reasons.is_mains(cls) and not main_script.path_of_main() and reasons.can_send_classes()


def _reduce_class(cls: type) -> Reduction:
    return _load_class, (importlib.import_module("cloudpickle").dumps(cls), cls.__qualname__)


def _load_class(data: bytes, name: str) -> Any:
    """Loads a class, and puts it into the main module with the globals of its methods, so that instances of these
    classes can be sent back in a batch."""
    cls = importlib.import_module("cloudpickle").loads(data)
    main = vars(sys.modules["__main__"])
    for method in vars(cls).values():
        for known, value in method.__globals__.items() if isinstance(method, types.FunctionType) else ():
            main.setdefault(known, value)
    if "." not in name:
        main.setdefault(name, cls)
    return cls


# ---- files ----


def _reopen(path: str, mode: str, position: int, options: dict[str, Any]) -> Any:
    file = open(path, mode, **options)  # noqa: SIM115
    file.seek(position)
    return file


def _standard(name: str) -> Any:
    return getattr(sys, name)


def _reduce_file(file: Any) -> Any:
    for name in reasons.STREAMS:
        if file is getattr(sys, name):
            return _standard, (name,)
    if not reasons.is_read_only(file) or not isinstance(file.name, str):
        return NotImplemented
    path = os.path.abspath(file.name)
    if isinstance(file, io.TextIOWrapper):
        options = {"encoding": file.encoding, "errors": file.errors}
        return _reopen, (path, "r", file.tell(), options)
    return _reopen, (path, "rb", file.tell(), {"buffering": 0} if isinstance(file, io.FileIO) else {})


# ---- the rest ----


def _reduce_handler(handler: logging.Handler) -> Reduction:
    state = dict(vars(handler))
    if isinstance(handler, logging.FileHandler):
        state.update(stream=None, mode="a")  # the first message opens it again; what is already written stays
    return copyreg.__newobj__, (type(handler),), state  # type: ignore[attr-defined]


def _reduce_logger(logger: logging.Logger) -> Any:
    if isinstance(logger, logging.RootLogger) or logging.getLogger(logger.name) is logger:
        return NotImplemented
    return logging.getLogger, (logger.name,)


_RULES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (_VIEWS, lambda view: (list, (list(view),))),
    (types.MappingProxyType, lambda proxy: (dict, (dict(proxy),))),
    (type(threading.Lock()), lambda lock: (threading.Lock, ())),
    (type(threading.RLock()), lambda lock: (threading.RLock, ())),
    (types.FunctionType, lambda function: _reduce_function(function) if is_lost(function) else NotImplemented),
    (type, lambda cls: _reduce_class(cls) if _is_lost_class(cls) else NotImplemented),
    (types.ModuleType, lambda module: (importlib.import_module, (module.__name__,))),
    ((io.TextIOWrapper, io.BufferedReader, io.FileIO), _reduce_file),
    (logging.Handler, _reduce_handler),
    (logging.Logger, _reduce_logger),
)


class _Pickler(reduction.ForkingPickler):
    """multiprocessing's pickler, with repairs."""

    def reducer_override(self, value: Any) -> Any:
        cls = type(value)
        if cls is threading.local:  # a subclass may want arguments
            return threading.local, ()
        for kinds, reduce in _RULES:
            if issubclass(cls, kinds):
                return reduce(value)
        return NotImplemented


class RepairedPickle:
    """Holds an object that is sent to a worker. Unpickling gives the repaired object itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        self._pickler = _Pickler(file)  # kept for the same reason as that of transport.WorkerArguments
        self._pickler.dump(self._value)
        return pickle.loads, (file.getvalue(),)


def remedied(report: Report) -> tuple[Finding, ...]:
    """Returns the errors that a RepairedPickle removes."""
    return tuple(one for one in report.errors if one.repair)


def warning(findings: Iterable[Finding]) -> str:
    """Returns the text of the warning that lists each repair once."""
    lines = [f'  {one.path}: {one.type}; repair="auto" {one.repair}{_more(one)}' for one in findings]
    return "\n".join(["headrace: these objects cannot be pickled and were repaired for the workers:", *lines])


def _more(finding: Finding) -> str:
    return f" (and {finding.more:,} more like it)" if finding.more else ""
