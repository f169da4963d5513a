# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

ROOT = TOOLS.parent

Result = subprocess.CompletedProcess[str]


@pytest.fixture
def run_tool() -> Callable[..., Result]:
    """Runs a script of tools/ with arguments, as make does."""

    def run(name: str, *arguments: str | Path) -> Result:
        return subprocess.run([sys.executable, TOOLS / name, *arguments], capture_output=True, text=True, timeout=100)

    return run


@pytest.fixture
def write_files(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes files, named by their paths, into a new folder."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture
def inner_pytest(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """A command, and its environment, that runs the tests of files in tmp_path as those of this repository are run."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest"]
    folders = {"PYTEST_DEBUG_TEMPROOT": str(tmp_path), "TMPDIR": str(tmp_path)}
    return command, {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **folders}
