# SPDX-License-Identifier: Apache-2.0
"""Runs the C tests of build/dev and the Python tests, and ends with one line that counts them.

`run_tests.py WORD...` (`make test ONLY="crew samples"`) runs the C programs whose names contain one of the words, and
the files of Python tests whose paths contain one.
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

from common import ROOT, Tally

C_BUILD = ROOT / "build/dev"
RUNS = min(3, 1 + len(os.sched_getaffinity(0)))  # of pytest, at the same time: tests mostly wait
CLOSE_NAMES = 6  # shown for a word that matches no test

# The files that take longest come first, so that the runs end together: seconds, measured alone on two cores.
SECONDS = {
    "test_same_as_torch": 110,
    "test_sweep": 80,
    "test_doctor_seeds": 75,
    "test_doctor_run": 70,
    "test_hostile": 60,
    "test_restarts": 60,
    "test_forkserver": 45,
    "test_forked_libraries": 25,
    "test_reports": 50,
    "test_run_torch": 50,
    "test_bad_input": 45,
    "test_review": 40,
    "test_the_end": 35,
    "test_samples": 30,
    "test_run_signals": 25,
    "test_run_output": 20,
    "test_store_pickling": 24,
    "test_growth": 24,
    "test_interrupted": 23,
    "test_contexts": 22,
    "test_demo": 17,
    "test_doctor_seeds_pickling": 17,
    "test_doctor": 17,
    "test_doctor_loader": 15,
    "test_frameworks": 30,
    "test_agreement": 40,
    "test_loaders_agree": 25,
    "test_run_several_machines": 20,
    "test_resume": 25,
    "test_resume_iterable": 20,
    "test_resume_lightning": 20,
    "test_resume_trainer": 20,
    "test_resume_accelerate": 12,
    "test_resume_fallback": 25,
    "test_resume_killed": 12,
    "test_packed": 20,
    "test_plan_state": 12,
    "test_in_loader": 40,
    "test_train_images": 30,
    "test_other_pillows": 35,
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
    """Returns the files of Python tests, those that take longest first."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (-SECONDS.get(path.stem, 0), path))
    return [path.relative_to(ROOT).as_posix() for path in paths]


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


def run_python_tests(files: list[str]) -> Tally:
    """Shares the files out between several runs, because a test mostly waits for processes that it has started."""
    with tempfile.TemporaryDirectory() as claims:
        runs = [Pytest(number, [f"--claims={claims}", *files]) for number in range(min(RUNS, len(files)))]
        tally = Tally()
        for run in runs:
            tally += run.finish()
    return tally


def run_selected(words: list[str]) -> Tally:
    programs, files = select(words, list_c_programs(), list_python_files())
    tally = run_c_tests(programs) if programs else Tally()
    return tally + run_python_tests(files) if files else tally


def main(words: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and tests send it
    try:
        tally = run_selected(words) if words else run_c_tests([]) + run_python_tests(list_python_files())
    except ValueError as error:
        print(f"run_tests.py: {error}", file=sys.stderr)
        return 2
    return tally.finish("test")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
