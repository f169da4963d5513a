# SPDX-License-Identifier: Apache-2.0
"""The command headrace report: says from a recording why a training waited for its data, and what to change."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace._commands.common import Failed, show_failed_output, show_failure
from headrace._report import page, reading, summary, trace
from headrace._report.ranks import jobs_of
from headrace._report.recorded import Recorded
from headrace._report.words import counted, printable, size

_DESCRIPTION = """\
Says from a recording whether a training waited for its data, why, and what to
change. A recording is made with DataLoader(..., record="run1/"), with
HEADRACE_RECORD=run1/, or by headrace record.

Without -o it prints the verdict and the main numbers. With -o it also writes a
page with figures: one file that needs no network.

RECORDING is the folder of a recording, or one of its files. All ranks of a job
may be in the same folder; copy those of other machines into it.
"""


_NOTHING = "there is no recording in this folder, whose files end with .hrr; HEADRACE_RECORD=FOLDER writes one"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace report", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording", metavar="RECORDING", help="where the recording is")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to this file, such as report.html")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev and chrome://tracing")
    parser.add_argument(
        "--with", dest="torchs", metavar="FILE",
        help="a trace that torch.profiler has written: --trace then has both, on one time axis",
    )  # fmt: skip
    return parser


@contextlib.contextmanager
def _writing(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"{printable(error.filename or file)}: {error.strerror}") from None


def _write_trace(recorded: list[Recorded], asked: argparse.Namespace) -> None:
    torchs = Path(asked.torchs) if asked.torchs else None
    try:
        with _writing(asked.trace):
            spans = trace.write(recorded, Path(asked.trace), torchs)
    except trace.BadTrace as error:
        raise Failed(str(error)) from None
    print(f"{printable(asked.trace)}: {counted(spans, 'span')} of headrace; open it in ui.perfetto.dev")
    if torchs and not spans:
        print(
            f"headrace report: warning: nothing was recorded within a second of {printable(asked.torchs)}; it is of "
            "another run, or of a time of which the recording no longer has the steps",
            file=sys.stderr,
        )


def _report(asked: argparse.Namespace) -> None:
    recorded, complaints = reading.read(Path(asked.recording))
    for complaint in complaints:
        print(f"headrace report: {printable(complaint)}", file=sys.stderr)
    if not recorded:
        raise Failed(None if complaints else f"{printable(asked.recording)}: {_NOTHING}")
    jobs = jobs_of(recorded)
    print(summary.describe_all(jobs, asked.recording, bool(asked.output)))
    if asked.output:
        text = page.make(jobs, asked.recording).encode()
        with _writing(asked.output):
            Path(asked.output).write_bytes(text)
        print(f"\n{printable(asked.output)}: {size(len(text))}")
    if asked.trace:
        _write_trace(recorded, asked)


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code: 0, or 2 if there is no recording or a file cannot be written."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.torchs and not asked.trace:
        parser.error("--with is only used with --trace, which names the file that is to have both")
    try:
        _report(asked)
        sys.stdout.flush()
        return 0
    except Failed as failed:
        show_failure(failed, "headrace report")
        return failed.code
    except OSError as error:  # from a print
        show_failed_output(error, "headrace report")
        return 2
