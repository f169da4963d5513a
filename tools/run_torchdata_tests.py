# SPDX-License-Identifier: Apache-2.0
"""Runs torchdata's own tests of its StatefulDataLoader with headrace.torch.DataLoader in its place.

`run_torchdata_tests.py CHECKOUT [NAME...]` runs test/stateful_dataloader/test_NAME.py of a checkout of
https://github.com/meta-pytorch/data, by default of state_dict and sampler, first as they are and then with headrace's
loader. It prints a table for docs/conformance.md. torchdata is imported from the checkout, and the packages that its
tests need from build/frameworks: `make test-torchdata CHECKOUT=...` installs them first.

pytest loads this file as a plugin too, which replaces the class before the tests import it and writes down the results.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT

PACKAGES = ROOT / "build/frameworks/site-packages"
NAMES = ["state_dict", "sampler"]
TEST_TIMEOUT_S = 120
LOADER, RESULTS = "HEADRACE_TORCHDATA_LOADER", "HEADRACE_TORCHDATA_RESULTS"  # environment variables of the plugin
LOADERS = ["torchdata", "headrace"]

Outcome = dict[str, str]  # "outcome" is passed, failed or skipped; "why" is the last line of the error

# ---- the plugin ----

_outcomes: dict[str, Outcome] = {}


def pytest_configure() -> None:
    if os.environ.get(LOADER) == "headrace":
        torchdata = importlib.import_module("torchdata.stateful_dataloader")
        torchdata.StatefulDataLoader = importlib.import_module("headrace.torch").DataLoader  # type: ignore[attr-defined]


def pytest_runtest_logreport(report: Any) -> None:
    if LOADER not in os.environ or (report.when != "call" and report.passed):
        return
    name = report.nodeid.partition("::")[2]
    if _outcomes.get(name, {}).get("outcome") != "failed":  # a failed part of a test is its result
        _outcomes[name] = {"outcome": report.outcome, "why": _last_line(report)}


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).strip().splitlines()[0] if crash and crash.message.strip() else ""


def pytest_sessionfinish() -> None:
    if RESULTS in os.environ:
        Path(os.environ[RESULTS]).write_text(json.dumps(_outcomes))


# ---- the command ----


def run(checkout: Path, name: str, loader: str) -> dict[str, Outcome]:
    """Runs one file of tests with one of the loaders. Returns the outcomes by the names of the tests."""
    file = checkout / "test/stateful_dataloader" / f"test_{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        path = os.pathsep.join(map(str, [Path(__file__).resolve().parent, checkout, PACKAGES]))
        command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, f"--rootdir={checkout}", f"--timeout={TEST_TIMEOUT_S}", "--tb=short", str(file)]
        environment = {**os.environ, "PYTHONPATH": path, LOADER: loader, RESULTS: str(results)}
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )
        (ROOT / f"build/torchdata-{name}-{loader}.log").write_text(done.stdout)
        outcomes: dict[str, Outcome] = json.loads(results.read_text()) if results.exists() else {}
    if not outcomes:
        sys.exit(f"run_torchdata_tests.py: no test of {file} has run; pytest says\n{done.stdout[-2000:]}")
    return outcomes


def describe(outcome: Outcome | None) -> str:
    return "not run" if outcome is None else {"passed": "passes", "failed": "fails"}.get(outcome["outcome"], "skipped")


def table(name: str, found: dict[str, dict[str, Outcome]]) -> list[str]:
    """Returns the lines of a Markdown table with a row for each test."""
    lines = [f"| test_{name}.py | {' | '.join(LOADERS)} | why not |", "|---|---|---|---|"]
    for test in dict.fromkeys(test for outcomes in found.values() for test in outcomes):
        outcomes = [found[loader].get(test) for loader in LOADERS]
        why = next((one["why"] for one in reversed(outcomes) if one and one["outcome"] == "failed"), "")
        cells = [f"`{test}`", *map(describe, outcomes), why.replace("|", "\\|")[:160]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def count(found: dict[str, dict[str, Outcome]]) -> str:
    counts = []
    for loader in LOADERS:
        passed = sum(one["outcome"] == "passed" for one in found[loader].values())
        counts.append(f"{loader} passes {passed} of {len(found[loader])}")
    return ", ".join(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    args = parser.parse_args()
    tests = args.checkout.resolve() / "test/stateful_dataloader"
    if not tests.is_dir():
        parser.error(f"{tests} does not exist; give a checkout of https://github.com/meta-pytorch/data")
    for name in args.names:
        found = {loader: run(args.checkout.resolve(), name, loader) for loader in LOADERS}
        print("\n".join([*table(name, found), "", f"test_{name}.py: {count(found)}", ""]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
