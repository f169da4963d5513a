# SPDX-License-Identifier: Apache-2.0
"""headrace can be imported if warnings are errors; tests/other_pythons.sh runs this without torch on each Python."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
MODULES = ["headrace", "headrace.doctor", "headrace.frozen", "headrace.torch"]
# In addition to those of torch, headrace.torch imports these of Python, and all of multiprocessing.
OF_PYTHON = {"_posixshmem", "faulthandler", "resource", "runpy", "shlex", "sysconfig"}  # some only after an older torch
IMPORT_AFTER_TORCH = """
import gc, sys, torch.utils.data
gc.collect()
collections, before, thresholds = [], set(sys.modules), gc.get_threshold()
gc.callbacks.append(lambda phase, info: collections.append(phase) if phase == "start" else None)
import headrace.torch
del gc.callbacks[:]
print(len(collections), gc.get_threshold() == thresholds, *sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("module", MODULES)
def test_import_gives_no_warning(module: str) -> None:
    if module == "headrace.torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if not HAS_GIL:
        pytest.skip("this Python runs without the GIL, which the import turns on, with a warning")
    command = [sys.executable, "-W", "error", "-c", f"import {module}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_public_names_are_found_without_a_warning() -> None:
    """The names that headrace imports late are resolved too."""
    code = "import headrace; [getattr(headrace, name) for name in headrace.__all__]; headrace.Loader([1]).__class__"
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("enabled", "words"), [("'headrace._core' in sys.modules", "turned the GIL on"), ("False", "runs without the GIL")]
)
def test_import_without_the_gil_warns_in_own_words(enabled: str, words: str) -> None:
    """On free-threaded Python, which is simulated here: Python's own warning advises PYTHON_GIL=0."""
    pythons = "The global interpreter lock (GIL) has been enabled to load module 'headrace._core'"
    code = f"""
import importlib.abc, sys, warnings
sys._is_gil_enabled = lambda: {enabled}
class Python(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "headrace._core": warnings.warn({pythons!r}, RuntimeWarning)
sys.meta_path.insert(0, Python())
import headrace
headrace.Loader
"""
    if not HAS_GIL:
        code = "import headrace; headrace.Loader"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert result.stderr.count("RuntimeWarning") == 1 and "<string>" in result.stderr
    assert words in result.stderr if HAS_GIL else "turned the GIL on" in result.stderr


def test_import_of_headrace_imports_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import headrace; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert set(result.stdout.split()) <= {"__future__", "headrace"}


def test_import_of_headrace_torch_adds_little_to_torch() -> None:
    """It imports few other modules, and the garbage collector visits the new objects once, at the end."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    command = [sys.executable, "-c", IMPORT_AFTER_TORCH]
    output = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    collections, has_same_thresholds, *modules = output.split()
    assert int(collections) <= 1 and has_same_thresholds == "True"
    assert {name.partition(".")[0] for name in modules} - {"headrace", "multiprocessing"} <= OF_PYTHON
