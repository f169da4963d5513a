# SPDX-License-Identifier: Apache-2.0
"""Runs of pytest share files of tests (`--claims` of tests/conftest.py), and what a failed test made is freed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from common import ROOT

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


def _run(folder: pathlib.Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DEBUG_TEMPROOT": str(folder)}
    done = subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tests(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "claims").mkdir()
    (tmp_path / "test_first.py").write_text(FIRST)
    # The second file is taken before the last test of the first runs, so that fixtures of the session stay.
    (tmp_path / "test_second.py").write_text(SECOND.format(expected=False))
    (tmp_path / "test_third.py").write_text(SECOND.format(expected=True))
    return tmp_path


def test_each_file_is_collected_when_the_one_before_has_run(tests: pathlib.Path) -> None:
    files = ["test_first.py", "test_second.py", "test_third.py"]
    status, output = _run(tests, "--claims=claims", "-m", "not wide", *files)
    assert status == 0 and "4 passed, 1 deselected" in output, output
    assert len(os.listdir(tests / "claims")) == len(files)
    status, output = _run(tests, "--claims=claims", *files)
    assert status == 0 and "no tests ran" in output, output


def test_error_of_a_file_does_not_keep_the_others_from_running(tests: pathlib.Path) -> None:
    (tests / "test_first.py").write_text("def test(): pass\nraise ValueError('broken file')")
    words = ["--claims=claims", "--continue-on-collection-errors", "test_first.py", "test_second.py"]
    status, output = _run(tests, *words)
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


def test_objects_of_a_failed_test_are_freed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_file.py").write_text(FAILED)
    status, output = _run(tmp_path, "test_file.py")
    assert status == 1 and "1 failed, 1 passed" in output, output
