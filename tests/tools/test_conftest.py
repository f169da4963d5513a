# SPDX-License-Identifier: Apache-2.0
"""Runs of pytest share files of tests (`--claims` of tests/conftest.py), and what a failed test made is freed."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable

import pytest

FIRST = """
import pathlib
import pytest

def test_one():
    pass

def test_two():
    pathlib.Path("first").touch()

@pytest.mark.wide
def test_wide():
    pass
"""
SECOND = """
import pathlib

was_first_run = pathlib.Path("first").exists()

def test_three():
    assert was_first_run is {expected}
"""


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: pathlib.Path, inner_pytest: tuple[list[str], dict[str, str]]) -> Run:
    """Runs files of tests in tmp_path. Returns the exit status and what is printed."""
    command, environment = inner_pytest

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run([*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def tests(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "claims").mkdir()
    (tmp_path / "test_first.py").write_text(FIRST)
    # The second file is taken before the last test of the first runs, so that fixtures of the session stay.
    (tmp_path / "test_second.py").write_text(SECOND.format(expected=False))
    (tmp_path / "test_third.py").write_text(SECOND.format(expected=True))
    return tmp_path


def test_each_file_is_collected_when_the_one_before_has_run(tests: pathlib.Path, run: Run) -> None:
    files = ["test_first.py", "test_second.py", "test_third.py"]
    status, output = run("--claims=claims", "-m", "not wide", *files)
    assert status == 0 and "4 passed, 1 deselected" in output, output
    assert len(os.listdir(tests / "claims")) == len(files)
    status, output = run("--claims=claims", *files)
    assert status == 0 and "no tests ran" in output, output


def test_error_of_a_file_does_not_keep_the_others_from_running(tests: pathlib.Path, run: Run) -> None:
    (tests / "test_first.py").write_text("def test(): pass\nraise ValueError('broken file')")
    words = ["--claims=claims", "--continue-on-collection-errors", "test_first.py", "test_second.py"]
    status, output = run(*words)
    assert status == 1 and "broken file" in output and "1 passed, 1 error" in output, output


FAILED = """
import gc, weakref

class Kept:
    pass

found, many = [], []

def test_fails():
    kept = Kept()
    kept.itself = kept
    found.append(weakref.ref(kept))
    many.extend([] for _ in range(30_000))
    assert kept is None

def test_comes_after():
    gc.collect()
    assert found[0]() is None
"""


def test_objects_of_a_failed_test_are_freed(tmp_path: pathlib.Path, run: Run) -> None:
    (tmp_path / "test_file.py").write_text(FAILED)
    status, output = run("test_file.py")
    assert status == 1 and "1 failed, 1 passed" in output, output


ENDLESS = """
import time
from hypothesis import given, strategies as st

@given(st.integers())
def test_hangs(number):
    while True:
        time.sleep(0.01)
"""


def test_drawn_example_that_never_ends_ends_the_run(tmp_path: pathlib.Path, run: Run) -> None:
    """Hypothesis takes the exception of the time limit for one of the example, and runs the example again."""
    (tmp_path / "test_file.py").write_text(ENDLESS)
    status, output = run("-o", "timeout=1", "-o", "faulthandler_timeout=3", "test_file.py")
    assert status != 0 and "test_file.py" in output and "in test_hangs" in output, output
