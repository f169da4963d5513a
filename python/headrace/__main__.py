# SPDX-License-Identifier: Apache-2.0
"""The commands of the headrace program that are written in Python; `python -m headrace` runs them too."""

from __future__ import annotations

import sys

from headrace import _replay
from headrace.doctor import _cli

_COMMANDS = {"doctor": _cli.main, "replay": _replay.main}


def main(arguments: list[str]) -> int:
    """Runs a command; returns the exit code."""
    if arguments[:1] and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    print("usage: python -m headrace replay SOURCE INDEX... [OPTION...]", file=sys.stderr)
    print("       python -m headrace doctor [SOURCE] [OPTION...]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
