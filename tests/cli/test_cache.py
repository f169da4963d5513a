# SPDX-License-Identifier: Apache-2.0
"""`headrace cache`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import headrace
import pytest
from program import run


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "texts.hr"
    headrace.freeze([f"text {i}" for i in range(300_000)], path)
    return path


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
    assert result.stderr == "headrace: unknown cache command 'verfy'; there is verify\n"


@pytest.mark.parametrize("arguments", [[], ["verify"]])
def test_without_a_file_it_shows_how(arguments: list[str]) -> None:
    result = run("cache", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == run("cache", "--help").stdout
    assert result.stderr.startswith("Usage: headrace cache verify FILE...\n")


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["verify", "-h"]])
def test_help_is_given_wherever_it_is_asked_for(arguments: list[str]) -> None:
    result = run("cache", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: headrace cache verify")
