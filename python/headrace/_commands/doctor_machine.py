# SPDX-License-Identifier: Apache-2.0
"""The command headrace doctor without SOURCE, which checks this machine, and with --run, which runs a loader."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from headrace import _options
from headrace._base import lookup
from headrace._commands import common
from headrace._commands.target import load
from headrace.doctor import observations
from headrace.doctor.observations import Observation

if TYPE_CHECKING:
    from headrace.doctor.run.measure import Run

_DESCRIPTION = """\
Without arguments: says what this machine, its container and its limits mean for
loaders. With --run: runs a loader and says how it spends its time, what grows
in its workers, how many workers are enough, and what is wrong with its sampler
or its padding. With --compare: draws the batches of a loader with torch's engine
and with headrace's, from equal seeds, and says at which batch and sample they
differ first. SOURCE is module:make_loader or path/script.py:make_loader: a loader,
or a function that returns one when it is called without arguments (for --compare
always a function).

Exit code 0: nothing is wrong; 1: warnings; 2: errors.
"""


class NoLoader(Exception):
    """Raised if SOURCE does not give a loader."""


# ---- the loader ----


def _is_loader(value: Any) -> bool:
    has_parts = all(lookup.has_attribute(value, name) for name in ("dataset", "num_workers"))
    return _options.is_torchs_loader(value) or (has_parts and lookup.has_special(value, "__iter__"))


def _load(source: str) -> Any:
    """Returns the loader that `source` is or makes. Raises NoLoader."""
    value = load(source)
    if not _is_loader(value) and callable(value):
        with common.reports_failure(f"{source} was called without arguments, to make the loader"):
            value = value()
    if not _is_loader(value):
        raise NoLoader(
            f"{source} gives no loader: {type(value).__name__} does not have all of dataset, num_workers and __iter__"
        )
    return value


def _maker(source: str) -> Callable[[], Any]:
    """Returns the function that makes a loader of torch's or headrace.torch's. Raises NoLoader."""
    value = load(source)
    if _is_loader(value) or not callable(value):
        raise NoLoader(f"{source} is a {type(value).__name__}; name a function that makes the loader: it is made twice")

    def make() -> Any:
        with common.reports_failure(f"{source} was called without arguments, to make the loader"):
            loader = value()
        if not _options.is_torchs_loader(loader):
            raise NoLoader(f"{source} gives a {type(loader).__name__}, which is not one of torch's loaders")
        return loader

    return make


@contextlib.contextmanager
def _with_headrace() -> Iterator[None]:
    """Makes torch's own loaders run on headrace's engine, if torch is used at all."""
    if "torch.utils.data" not in sys.modules:
        yield
        return
    from headrace.torch import installed

    with installed(on_stall="raise"):
        yield


# ---- the reports ----


def _as_numbers(one: Run) -> dict[str, Any]:
    """Returns a run for JSON. The rate of the first run is lower, because growth is measured in it."""
    numbers: dict[str, Any] = {"workers": one.workers, "batches": one.batches, "batches_per_s": round(one.rate, 3)}
    numbers["first_batch_s"] = round(one.first_s, 3)
    for name in ("waited_s", "growth", "private_grown_bytes", "per_worker"):
        if name in one.report:
            numbers[name] = one.report[name]
    return numbers


def _observe_failure(error: BaseException) -> Observation:
    try:
        text = str(error).strip()
    except Exception:  # the exception's own __str__ raises
        text = ""
    first = text.splitlines()[0] if text else "it has no message"
    fix = "headrace replay makes a sample in the foreground"
    if first.startswith("headrace: no batch for"):
        return Observation("run", "error", "stalled", "no batch came", text, fix)
    return Observation("run", "error", type(error).__name__, "raised by the loader", first, fix)


def _run(source: str, batches: int, is_json: bool, stdout: TextIO) -> int:
    from headrace.doctor.run.examine import examine

    found: list[Observation] = []
    runs: list[Run] = []
    try:
        runs = examine(_load(source), batches, found, _with_headrace())
    except (NoLoader, common.Failed) as error:
        if error.__cause__ is not None:
            common.show(error.__cause__)
        print(f"headrace doctor: {error}", file=sys.stderr)
        return observations.ERRORS
    except Exception as error:
        found.append(_observe_failure(error))
        common.show(error)
        print(f"headrace doctor: {source}: its loader cannot be run", file=sys.stderr)
    if is_json:
        text = observations.as_json(found, runs=[_as_numbers(one) for one in runs])
    else:
        text = observations.as_text(found)
    return common.print_report(text, stdout, observations.exit_code(found))


def _compare(source: str, batches: int, is_json: bool, stdout: TextIO) -> int:
    from headrace.doctor.run import compared

    try:
        found = compared.examine(_maker(source), batches)
    except (NoLoader, common.Failed) as error:
        if error.__cause__ is not None:
            common.show(error.__cause__)
        print(f"headrace doctor: {error}", file=sys.stderr)
        return observations.ERRORS
    text = observations.as_json(found) if is_json else observations.as_text(found)
    return common.print_report(text, stdout, observations.exit_code(found))


def _check_machine(workers: int | None, is_json: bool) -> int:
    machine: dict[str, Any] | None = None
    try:
        from headrace import _core
        from headrace.doctor.machine.check import check_machine
    except ImportError as error:
        text = "The extension cannot be loaded: headrace.torch.DataLoader is torch's own loader here."
        fix = f"{sys.executable} -m pip install --force-reinstall headrace"
        found = [Observation("engine", "error", "not available", str(error), text, fix)]
    else:
        found = check_machine(workers)
        machine = _core.machine()
    text = observations.as_json(found, machine=machine) if is_json else observations.as_text(found)
    return common.print_report(text, sys.stdout, observations.exit_code(found))


# ---- the command ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace doctor", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine-help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--workers", type=common.positive, metavar="N", help="check the machine for this number of workers"
    )
    parser.add_argument("--run", metavar="SOURCE", help="run this loader")
    parser.add_argument("--compare", metavar="SOURCE", help="compare its batches with torch's engine and headrace's")
    parser.add_argument(
        "--batches",
        type=common.positive,
        default=200,
        metavar="N",
        help="run or compare N of its batches (default: 200)",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    asked = _parser().parse_args(arguments)
    if not (asked.run or asked.compare):
        return _check_machine(asked.workers, asked.json)
    with common.stdout_of_report(asked.json) as stdout:
        if asked.compare:
            return _compare(asked.compare, asked.batches, asked.json, stdout)
        return _run(asked.run, asked.batches, asked.json, stdout)
