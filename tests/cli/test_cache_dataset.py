# SPDX-License-Identifier: Apache-2.0
"""headrace cache warm --dataset: the samples of a dataset, as a shell user keeps them."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import headrace
import pytest
from headrace._cache import tables
from program import PROGRAM

SCRIPT = """
import os, time
import numpy as np

class Squares:
    def __init__(self, count=20):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return np.full(100, index * index)

class Bad(Squares):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("square 7 is bad")
        return super().__getitem__(index)

class Deadly(Squares):
    def __getitem__(self, index):
        if index == 7:
            os.kill(os.getpid(), 9)
        return super().__getitem__(index)

class Slow(Squares):
    def __getitem__(self, index):
        time.sleep(0.1)
        return super().__getitem__(index)

def make():
    return Squares()

slow = Slow(1000)

made = Squares()
bad = Bad()
number = 3
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    (tmp_path / "squares.py").write_text(SCRIPT)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    tables._kept.clear()


def _warm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), "cache", "warm", *words], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("source", ["squares:make", "squares:made", "squares.py:Squares"])
def test_samples_are_there_for_a_job(folder: pathlib.Path, source: str) -> None:
    result = _warm("--dataset", source, "--name", "squares", "--budget=4M", "--workers", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("squares: 20 of 20 samples, ")
    (entry,) = headrace.cache.ls()
    assert (entry.name, entry.keep, entry.processes) == ("squares.samples", "boot", 0)
    again = _warm("--dataset", source, "--name", "squares", "--debug", "--json")
    assert json.loads(again.stdout)["ready"] == 20
    assert subprocess.run([str(PROGRAM), "cache", "verify", "squares.samples"]).returncode == 0
    assert subprocess.run([str(PROGRAM), "cache", "rm", "squares.samples"]).returncode == 0


def test_dry_run_keeps_nothing(folder: pathlib.Path) -> None:
    result = _warm("--dataset", "squares:made", "--dry-run")
    assert result.returncode == 0 and result.stdout.startswith("20 samples, about ")
    assert json.loads(_warm("--dataset", "squares:made", "--dry-run", "--json").stdout)["samples"] == 20
    assert headrace.cache.ls() == []


@pytest.mark.parametrize("how", [["--workers", "2"], ["--debug"]])
def test_sample_that_raises_is_shown(folder: pathlib.Path, how: list[str]) -> None:
    result = _warm("--dataset", "squares:bad", *how)
    assert result.returncode == 1 and "ValueError: square 7 is bad" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("headrace: the samples cannot be made")


def test_sample_that_kills_its_worker_is_named(folder: pathlib.Path) -> None:
    result = _warm("--dataset", "squares:Deadly", "--workers", "1")
    assert result.returncode == 1 and "a worker died while the workers made samples 7;" in result.stderr


def test_interrupted_command_keeps_what_it_made(folder: pathlib.Path) -> None:
    words = [str(PROGRAM), "cache", "warm", "--dataset", "squares:slow", "--name", "slow", "--workers", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 100
        while not any(entry.bytes > 2 << 20 for entry in headrace.cache.ls()) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
        errors = process.communicate(timeout=100)[1]
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "headrace: stopped; the samples that were made are kept"
    assert "Traceback" not in errors
    assert [entry.name for entry in headrace.cache.ls()] == ["slow.samples"]


def test_held_samples_go_with_the_command(folder: pathlib.Path) -> None:
    words = [str(PROGRAM), "cache", "warm", "--dataset", "squares:made", "--name", "held", "--hold", "--workers=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("held: 20 of 20")
        assert [entry.name for entry in headrace.cache.ls()] == ["held.samples"]
        assert process.stderr is not None
        while "holding" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    assert headrace.cache.ls() == []


BAD: list[tuple[list[str], str]] = [
    (["squares:none"], "has no 'none'"),
    (["nothing:made"], "No module named 'nothing'"),
    (["squares:number"], "gives no dataset"),
    (["squares:made", "--budget", "little"], "give a number of bytes"),
    (["squares:made", "--budget", "10"], "at least 1 MiB"),
    (["squares:made", "--keep", "week"], "invalid choice"),
    (["squares:made", "--workers", "-3"], "-1"),
    (["squares:made", "--name", "a/b"], "slash"),
    (["squares:made", "--require-keys", "a"], "unrecognized arguments"),
    ([], "expected one argument"),
]


@pytest.mark.parametrize(("words", "text"), BAD)
def test_bad_input_is_one_clear_message(folder: pathlib.Path, words: list[str], text: str) -> None:
    result = _warm("--dataset", *words)
    assert result.returncode == 2 and text in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert headrace.cache.ls() == []


def test_help_names_the_options() -> None:
    result = _warm("--dataset", "x", "--help")
    assert result.returncode == 0 and "--budget" in result.stdout and "--debug" in result.stdout


def test_progress_says_how_far(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace._base import progress

    monkeypatch.setattr(progress, "_FILE_S", 0.0)
    with progress.Progress("samples", 4, True) as shown:
        shown.add(3)
    lines = capsys.readouterr().err.splitlines()
    assert "samples: 75 %, 3 of 4, " in lines[0] and lines[1].startswith("samples: 3 of 4 in ")
    with progress.Progress("samples", 4) as shown:
        shown.add(1)
    assert capsys.readouterr().err == ""
