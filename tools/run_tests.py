# SPDX-License-Identifier: Apache-2.0
"""Runs the C tests of build/dev and the Python tests, and ends with one line that counts them.

`run_tests.py PYTEST_ARGUMENT...` runs only pytest, with these arguments.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from common import ROOT, Tally

C_BUILD = ROOT / "build/dev"
RUNS = min(2, len(os.sched_getaffinity(0)))  # of pytest, beside each other


def count_cmocka(output: str, verdict: str) -> int:
    return sum(int(n) for n in re.findall(rf"^\[  {verdict}  \] (\d+) test\(s\)", output, re.MULTILINE))


def count_program(result: dict[str, str]) -> Tally:
    """The tests in one program: those that cmocka counted, or the program itself."""
    output = result.get("stderr", "") + result.get("stdout", "")
    passed, failed, skipped = (count_cmocka(output, verdict) for verdict in ("PASSED", "FAILED", "SKIPPED"))
    if result["result"] in ("OK", "EXPECTEDFAIL"):
        return Tally(max(passed, 1), 0, skipped)
    if result["result"] == "SKIP":
        return Tally(0, 0, max(skipped, 1))
    return Tally(passed, max(failed, 1), skipped)


def gdb_command(result: dict[str, Any]) -> str:
    """Returns the shell command that repeats a failed C program under gdb and stops where each failed test starts."""
    output = result.get("stderr", "") + result.get("stdout", "")
    names = dict.fromkeys(re.findall(r"^\[  FAILED  \] (\w+)$", output, re.MULTILINE))
    program, *arguments = result["command"]
    stops = [word for name in names for word in ("-ex", f"break {name}")]
    return shlex.join(["gdb", *stops, "-ex", "run", "--args", os.path.relpath(program, ROOT), *arguments])


def run_c_tests() -> Tally:
    log = C_BUILD / "meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    status = subprocess.run(["meson", "test", "-C", C_BUILD, "--print-errorlogs"]).returncode
    if not log.exists():
        return Tally(failed=1)
    tally = Tally()
    for result in map(json.loads, log.read_text().splitlines()):
        counted = count_program(result)
        if counted.failed:
            print(f"To repeat {result['name']}: {gdb_command(result)}")
        tally += counted
    return tally.with_status(status)


def count_report(path: Path) -> Tally:
    tally = Tally()
    for suite in ElementTree.parse(path).iter("testsuite"):
        total, *others = (int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped"))
        tally += Tally(total - sum(others), others[0] + others[1], others[2])
    return tally


class Pytest:
    """One run of pytest. The first prints as it goes; what another prints is shown when it has ended."""

    def __init__(self, number: int, arguments: list[str]) -> None:
        self.report = ROOT / f"build/pytest-{number}.xml"
        self.log = ROOT / f"build/pytest-{number}.log"
        self.report.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
        command += [f"--junitxml={self.report}", *arguments]
        if number == 0:
            self.process = subprocess.Popen(command, cwd=ROOT)
        else:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(command, cwd=ROOT, stdout=log)

    def finish(self) -> Tally:
        status = self.process.wait()
        if self.log.exists():
            print(self.log.read_text(errors="replace"), end="", flush=True)
        if not self.report.exists():  # a test, or what it imports, has ended pytest by os._exit
            return Tally(failed=1)
        return count_report(self.report).with_status(status)


def run_python_tests(arguments: list[str]) -> Tally:
    """Two runs share the files of tests out: a test mostly waits for processes that it has started."""
    with tempfile.TemporaryDirectory() as claims:
        runs = [Pytest(number, [f"--claims={claims}", *arguments]) for number in range(RUNS)]
        tally = Tally()
        for run in runs:
            tally += run.finish()
    return tally


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and tests send it
    arguments = sys.argv[1:]
    tally = run_python_tests(arguments) if arguments else run_c_tests() + run_python_tests([])
    return tally.finish("test")


if __name__ == "__main__":
    sys.exit(main())
