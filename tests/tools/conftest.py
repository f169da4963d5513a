# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

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
