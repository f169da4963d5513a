# SPDX-License-Identifier: Apache-2.0
"""Tests what the fetcher writes of the requests that it waits for, and what a trainer shows of that."""

from __future__ import annotations

import os
import pathlib
import threading

import pytest
from headrace import _core
from headrace._remote import waits

FILE = "v1/remote/waits"


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("HEADRACE_REMOTE", str(tmp_path))
    _core.remote_folder()  # makes it
    return tmp_path


def test_the_longest_are_described_first(root: pathlib.Path) -> None:
    here = waits.Waits()
    folder = str(root / "v1/remote")
    first = here.begin("https://host/first")
    first.begin -= 3600
    first.tries, first.failure = 7, "status 503"
    done = threading.Event()

    def wait(number: int) -> None:
        here.begin(f"https://host/{number}").begin -= number
        begun.wait()
        done.wait()
        here.end()

    begun = threading.Barrier(4)
    threads = [threading.Thread(target=wait, args=[number]) for number in (0, 60, 120)]
    for thread in threads:
        thread.start()
    begun.wait()
    here.write(folder)
    shown = waits.describe(2)
    done.set()
    for thread in threads:
        thread.join()
    lines = ["  https://host/first: status 503, 7 tries, for 3600 s", "  https://host/120: no answer yet, for 120 s"]
    assert shown.splitlines()[1:] == lines
    here.end()
    here.write(folder)
    assert not (root / FILE).exists()
    assert waits.describe() == ""


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", "[[1, 2]]", '[["a", "b", "c", "d"]]', "[]", "\udcff"])
def test_other_files_are_not_shown(content: str, root: pathlib.Path) -> None:
    (root / FILE).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert waits.describe() == ""


def test_file_of_a_fetcher_that_was_killed_is_not_shown(root: pathlib.Path) -> None:
    here = waits.Waits()
    here.begin("https://host/name").begin -= 60
    here.write(str(root / "v1/remote"))
    assert waits.describe() != ""
    os.utime(root / FILE, (0, 0))
    assert waits.describe() == ""


def test_opening_that_waits_says_for_what(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = waits.Waits()
    here.begin("https://host/name").begin -= 60
    here.write(str(root / "v1/remote"))
    said, has_said = list[str](), threading.Event()
    monkeypatch.setattr(waits, "say", lambda text: (said.append(text), has_said.set()))
    monkeypatch.setattr(waits, "_FIRST_S", 0.01)
    with waits.told("sources.Tar"):
        assert has_said.wait(60)
    assert said == ["sources.Tar waits for the network\n  https://host/name: no answer yet, for 60 s"]
    here.end()
