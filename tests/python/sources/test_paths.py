# SPDX-License-Identifier: Apache-2.0
"""Paths of sources: patterns, braces, lists, and files that come twice."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest
from headrace import sources
from headrace.sources._paths import find_files, warn_of_repeats


def make(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).touch()


def names(folder: pathlib.Path, paths: Any) -> list[str]:
    return [os.path.relpath(path, folder) for path in find_files(paths, "Tokens")]


def test_pattern_is_sorted_by_bytes(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "a-10", "a-9", "a-B", "a-a", "b-1", "a-é", "x/a-1")
    (tmp_path / "a-folder").mkdir()
    assert names(tmp_path, tmp_path / "a-*") == ["a-10", "a-9", "a-B", "a-a", "a-é"]
    assert names(tmp_path, f"{tmp_path}/**/a-1*") == ["a-10", "x/a-1"]
    assert names(tmp_path, [f"{tmp_path}/b-*", f"{tmp_path}/a-[0-9]"]) == ["b-1", "a-9"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("{000..003}", ["000", "001", "002", "003"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{00..10..2}", ["{00..10..2}"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{b,a}{0..1}", ["b0", "b1", "a0", "a1"]),
        ("{x}{1,2}", ["{x}1", "{x}2"]),
    ],
)
def test_braces_stand_for_names_in_order(tmp_path: pathlib.Path, pattern: str, wanted: list[str]) -> None:
    assert names(tmp_path, f"{tmp_path}/{pattern}") == wanted


def test_braces_and_patterns_combine(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "a-1.bin", "a-2.bin", "b-1.bin", "c-1.bin")
    assert names(tmp_path, f"{tmp_path}/{{b,a}}-*.bin") == ["b-1.bin", "a-1.bin", "a-2.bin"]


def test_path_that_exists_is_no_pattern(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "a[1].bin", "a1.bin", "{0..1}")
    assert names(tmp_path, tmp_path / "a[1].bin") == ["a[1].bin"]
    assert names(tmp_path, [tmp_path / "{0..1}", os.fsencode(tmp_path / "a1.bin")]) == ["{0..1}", "a1.bin"]


@pytest.mark.parametrize(
    ("paths", "error", "text"),
    [
        ("none-*.bin", FileNotFoundError, "Tokens: no file matches 'none-\\*.bin'"),
        ([], ValueError, "Tokens: the list of paths is empty"),
        ([""], ValueError, "a path is empty"),
        (7, TypeError, "paths should be a path, a pattern, or a list"),
        ({"b", "a"}, TypeError, "a list of these in order"),
        (["a", 7], TypeError, "a path should be a str or pathlib.Path, but got 7"),
        ("{a,{b,c}}", ValueError, "has braces within braces"),
        ("{0..99999999999}", ValueError, "stands for more than 10,000,000 files"),
    ],
)
def test_wrong_paths_are_named(paths: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        find_files(paths, "Tokens")


def test_file_that_comes_twice_is_a_warning(tmp_path: pathlib.Path, recwarn: pytest.WarningsRecorder) -> None:
    make(tmp_path, "a", "b")
    (tmp_path / "c").symlink_to("a")
    a, b, c = (str(tmp_path / name) for name in "abc")
    warn_of_repeats([a, b], "Tokens")
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"sources\.Tokens: '.*/a' comes twice; their samples are repeated"):
        warn_of_repeats([a, b, a], "Tokens")
    with pytest.warns(UserWarning, match="c' comes twice, the first time as '.*/a', and so do 1 others"):
        warn_of_repeats([a, c, b, b], "Tokens")


def test_folder_of_objects_is_refused_with_a_pattern(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "a.jpg")
    with pytest.raises(ValueError, match=re.escape(f"if it is a folder, give its files: {tmp_path}/*")):
        sources.Objects(tmp_path)
