# SPDX-License-Identifier: Apache-2.0
"""Programs that PyInstaller and others have made: sys.executable is the program, and no interpreter. The program is a
shell script that runs a Python script here, as the bootloader of such a program does."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys
from typing import Any

import pytest
from headrace._base import program
from headrace._loader.forkserver import client, context
from headrace._loader.start import contexts
from main_classes import MAIN_CLASSES

DEADLINE_S = 120

# What the bootloader and the hooks of PyInstaller do: the file of the main module is in the program, and
# freeze_support() runs the two commands by which multiprocessing starts its helpers.
BOOTLOADER = """
import multiprocessing, multiprocessing.spawn, os, sys
sys.frozen = True
sys.executable = os.environ["APP"]
multiprocessing.set_executable(sys.executable)
__file__ = "/nowhere/app.py"

def freeze_support():
    commands = tuple(f"from multiprocessing.{name} import main" for name in ("resource_tracker", "forkserver"))
    if sys.argv[-2:-1] == ["-c"] and sys.argv[-1].startswith(commands):
        exec(sys.argv[-1])
        sys.exit()
    multiprocessing.spawn.freeze_support()
"""
SCRIPT = """
import {module}

{classes}
if __name__ == "__main__":
    freeze_support()
    with open(os.environ["STARTS"], "a") as file:
        file.write("main ")
    loader = {loader}(Data(), 4, num_workers=1, multiprocessing_context={method!r})
    print([int(value) for batch in loader for value in batch])
"""


def run_frozen(folder: pathlib.Path, code: str, limit_starts: int = 3) -> tuple[str, str, int]:
    """Returns what the program prints to stdout and stderr, and how often its main function ran."""
    (folder / "script.py").write_text(BOOTLOADER + code)
    starts, app = folder / "starts", folder / "app"
    starts.touch()
    app.write_text(
        f'#!/bin/sh\ntest "$(wc -w < "{starts}")" -ge {limit_starts} && exit 1\n'
        f'exec "{sys.executable}" "{folder / "script.py"}" "$@"\n'
    )
    app.chmod(app.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "APP": str(app), "STARTS": str(starts)}
    done = subprocess.run([app], env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout, done.stderr, len(starts.read_text().split())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn", "headrace"])
def test_each_start_method_works(tmp_path: pathlib.Path, method: str) -> None:
    """The class of the samples is in the main script."""
    code = SCRIPT.format(module="headrace", loader="headrace.Loader", method=method, classes=MAIN_CLASSES)
    assert run_frozen(tmp_path, code) == (f"{[10 * index for index in range(8)]}\n", "", 1)


def test_torchs_loader_works_with_headraces_method(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    code = SCRIPT.format(
        module="headrace.torch", loader="headrace.torch.DataLoader", method="headrace", classes=MAIN_CLASSES
    )
    stdout, stderr, starts = run_frozen(tmp_path, code)
    assert (stdout, starts) == (f"{[10 * index for index in range(8)]}\n", 1), stderr


@pytest.mark.parametrize(("mark", "method"), [("frozen", "forkserver"), ("oxidized", "spawn")])
def test_headraces_method_is_one_of_multiprocessings(monkeypatch: pytest.MonkeyPatch, mark: str, method: str) -> None:
    assert context.called_headrace().get_start_method() == "forkserver" and not program.is_frozen()
    monkeypatch.setattr(sys, mark, True, raising=False)
    assert context.called_headrace().get_start_method() == method
    assert not contexts.is_headrace(context.called_headrace()) and contexts.main_has_file()


def test_programs_of_nuitka_are_known_by_their_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__compiled__", object(), raising=False)
    assert program.is_frozen() and program.frozen_method() == "spawn"


def test_server_is_never_started_as_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(client.util, "spawnv_passfds", lambda *arguments: started.append(arguments))
    with pytest.raises(RuntimeError, match=r'is a frozen program .* use multiprocessing_context="forkserver"'):
        client._start([0, 0, 0, 0])
    assert started == []
