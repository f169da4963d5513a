# SPDX-License-Identifier: Apache-2.0
"""A program that PyInstaller makes of a script with a loader; test_frozen_programs.py has what needs no PyInstaller."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from headrace import _core
from main_classes import MAIN_CLASSES

pytest.importorskip("PyInstaller")
DEADLINE_S = 600
SCRIPT = f"""
import multiprocessing, sys, time
import headrace
{MAIN_CLASSES}
if __name__ == "__main__":
    multiprocessing.freeze_support()
    print("begins", flush=True)
    loader = headrace.Loader(Data(), 4, num_workers=1, multiprocessing_context=sys.argv[1], record=sys.argv[2])
    iterator = iter(loader)
    values = [int(value) for value in next(iterator)]
    time.sleep(1)  # longer than between two looks of the recorder
    print([*values, *(int(value) for batch in iterator for value in batch)])
"""
METHODS = ["fork", "forkserver", "spawn", "headrace"]
LEFT_OUT = ["torch", "headrace.torch", "torchvision", "pandas", "PIL"]  # they make the program large


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pyinstaller")
    (folder / "app.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "ERROR", "--onedir"]
    command += ["--collect-submodules", "headrace", *(f"--exclude-module={name}" for name in LEFT_OUT), "app.py"]
    subprocess.run(command, cwd=folder, check=True, timeout=DEADLINE_S)
    return folder / "dist" / "app" / "app"


@pytest.mark.parametrize("method", METHODS)
def test_each_start_method_works_and_is_recorded(app: pathlib.Path, tmp_path: pathlib.Path, method: str) -> None:
    """The class of the samples is in the main script, which runs once."""
    command = [app, method, tmp_path / "run1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == (f"begins\n{[10 * index for index in range(8)]}\n", "")
    (file,) = (tmp_path / "run1").iterdir()
    assert _core.Recording(file).ended == "the job ended"
