# SPDX-License-Identifier: Apache-2.0
"""Runs the C tests of build/dev and the Python tests, and ends with one line that counts them.

`run_tests.py PYTEST_ARGUMENT...` runs only pytest, with these arguments.
"""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from common import ROOT, Tally

C_BUILD = ROOT / "build/dev"
PYTEST_REPORT = ROOT / "build/pytest.xml"


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


def run_c_tests() -> Tally:
    log = C_BUILD / "meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    status = subprocess.run(["meson", "test", "-C", C_BUILD, "--print-errorlogs"]).returncode
    tally = Tally()
    if log.exists():
        for line in log.read_text().splitlines():
            tally += count_program(json.loads(line))
    return tally.with_status(status)


def run_python_tests(arguments: list[str]) -> Tally:
    PYTEST_REPORT.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--continue-on-collection-errors",
        f"--junitxml={PYTEST_REPORT}",
        *arguments,
    ]
    status = subprocess.run(command, cwd=ROOT).returncode
    tally = Tally()
    if PYTEST_REPORT.exists():
        for suite in ElementTree.parse(PYTEST_REPORT).iter("testsuite"):
            total, *others = (int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped"))
            tally += Tally(total - sum(others), others[0] + others[1], others[2])
    return tally.with_status(status)


def main() -> int:
    arguments = sys.argv[1:]
    tally = run_python_tests(arguments) if arguments else run_c_tests() + run_python_tests([])
    return tally.finish("test")


if __name__ == "__main__":
    sys.exit(main())
