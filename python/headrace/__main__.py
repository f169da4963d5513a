# SPDX-License-Identifier: Apache-2.0
"""The commands of the headrace program that are written in Python; `python -m headrace` runs them too."""

from __future__ import annotations

import io
import os
import sys
import traceback

from headrace._commands import replay
from headrace.doctor import _cli

_COMMANDS = {"doctor": _cli.main, "replay": replay.main}

_USAGE = """\
usage: python -m headrace replay SOURCE INDEX... [OPTION...]
       python -m headrace doctor [SOURCE] [OPTION...]"""


def main(arguments: list[str]) -> int:
    """Runs a command; returns the exit code."""
    if sys.stderr is None:  # closed; `print` would take stdout, and the next file that is opened would be stderr
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("headrace: standard output is closed; send what is not wanted to /dev/null", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever the locale is
    if arguments[:1] and arguments[0] in _COMMANDS:
        try:
            return _COMMANDS[arguments[0]](arguments[1:])
        except Exception:  # 1, which Python would give, is a command's answer
            traceback.print_exc()
            return 2
    asked = arguments[:1] in (["-h"], ["--help"])
    print(_USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
