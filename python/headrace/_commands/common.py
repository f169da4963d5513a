# SPDX-License-Identifier: Apache-2.0
"""Parts that commands share: how they fail, and with which exit code; where reports are printed; checks of options."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import TextIO

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


def run_command(command: Callable[[], int], stopped: str) -> int:
    """Runs a command that makes something; returns its exit code, that of a Failed, which is shown, or 130 after an
    interrupt. stopped: what an interrupt leaves, for the user."""
    try:
        return command()
    except Failed as failed:
        show_failure(failed, "headrace")
        return failed.code
    except KeyboardInterrupt:
        print(f"headrace: stopped; {stopped}", file=sys.stderr)
        return 130


def positive(text: str) -> int:
    """Returns the value of an option that is a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"should be a positive integer, but got {text!r}")
    return int(text)
