# SPDX-License-Identifier: Apache-2.0
"""Runs the C tests of build/dev and the Python tests, and ends with one line that counts them.

`run_tests.py` (`make test`) runs those of tests/chosen.txt, `run_tests.py --all` (`make test-all`) all.
`run_tests.py WORD...` (`make test ONLY="crew samples"`) runs the C programs whose names contain one of the words, and
the files of Python tests whose paths contain one. `run_tests.py --changed COMMIT` (`make test CHANGED=1`) runs the
tests of the files that differ from a commit.
"""

import difflib
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

import changed
import chosen
import costs
from common import ROOT, Tally

C_BUILD = ROOT / "build/dev"
COSTS = ROOT / "build/test-costs.json"  # of the last run of all tests
RUNS = min(3, 1 + len(os.sched_getaffinity(0)))  # of pytest, at the same time: tests mostly wait
CLOSE_NAMES = 6  # shown for a word that matches no test

# CPU seconds of files that may take more than costs.BUDGET_S, and why.
BUDGETS: dict[str, tuple[float, str]] = {
    "test_sweep": (150, "a process is killed and stopped at each point of the protocol"),
    "test_same_as_torch": (100, "hundreds of loaders, each compared with torch's"),
    "test_examples": (95, "runs the examples, which start ranks by themselves"),
    "test_demo": (60, "runs the demo, which trains in seven processes"),
    "test_doctor_seeds": (70, "growth is only noticed after 30 s of reading"),
    "test_restarts": (55, "187 workers die"),
    "test_resume": (55, "each state is taken with each kind of sampler, at several places"),
    "test_resume_iterable": (50, "each state is taken with workers of each number"),
    "test_doctor_run": (60, "the doctor measures for seconds, which it needs to be right"),
    "test_interrupted": (60, "an interruption at each step of next()"),
    "test_every_moment": (50, "drawn programs, each with torch's loader and with headrace's"),
    "test_every_moment_finds": (80, "puts faults back, and draws programs until one is found"),
    "test_bad_input": (50, "large batches on small file systems"),
    "test_train_images": (60, "trains on images with torchrun, twice"),
}


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


def list_c_programs() -> list[str]:
    """Returns the names of the C tests, from the lists in tests/meson.build that `meson test` reads."""
    command = ["meson", "test", "-C", str(C_BUILD), "--list"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.findall(r"^.* - headrace:(\w+)$", output, re.MULTILINE)


def run_c_tests(names: list[str]) -> Tally:
    """Runs the C tests with these names; without names, all of them."""
    log = C_BUILD / "meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    status = subprocess.run(["meson", "test", "-C", C_BUILD, "--print-errorlogs", *names]).returncode
    if not log.exists():
        return Tally(failed=1)
    tally = Tally()
    for result in map(json.loads, log.read_text().splitlines()):
        counted = count_program(result)
        if counted.failed:
            print(f"To repeat {result['name']}: {gdb_command(result)}")
        tally += counted
    return tally.with_status(status)


def list_python_files() -> list[str]:
    """Returns the files of Python tests, those that take longest first: by the last run, or else by chosen.txt."""
    seconds = chosen.read().seconds | costs.read_files(COSTS)
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    return sorted(paths, key=lambda path: (-seconds.get(path, 0), path))


def select(words: list[str], programs: list[str], files: list[str]) -> tuple[list[str], list[str]]:
    """Returns the C programs and the Python files that the words name. Raises ValueError if a word names none."""
    for word in words:
        if not any(word in name for name in programs + files):
            known = sorted({*programs, *(Path(file).stem.removeprefix("test_") for file in files)})
            close = difflib.get_close_matches(word, known, CLOSE_NAMES, 0.4) or known
            raise ValueError(f"no test has {word!r} in its name; there is {', '.join(close)}")
    chosen_programs = [name for name in programs if any(word in name for word in words)]
    return chosen_programs, [file for file in files if any(word in file for word in words)]


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
        self.costs = ROOT / f"build/pytest-{number}.costs.json"
        for path in (self.report, self.log, self.costs):
            path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
        command += [f"--junitxml={self.report}", f"--costs={self.costs}", *arguments]
        if number == 0:
            self.process = subprocess.Popen(command, cwd=ROOT)
        else:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(command, cwd=ROOT, stdout=log)

    def finish(self, claims: Path) -> Tally:
        status = self.process.wait()
        if self.log.exists():
            print(self.log.read_text(errors="replace"), end="", flush=True)
        if not self.report.exists():  # by os._exit or a signal, in a test, in what it imports or in what it has left
            running = claims / f"running-{self.process.pid}"  # conftest.py writes it
            what = running.read_text() if running.exists() else "its beginning"
            print(
                f"run_tests.py: a run of pytest ended with status {status} in {what}; its results are lost", flush=True
            )
            return Tally(failed=1)
        return count_report(self.report).with_status(status)


def run_python_tests(files: list[str], *options: str) -> tuple[Tally, list[Path]]:
    """Shares the files out between several runs of pytest with these options, because a test mostly waits for processes
    that it has started. Returns the files with the costs of the tests, too."""
    with tempfile.TemporaryDirectory() as claims:
        arguments = [f"--claims={claims}", *options, *files]
        runs = [Pytest(number, arguments) for number in range(min(RUNS, len(files)))]
        tally = Tally()
        for run in runs:
            tally += run.finish(Path(claims))
    if tally == Tally():  # the words name files, but no tests
        tally = Tally(failed=1)
    return tally, [run.costs for run in runs if run.costs.exists()]


def run(programs: list[str] | None, files: list[str], *options: str, is_whole: bool = False) -> Tally:
    """Runs C programs (None: all) and files of Python tests with options of pytest, and prints what they cost."""
    start = costs.spent()
    tally = run_c_tests(programs or []) if programs is None or programs else Tally()
    c = costs.spent() - start
    parts: list[Path] = []
    with costs.ImportWatch() as watch:
        if files:
            python_tally, parts = run_python_tests(files, *options)
            tally += python_tally
    report = costs.read_parts(parts, costs.spent() - start - c, c, watch.count)
    print(*report.lines(BUDGETS), sep="\n", flush=True)
    report.write(COSTS if is_whole else COSTS.with_name("test-costs-selected.json"))
    return tally


def main(words: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and tests send it
    try:
        if not words:
            tally = run(None, list_python_files(), "-m", "not wide")
        elif words == ["--all"]:
            tally = run(None, list_python_files(), is_whole=True)
        elif words[:1] == ["--changed"]:
            tally = run(*changed.select(words[1], list_c_programs(), list_python_files()))
        else:
            tally = run(*select(words, list_c_programs(), list_python_files()))
    except ValueError as error:
        print(f"run_tests.py: {error}", file=sys.stderr)
        return 2
    return tally.finish("test")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
