# SPDX-License-Identifier: Apache-2.0
"""Records which lines and branches each test reaches, in all of its processes, for tools/choose_tests.py.

Every process of Python that has HEADRACE_COVERAGE, the folder of the results, imports this module at its start (by a
.pth file that choose_tests.py writes). As a plugin of pytest it sets the name of the test, which processes inherit:
HEADRACE_TEST.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

import coverage

FOLDER = Path(os.environ["HEADRACE_COVERAGE"])
PACKAGE = os.environ["HEADRACE_COVERAGE_PACKAGE"]
EDGES = FOLDER / "libheadrace_edges.so"
_exit = os._exit
_current: coverage.Coverage | None = None


def name_of(test: str) -> str:
    """Returns the name of a test in the results."""
    return hashlib.sha256(test.encode()).hexdigest()[:16]


def follow_test() -> None:
    """Notes everything for the test that HEADRACE_TEST names from now on."""
    if _current is not None:
        _current.switch_context(os.environ.get("HEADRACE_TEST", ""))


def begin() -> None:
    """Starts to record in this process: what it reached before a fork is its parent's."""
    global _current
    if _current is not None:
        _current.stop()
    data = str(FOLDER / "python" / "data")
    _current = coverage.Coverage(
        data_file=data, data_suffix=True, branch=True, include=[f"{PACKAGE}/*"], config_file=False, messages=False
    )
    _current.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    _current.start()
    follow_test()


def save() -> None:
    if _current is not None:
        _current.stop()
        _current.save()


def _save_and_exit(status: int) -> None:
    try:
        save()
    finally:
        _exit(status)


def start() -> None:
    if _current is None:
        os._exit = _save_and_exit  # type: ignore[assignment]
        os.register_at_fork(after_in_child=begin)
        atexit.register(save)
        begin()


def pytest_runtest_protocol(item: Any) -> None:
    os.environ["HEADRACE_TEST"] = name_of(item.nodeid)
    follow_test()
    ctypes.CDLL(str(EDGES)).headrace_follow_test()
    with (FOLDER / "tests.txt").open("a") as names:
        names.write(f"{name_of(item.nodeid)} {item.nodeid}\n")
