# SPDX-License-Identifier: Apache-2.0
"""headrace doctor: what keeps an object from being sent to worker processes; or what is wrong with this machine."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import types
from typing import Any

from headrace._commands.target import Failed, alone, blaming, load, say, show

_WITH_VALUE = ("--method", "--workers", "--batches")
_MAKERS = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_DESCRIPTION = """\
Says what keeps an object from being sent to worker processes: every culprit
with the way to it, where it was set, and what to do. Then loads it again in a
process that is started as a worker would be.

SOURCE is one of
  module:name          an object; or what gives one when it is called without
                       arguments; a loader is checked part by part. The name
                       may be dotted; the current folder is importable.
  path/script.py:name  the same in a script, whose main guard does not run
  path/data.pkl        a file that pickle.dump(object, file) has written

Without SOURCE, or with --run SOURCE, it looks at the machine, or at a loader
at work: `headrace doctor --machine-help` tells more.

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
    parser.add_argument("--no-load", action="store_true", help="do not load it again, which runs what loading runs")
    return parser


def _is_for_machine(arguments: list[str]) -> bool:
    """No SOURCE is given, or a loader is to be run."""
    if any(one == "--run" or one.startswith("--run=") for one in arguments):
        return True
    if any(one in ("-h", "--help") for one in arguments):
        return False
    values = [one for before, one in zip(["", *arguments], arguments, strict=False) if before not in _WITH_VALUE]
    return all(one.startswith("-") for one in values)


def _object_of(source: str) -> tuple[Any, str]:
    """The object that SOURCE names, and what paths start with."""
    value = load(source)
    name = os.path.basename(source).rpartition(":")[2] if ":" in source else "obj"
    if isinstance(value, _MAKERS):
        with blaming(f"{source} was called without arguments, for its result to be checked"):
            return value(), f"{name}()"
    return value, name


def _check(asked: argparse.Namespace) -> int:
    from headrace import doctor

    with alone(asked.json) as stdout:
        value, name = _object_of(asked.source)
        report = doctor.check(value, asked.method, name, load=not asked.no_load)
        return say(report.to_json() if asked.json else str(report), stdout, report.exit_code)


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if _is_for_machine(arguments):
        return int(importlib.import_module("headrace.doctor._machine").main(arguments))
    asked = _parser().parse_args(arguments)
    try:
        return _check(asked)
    except Failed as failed:
        if failed.__cause__ is not None:
            show(failed.__cause__)
        if failed.text:
            print(f"headrace doctor: {failed.text}", file=sys.stderr)
        return failed.code
