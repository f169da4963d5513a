# SPDX-License-Identifier: Apache-2.0
"""Where the commands of the headrace program find what the user names: module:name, script.py:name, a pickle."""

from __future__ import annotations

import contextlib
import difflib
import os
import pickle
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any, TextIO

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_NOT_USERS = (
    *(os.path.join(_PACKAGE, name, "") for name in ("_commands", "doctor")),
    "<frozen importlib",
)


class Failed(Exception):
    """Ends the command: with a text for the user or none, and the traceback of its cause if it has one."""

    def __init__(self, text: str | None, code: int = 2) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


@contextlib.contextmanager
def blaming(text: str) -> Iterator[None]:
    """Where code of the user's runs: what it raises is shown, then the text."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, Failed):
            raise
        raise Failed(text) from error


def load(source: str) -> Any:
    """What the user names. Failed; from here on the current folder and the script's are importable."""
    sys.argv[:] = [source]  # what parses its arguments on import should not find ours
    sys.path.insert(0, "")  # the current folder
    if os.path.isfile(source) and not source.endswith(".py"):
        return _unpickle(source)
    place, _, name = source.rpartition(":")
    if not (place and name):
        raise Failed(
            f"{source} is neither a file with a pickled data set nor module:name nor path/script.py:name"
            + (f"; which of its names is the data set? {source}:NAME" if source.endswith(".py") else "")
        )
    with blaming(f"{place} cannot be imported"):
        module = _run_script(place) if place.endswith(".py") else _import(place)
    with blaming(f"{source} cannot be looked up"):
        return _look_up(module, name)


def _unpickle(path: str) -> Any:
    with blaming(
        f"{path} cannot be unpickled; it should be written by pickle.dump(dataset, file), and what it names should be "
        "importable from here (a class in a script is not: replay path/script.py:name)"
    ):
        with open(path, "rb") as file:
            return pickle.load(file)


def _import(name: str) -> types.ModuleType:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # another module, that this one imports
            raise
        raise Failed(
            f"{error}; looked in the current folder and on the path of {sys.executable}. SOURCE should be module:name, "
            "path/script.py:name, or a file with a pickled data set"
        ) from None
    return sys.modules[name]


def _run_script(path: str) -> types.ModuleType:
    """The script as a module that spawn's workers would know: its main guard does not run, and it is the main module
    for what it pickles."""
    if not os.path.isfile(path):
        raise Failed(f"there is no script {path}")
    module = types.ModuleType("__mp_main__")
    module.__file__ = os.path.abspath(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # of what a link leads to, as Python does
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


@contextlib.contextmanager
def alone(is_alone: bool) -> Iterator[TextIO]:
    """Where a report goes. If it is to be alone on stdout (JSON), what the user's code prints goes to stderr."""
    if not is_alone:
        yield sys.stdout
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)
        try:
            yield stdout
        finally:
            sys.stdout.flush()
            os.dup2(stdout.fileno(), 1)


def say(report: str, stdout: TextIO, exit_code: int) -> int:
    """Prints a report; gives its exit code, or 2 where it cannot be printed."""
    try:
        print(report, file=stdout, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # what is still in the buffer is flushed at the end
        print(f"headrace doctor: standard output: {error.strerror}", file=sys.stderr)
        return 2
    return exit_code


def users_part(error: BaseException) -> types.TracebackType | None:
    """The traceback without the calls that lead from here to the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_USERS):
        trace = trace.tb_next
    return trace


def show(error: BaseException) -> None:
    traceback.print_exception(type(error), error, users_part(error))
