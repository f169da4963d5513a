# SPDX-License-Identifier: Apache-2.0
"""The command headrace doctor: checks an object that is sent to workers, this machine, or a loader at work."""

from __future__ import annotations

import argparse
import functools
import os
import types
from typing import Any

from headrace._commands import doctor_machine
from headrace._commands.common import Failed, print_report, reports_failure, show_failure, stdout_of_report
from headrace._commands.target import load

_WITH_VALUE = ("--method", "--workers", "--batches")
_MAKERS = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_DESCRIPTION = """\
Lists every object that cannot be pickled for worker processes: its path, the
line that set it, and a fix. Then unpickles it in a process that is started as
a worker is.

SOURCE is one of
  module:name          an object, or a function that returns one when it is
                       called without arguments; a loader is checked part by
                       part. The name may be dotted; modules in the current
                       directory can be imported.
  path/script.py:name  the same in a script; its main guard does not run
  path/data.pkl        a file that pickle.dump(object, file) has written

Without SOURCE it checks the machine. With --run SOURCE it runs a loader, and says
how fast it is and why. With --compare SOURCE it compares the batches of a loader
with torch's: see `headrace doctor --machine-help` for these three, which also take
--workers and --batches.

Exit code: 0 fine, 1 warnings, 2 errors (or SOURCE cannot be loaded).
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace doctor", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="SOURCE", help="where the object is")
    parser.add_argument(
        "--method", choices=("spawn", "forkserver", "fork"), default="spawn", help="start method (default: spawn)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--no-load", action="store_true", help="do not unpickle it, which may run code of its classes")
    return parser


def _is_for_machine(arguments: list[str]) -> bool:
    """Returns True if no SOURCE is given, or a loader is to be run or compared."""
    if any(one.partition("=")[0] in ("--run", "--compare") for one in arguments):
        return True
    if any(one in ("-h", "--help") for one in arguments):
        return False
    values = [one for before, one in zip(["", *arguments], arguments, strict=False) if before not in _WITH_VALUE]
    return all(one.startswith("-") for one in values)


def _object_of(source: str) -> tuple[Any, str]:
    """Returns the object that SOURCE names, and the name with which paths start."""
    value = load(source)
    name = os.path.basename(source).rpartition(":")[2] if ":" in source else "obj"
    if isinstance(value, _MAKERS):
        with reports_failure(f"{source} was called without arguments, to check its result"):
            return value(), f"{name}()"
    return value, name


def _check(asked: argparse.Namespace) -> int:
    from headrace import doctor

    with stdout_of_report(asked.json) as stdout:
        value, name = _object_of(asked.source)
        report = doctor.check(value, asked.method, name, load=not asked.no_load)
        return print_report(report.to_json() if asked.json else str(report), stdout, report.exit_code)


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if _is_for_machine(arguments):
        return doctor_machine.main(arguments)
    asked = _parser().parse_args(arguments)
    try:
        return _check(asked)
    except Failed as failed:
        show_failure(failed, "headrace doctor")
        return failed.code
