# SPDX-License-Identifier: Apache-2.0
"""The commands of the headrace program that are written in Python; for all other words `python -m headrace` becomes the
program, whose table (cli/main.c) has all commands."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback

from headrace._commands import program

# Modules of headrace._commands, of which only the one that runs is imported. fill: headrace cache warm URL; warm:
# headrace cache warm --dataset; index: of URLs
_COMMANDS = ("doctor", "fill", "help", "index", "replay", "report", "warm")


def main(arguments: list[str]) -> int:
    """Runs a command; returns the exit code."""
    if sys.stderr is None:  # closed: print would use stdout, and the next file opened would become it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if not arguments or arguments[0] not in _COMMANDS:
        return program.become(arguments)
    if sys.stdout is None:
        print("headrace: standard output is closed; redirect it to /dev/null if you do not want it", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in any locale
    try:
        command = importlib.import_module(f"headrace._commands.{arguments[0]}")
        code: int = command.main(arguments[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest when it exits
        return 128 + signal.SIGPIPE
    except Exception:  # Python would exit with 1, which has another meaning in these commands
        traceback.print_exc()
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
