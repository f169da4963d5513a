# SPDX-License-Identifier: Apache-2.0
"""`headrace cache` without warm, as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import headrace
import numpy as np
import pytest
from program import run


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "texts.hr"
    headrace.freeze([f"text {i}" for i in range(300_000)], path)
    return path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_intact_image_is_reported_as_intact(image: Path) -> None:
    result = run("cache", "verify", str(image))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{image}: {image.stat().st_size} bytes, no damage found\n"


def test_each_file_is_looked_at_and_what_is_damaged_is_named(image: Path, tmp_path: Path) -> None:
    damaged, short, text = (tmp_path / name for name in ("damaged.hr", "short.hr", "text.hr"))
    data = bytearray(image.read_bytes())
    short.write_bytes(data[:-1])
    data[len(data) // 2] ^= 1  # in the middle of the texts, which opening alone does not check
    damaged.write_bytes(data)
    text.write_text("text")
    missing = tmp_path / "missing.hr"
    result = run("cache", "verify", *map(str, (damaged, short, text, missing, image)))
    assert result.returncode == 1
    assert result.stdout.splitlines() == [f"{image}: {image.stat().st_size} bytes, no damage found"]
    lines = result.stderr.splitlines()
    assert all(line.startswith("headrace: ") for line in lines)
    assert [str(path) in line for path, line in zip((damaged, short, text, missing), lines, strict=True)] == [True] * 4


def test_a_wrong_word_is_named() -> None:
    result = run("cache", "verfy", "file")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "headrace: unknown cache command 'verfy'; there is warm, ls, info, verify, rm, gc\n"


@pytest.mark.parametrize("arguments", [[], ["warm"], ["info"], ["verify"], ["rm"]])
def test_without_arguments_it_shows_how(arguments: list[str]) -> None:
    result = run("cache", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == run("cache", *arguments, "--help").stdout
    assert result.stderr.startswith("Usage: headrace cache")


@pytest.mark.parametrize("command", ["warm", "ls", "info", "verify", "rm", "gc"])
def test_each_command_has_help(command: str) -> None:
    for arguments in ([command, "--help"], [command, "-h"], [command, "name", "--help"]):
        result = run("cache", *arguments)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith(f"Usage: headrace cache {command}")
    assert f"\n  {command} " in run("cache", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ls", "--al"], "unknown option '--al'"),
        (["rm", "a", "--version"], "a value is missing after '--version'"),
        (["ls", "--json=1"], "this option takes no value"),
        (["ls", "name"], "ls takes no names"),
        (["info", "a", "b"], "give one name"),
        (["gc", "--older", "7x"], "--older is '7x'"),
        (["gc", "--quota", "-1"], "--quota is '-1'"),
        (["gc", "name"], "gc takes no names"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], text: str, root: Path) -> None:
    result = run("cache", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("headrace: ") and text in result.stderr


def test_ls_info_verify_and_rm_follow_an_object(root: Path) -> None:
    assert "nothing in" in run("cache", "ls").stdout
    kept = headrace.cache.put("rows", np.arange(1000))
    assert [line.split()[0] for line in run("cache", "ls").stdout.splitlines()] == ["NAME", "rows"]
    (entry,) = json.loads(run("cache", "ls", "--json").stdout)
    assert (entry["name"], entry["state"], entry["bytes"], entry["processes"]) == ("rows", "ready", 8000, 1)
    text = run("cache", "info", "rows").stdout
    assert f"pid {os.getpid()}" in text and "7.8 KiB (8000 bytes)" in text
    info = json.loads(run("cache", "info", "rows", "--json").stdout)
    assert [claim["pid"] for claim in info["claims"]] == [os.getpid()]
    assert run("cache", "verify", "rows").stdout == "rows: 8000 bytes, no damage found\n"
    refused = run("cache", "rm", "rows")
    assert refused.returncode == 1 and "processes have 'rows'" in refused.stderr
    assert run("cache", "rm", "rows", "--force").stdout == "removed rows\n"
    assert "removed" in run("cache", "ls").stdout
    assert kept[7] == 7
    del kept
    assert json.loads(run("cache", "ls", "--json").stdout) == []
    for command in ("info", "rm", "verify"):
        missing = run("cache", command, "rows")
        assert missing.returncode == 1 and "there is no 'rows'" in missing.stderr


def test_folder_with_name_of_object_is_no_file_to_verify(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = headrace.cache.put("feats", np.arange(3))
    (tmp_path / "feats").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("cache", "verify", "feats").stdout == f"feats: {kept.nbytes} bytes, no damage found\n"


def test_verify_finds_damage(root: Path) -> None:
    headrace.cache.put("rows", np.arange(1000))
    path = Path(headrace.cache.info("rows").path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = run("cache", "verify", "rows", "--json")
    assert result.returncode == 1
    (found,) = json.loads(result.stdout)
    assert not found["ok"] and "do not match their checksum" in found["message"]


def test_gc_deletes_down_to_a_size(root: Path) -> None:
    for name in ("a", "b"):
        headrace.cache.put(name, np.arange(1000))
    assert "would delete a, version 0" in run("cache", "gc", "--quota", "10K", "--dry-run").stdout
    assert len(headrace.cache.ls()) == 2
    result = json.loads(run("cache", "gc", "--quota=10K", "--json").stdout)
    assert (result["objects"], result["bytes_left"]) == (1, 8000)
    assert [entry.name for entry in headrace.cache.ls()] == ["b"]
    kept = headrace.cache("b")
    full = run("cache", "gc", "--quota", "0")
    assert full.returncode == 1 and "processes have the rest" in full.stderr
    assert len(kept) == 1000


def test_bad_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("cache", "ls", "--root", str(tmp_path / "file"))
    assert result.returncode == 1 and "is not a folder" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["ls"], 0, "nothing in the cache"),
        (["ls", "--json"], 0, "[]"),
        (["info", "rows"], 1, "there is no 'rows'"),
        (["rm", "rows"], 1, "the cache is empty"),
        (["gc"], 0, "deleted 0 objects"),
    ],
)
def test_looking_makes_no_cache(tmp_path: Path, words: list[str], code: int, text: str) -> None:
    result = run("cache", *words, env={**os.environ, "HEADRACE_CACHE": str(tmp_path / "none")})
    assert (result.returncode, text in result.stdout + result.stderr) == (code, True), result
    assert list(tmp_path.iterdir()) == []
