# SPDX-License-Identifier: Apache-2.0
"""The command headrace cache warm --dataset: makes the samples of a dataset, and keeps them in the cache."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any

from headrace import _options
from headrace._base.cores import check_workers
from headrace._base.units import in_duration, in_units
from headrace._commands.common import Failed, reports_failure, run_command
from headrace._commands.replay import dataset_of
from headrace._commands.target import load

_DESCRIPTION = """\
Makes the samples of a dataset, and keeps them in the cache, so that jobs with
DataLoader(..., cache=...) or headrace.cache_samples(dataset) find them there.

SOURCE is module:name, path/script.py:name, or a file with a pickled dataset; the
name is a dataset, a loader, or a function that returns one of these.
"""
_EXAMINED = 8  # samples that --dry-run makes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace cache warm", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dataset", metavar="SOURCE", required=True, help="where the dataset is")
    add("--name", help="of the samples (default: made from the class and the attributes, as in the jobs)")
    add("--version", default="0", help="their version (default: 0)")
    add("--budget", default="auto", help='bytes at most, such as 40G (default: "auto", what the machine has room for)')
    add("--workers", type=int, default=-1, help="processes (default: one for each core); 0: this one")
    add("--keep", choices=("job", "boot", "disk"), default="boot", help="how long they stay (default: boot)")
    add("--hold", action="store_true", help="stay until Ctrl-C, SIGTERM or SIGHUP, then remove them")
    add(
        "--debug", action="store_true", help="make all samples in this process, for a debugger; the same as --workers 0"
    )
    add("--dry-run", action="store_true", help="say how large they are and how long it takes; keep nothing")
    add("--root", help="another folder for the cache")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


def _examine(dataset: Any) -> dict[str, Any]:
    """Returns what making all samples would take, from a few of them."""
    from headrace._base import pickling
    from headrace._samples.checks import spread

    numbers = spread(len(dataset), _EXAMINED)
    start, size = time.perf_counter(), 0
    for number in numbers:
        try:
            size += pickling.size_of(dataset[number])
        except Exception as error:
            raise Failed(f"sample {number} cannot be made", 1) from error
    few = max(1, len(numbers))
    seconds = (time.perf_counter() - start) / few * len(dataset)
    return {"samples": len(dataset), "bytes": size // few * len(dataset), "seconds_of_one_process": seconds}


class _Stopped(BaseException):
    """Raised by a signal that ends a job."""


def _stop(number: int, frame: Any) -> None:
    raise _Stopped


def _hold(cached: Any) -> None:
    """Waits for a signal that ends a job, then removes the samples."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stop)
        print("headrace: holding the samples; Ctrl-C removes them", file=sys.stderr, flush=True)
        while True:
            time.sleep(3600)
    except _Stopped:
        cached.drop()


def _run(options: argparse.Namespace) -> int:
    from headrace._cache.samples import cache_samples

    try:
        _options.check_budget("--budget", options.budget)
        check_workers(options.workers, "headrace cache warm")
    except ValueError as error:
        raise Failed(str(error)) from None
    value = load(options.dataset)
    with reports_failure(f"{options.dataset} cannot be called"):
        dataset = dataset_of(value, options.dataset)
    if options.dry_run:
        found = _examine(dataset)
        text = (
            f"{found['samples']:,} samples, about {in_units(found['bytes'])}; one process takes about "
            f"{in_duration(found['seconds_of_one_process'])}"
        )
        print(json.dumps(found) if options.json else text)
        return 0
    try:
        cached = cache_samples(
            dataset,
            options.budget,
            name=options.name,
            version=options.version,
            keep=options.keep,
            root=options.root,
        )
    except (TypeError, ValueError, OSError) as error:
        raise Failed(str(error)) from None
    if cached.name is None:
        raise Failed(f"nothing is cached: {cached.report()['why']}")
    start = time.monotonic()
    try:
        report = cached.warm(0 if options.debug else options.workers, True)
    except Exception as error:
        raise Failed("the samples cannot be made; those that were made are kept", 1) from error
    seconds = time.monotonic() - start
    text = (
        f"{cached.name}: {report['ready']:,} of {report['samples']:,} samples, {in_units(report['bytes'])}, in "
        f"{in_duration(seconds)}"
    )
    for why, count in report["refused"].items():
        text += f"; {count:,} are not kept: {why}"
    print(json.dumps({"name": cached.name, "seconds": seconds, **report}) if options.json else text, flush=True)
    if options.hold:
        _hold(cached)
    return 0


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit code: 0 done, 1 a sample raised, 2 wrong usage, 130 stopped."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: _run(options), "the samples that were made are kept")
