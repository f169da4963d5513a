# SPDX-License-Identifier: Apache-2.0
"""`headrace cache warm`, as a user types it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace import _core
from program import PROGRAM, run

PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "one.npy", np.arange(12.0).reshape(3, 4))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(12).reshape(3, 4)))
    np.savez(folder / "scene.npz", clip=np.arange(5, dtype=">i2"), empty=np.empty((0, 3)), zero=np.array(7))
    np.savez_compressed(folder / "packed.npz", a=np.arange(100_000) // 3, text=np.array(["a", "bcd"]))
    return folder


def expect_contents(files: Any, folder: Path) -> None:
    paths = {path.stem: path for path in folder.iterdir()}
    assert set(files) == set(paths) and len(files) == len(paths)
    for stem, path in paths.items():
        expected = np.load(path)
        parts = {"": (files[stem], expected)}
        if path.suffix == ".npz":
            parts = {name: (files[stem][name], expected[name]) for name in expected.files}
            assert set(files[stem]) == set(expected.files)
        for found, wanted in parts.values():
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype and not found.flags.writeable
            assert found.flags.f_contiguous == wanted.flags.f_contiguous


def test_warm_copies_a_folder_once(folder: Path) -> None:
    result = run("cache", "warm", str(folder), "--name", "data")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("data: 7 arrays of 4 files, ") and "copied in" in result.stdout
    expect_contents(headrace.cache("data"), folder)
    headrace.cache.verify("data")
    assert "already there" in run("cache", "warm", str(folder), "--name", "data").stdout
    np.save(folder / "one.npy", np.zeros(3))
    assert json.loads(run("cache", "warm", str(folder), "--name", "data", "--json").stdout)["built"]
    expect_contents(headrace.cache("data"), folder)
    assert "missing" not in headrace.cache("data")
    with pytest.raises(KeyError):
        headrace.cache("data")["missing"]


def test_add_does_the_same_as_warm(folder: Path) -> None:
    expect_contents(headrace.cache.add("data", folder), folder)
    identity = headrace.cache.info("data").id
    run("cache", "warm", str(folder), "--name", "data")
    assert headrace.cache.info("data").id == identity
    assert headrace.cache.add("scene", folder / "scene.npz")["scene"]["zero"] == 7


def test_patterns_in_quotes_are_expanded(folder: Path) -> None:
    run("cache", "warm", f"{folder}/*.npy", "--name", "data")
    assert set(headrace.cache("data")) == {"one", "fortran"}


def test_missing_keys_are_listed_before_copying(folder: Path) -> None:
    result = run("cache", "warm", str(folder), "--name", "data", "--require-keys", "clip,a")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "fortran lacks clip,a",
        "one lacks clip,a",
        "packed lacks clip",
        "scene lacks a",
    ]
    assert "4 scenes lack keys; nothing was copied" in result.stderr
    assert headrace.cache.ls() == []
    found = json.loads(run("cache", "warm", f"{folder}/s*", "--name", "d", "--require-keys", "b", "--json").stdout)
    assert found == {"missing": [{"scene": "scene", "keys": "b"}]}
    assert run("cache", "warm", f"{folder}/s*", "--name", "d", "--require-keys", "clip,zero").returncode == 0


def test_dry_run_says_size_and_place(folder: Path) -> None:
    result = run("cache", "warm", str(folder), "--name", "data", "--dry-run")
    assert result.returncode == 0 and "7 arrays of 4 files" in result.stdout
    assert "it would be in" in result.stdout and "it takes about" in result.stdout
    plan = json.loads(run("cache", "warm", str(folder), "--name", "data", "--dry-run", "--json").stdout)
    assert plan["fits"] and plan["files"] == 4
    assert headrace.cache.ls() == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["{folder}"], 2, "--name NAME"),
        (["--name", "x"], 2, "give files, folders or patterns"),
        (["{folder}", "--name", "a/b"], 1, "has a slash"),
        (["{folder}", "--name", "x", "--keep", "ever"], 2, "give job, boot or disk"),
        (["{folder}", "--name", "x", "--workers", "0"], 2, "a number from 1 to 1024"),
        (["{folder}/none*", "--name", "x"], 1, "no file matches"),
        (["/does/not/exist", "--name", "x"], 1, "/does/not/exist"),
    ],
)
def test_wrong_usage_is_explained(folder: Path, arguments: list[str], code: int, text: str) -> None:
    result = run("cache", "warm", *(word.format(folder=folder) for word in arguments))
    assert (result.returncode, result.stdout) == (code, "")
    assert text in result.stderr


def test_bad_files_are_named(folder: Path) -> None:
    np.save(folder / "objects.npy", np.array([{}, None]), allow_pickle=True)
    result = run("cache", "warm", str(folder), "--name", "data")
    assert result.returncode == 1 and "objects.npy has elements of dtype |O" in result.stderr
    (folder / "objects.npy").unlink()
    (folder / "deep").mkdir()
    np.save(folder / "deep" / "one.npy", np.zeros(1))
    result = run("cache", "warm", str(folder), "--name", "data")
    assert result.returncode == 1 and "would both be found as 'one'" in result.stderr


@pytest.mark.skipif(not _core.FAILPOINTS, reason="needs failpoints")
def test_killed_warm_is_continued(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "large.npy", np.arange(10_000_000))  # 80 MB: several chunks
    monkeypatch.setenv("HEADRACE_STOP", "cache.marked:9:2")
    assert run("cache", "warm", str(folder), "--name", "data", "--workers", "1").returncode == -9
    assert [entry.state for entry in headrace.cache.ls()] == ["unfinished"]
    monkeypatch.setenv("HEADRACE_STOP", "cache.marked:9:2")  # one chunk is left: the second mark does not come
    assert run("cache", "warm", str(folder), "--name", "data", "--workers", "1").returncode == 0
    monkeypatch.delenv("HEADRACE_STOP")
    expect_contents(headrace.cache("data"), folder)
    headrace.cache.verify("data")


def _start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, "cache", "warm", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_hold_removes_at_the_end(folder: Path, number: int) -> None:
    process = _start(str(folder), "--name", "data", "--hold")
    assert process.stderr is not None
    assert "holding data" in process.stderr.readline()
    files = headrace.cache("data")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "removed data" in errors
    with pytest.raises(KeyError):
        headrace.cache("data")
    expect_contents(files, folder)
    assert [entry.state for entry in headrace.cache.ls()] == ["removed"]
    del files
    assert headrace.cache.ls() == []


@pytest.mark.skipif(not _core.FAILPOINTS, reason="needs failpoints")
def test_interrupted_warm_keeps_what_it_copied(folder: Path) -> None:
    np.save(folder / "large.npy", np.arange(10_000_000))
    stop = {**os.environ, "HEADRACE_STOP": "cache.marked:19:1"}  # SIGSTOP after the first chunk
    process = _start(str(folder), "--name", "data", "--workers", "1", env=stop)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    found = (process.returncode, errors, [entry.state for entry in headrace.cache.ls()])
    assert found == (
        130,
        "headrace: stopped; what was copied is kept, run the command again to continue\n",
        ["unfinished"],
    )
    assert run("cache", "warm", str(folder), "--name", "data").returncode == 0
    expect_contents(headrace.cache("data"), folder)


def test_bar_is_drawn_on_a_terminal_only(folder: Path) -> None:
    np.save(folder / "large.npy", np.zeros(60_000_000))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "cache", "warm", str(folder), "--name", "data", "--workers", "1"], stderr=theirs, stdout=theirs
    )
    os.close(theirs)
    drawn = b""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            drawn += os.read(ours, 4096)
        except OSError:  # the program has ended
            break
    os.close(ours)
    assert process.wait() == 0
    assert b"\r\x1b[K" in drawn and (b"MiB/s" in drawn or b"GiB/s" in drawn)
    assert run("cache", "warm", str(folder), "--name", "again").stderr == ""
