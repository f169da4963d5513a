# SPDX-License-Identifier: Apache-2.0
"""Finds the object that a user names on the command line: module:name, script.py:name, or a file with a pickle.

The commands replay and doctor use it. It also shows their failures and prints their reports.
"""

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
    """Raised to end a command. Its text, if any, and the traceback of its cause, if any, are shown to the user."""

    def __init__(self, text: str | None, code: int = 2) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


@contextlib.contextmanager
def reports_failure(text: str) -> Iterator[None]:
    """Runs user code. If that raises, the command ends: it shows the exception, then the text."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, Failed):
            raise
        raise Failed(text) from error


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


@contextlib.contextmanager
def stdout_of_report(is_alone: bool) -> Iterator[TextIO]:
    """Gives the stream for a report. If the report must be alone on stdout (JSON), the user's code prints to stderr."""
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


def show_failed_output(error: OSError, who: str, descriptor: int = 1) -> None:
    """Shows why a command could not print. A reader that has gone is no error:
    headrace/__main__.py ends the command."""
    if isinstance(error, BrokenPipeError):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # so that Python can flush its buffer at the end
    print(f"{who}: standard output: {error.strerror}", file=sys.stderr)


def print_report(report: str, stdout: TextIO, exit_code: int) -> int:
    """Prints a report of the doctor; returns its exit code, or 2 if it cannot be printed."""
    try:
        print(report, file=stdout, flush=True)
    except OSError as error:
        show_failed_output(error, "headrace doctor", stdout.fileno())
        return 2
    return exit_code


def users_part(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback without the frames of headrace's commands above the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_USERS):
        trace = trace.tb_next
    return trace


def show(error: BaseException) -> None:
    traceback.print_exception(type(error), error, users_part(error))


def show_failure(failed: Failed, who: str) -> None:
    """Shows why a command ended: the traceback of the cause, and the text."""
    if failed.__cause__ is not None:
        show(failed.__cause__)
    if failed.text:
        print(f"{who}: {failed.text}", file=sys.stderr)
