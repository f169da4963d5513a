# SPDX-License-Identifier: Apache-2.0
"""headrace can be imported if warnings are errors; tests/other_pythons.sh runs this without torch on each Python."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

MODULES = ["headrace", "headrace.doctor", "headrace.frozen", "headrace.torch"]


@pytest.mark.parametrize("module", MODULES)
def test_import_gives_no_warning(module: str) -> None:
    if module == "headrace.torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    command = [sys.executable, "-W", "error", "-c", f"import {module}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_public_names_are_found_without_a_warning() -> None:
    """The names that headrace imports late are resolved too."""
    code = "import headrace; [getattr(headrace, name) for name in headrace.__all__]; headrace.Loader([1]).__class__"
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_import_of_headrace_imports_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import headrace; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert set(result.stdout.split()) <= {"__future__", "headrace"}
