# SPDX-License-Identifier: Apache-2.0
"""The command headrace cache warm URL...: has remote objects fetched and kept as a whole."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import Any

from headrace import _core
from headrace._base.progress import Progress
from headrace._base.units import in_duration, in_units
from headrace._commands.common import Failed, run_command
from headrace._commands.remote import add_storage, checked_storage, reason, refuse_local
from headrace.sources._places import Places

_DESCRIPTION = """\
Fetches objects in a bucket or behind https as a whole, and keeps them in the folder
of remote objects, where sources then read them as files. What is there already is
not fetched again. If the command is stopped or killed, the next run continues.
"""
_SLICE_S = 0.2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace cache warm", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("urls", metavar="URL", nargs="+", help="also with braces; of a bucket also a pattern, in quotes")
    add_storage(parser)
    add("--root", help="another folder than that of HEADRACE_REMOTE")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


def _fill(paths: list[str]) -> dict[str, int]:
    """Returns the fields of _core.Filling.look at the end. Raises OSError."""
    filling = _core.Filling(tuple(os.fsencode(path) for path in paths))
    shown = 0
    with Progress("headrace cache warm", filling.look()["total_bytes"], True) as progress:
        while True:
            is_done = filling.wait(_SLICE_S)
            found: dict[str, int] = filling.look()
            progress.add(found["done_bytes"] - shown)
            shown = found["done_bytes"]
            if is_done:
                return found


def _run(options: argparse.Namespace) -> int:
    refuse_local(options.urls, "give --name NAME to copy files of this machine, and URLs to fetch objects")
    storage = checked_storage(options)
    if options.root is not None:
        os.environ["HEADRACE_REMOTE"] = os.path.abspath(options.root)
    start = time.monotonic()
    try:
        paths = list(dict.fromkeys(Places(options.urls, "headrace cache warm", storage).paths))
        found = _fill(paths)
    except (OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        raise Failed(reason(error), 1) from None
    seconds = time.monotonic() - start
    folder = os.fsdecode(_core.remote_folder())
    fetched = found["total_bytes"] - found["kept_bytes"]
    if options.json:
        result = {"objects": len(paths), "bytes": found["total_bytes"], "fetched_bytes": fetched}
        print(json.dumps({**result, "seconds": seconds, "folder": folder}))
    else:
        print(
            f"{len(paths):,} objects, {in_units(found['total_bytes'])}, are kept in {folder}; {in_units(fetched)} "
            f"fetched in {in_duration(seconds)}"
        )
    return 0


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit code: 0 done, 1 it failed, 2 wrong usage, 130 stopped."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    return run_command(lambda: _run(options), "what was fetched is kept, run the command again to continue")
