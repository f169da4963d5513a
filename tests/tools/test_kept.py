# SPDX-License-Identifier: Apache-2.0
"""A check that has held for the same bytes is not run again, in any checkout; anything else runs it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import check
import kept
import pytest


class Checkout:
    """A folder with one source, and a check that counts its runs."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: pathlib.Path) -> None:
        self.folder, self.runs = folder, 0
        patch.setattr(check, "ROOT", folder)
        patch.setitem(check.BY_NAME, "fuzz", self.count)
        self.write("src/ring.c", "int a;")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        kept.content_of.cache_clear()

    def count(self) -> None:
        self.runs += 1

    def run(self) -> tuple[bool, str]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return check.run_if_new("fuzz", paths)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(kept, "IS_FRESH", False)
    return tmp_path / "cache"


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, cache: pathlib.Path) -> Checkout:
    return Checkout(monkeypatch, tmp_path / "one")


def test_check_that_held_is_not_run_again(checkout: Checkout) -> None:
    assert checkout.run()[0]
    assert checkout.run() == (True, "ok    fuzz (has held for the same files)")
    assert checkout.runs == 1


def test_check_that_held_in_another_checkout_is_not_run(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    checkout.run()
    other = Checkout(monkeypatch, tmp_path / "two")
    assert other.run()[0] and other.runs == 0


CHANGES: dict[str, Callable[[Checkout, pytest.MonkeyPatch], None]] = {
    "source": lambda checkout, _: checkout.write("src/ring.c", "int b;"),
    "new file": lambda checkout, _: checkout.write("src/new.h", ""),
    "the check": lambda checkout, _: checkout.write("tools/check.py", ""),
    "requirements": lambda checkout, _: checkout.write("requirements-dev.txt", "ruff==1"),
    "machine": lambda _, patch: patch.setattr(check, "describe_machine", lambda: ["another kernel"]),
    "FRESH=1": lambda _, patch: patch.setattr(kept, "IS_FRESH", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_input_runs_check_again(checkout: Checkout, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    checkout.run()
    CHANGES[change](checkout, monkeypatch)
    assert checkout.run()[0] and checkout.runs == 2


def test_file_that_is_no_input_does_not_run_check_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.write("docs/start.md", "")
    assert checkout.run()[0] and checkout.runs == 1


def test_failed_check_runs_again(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        checkout.count()
        raise check.Failed("a leak")

    monkeypatch.setitem(check.BY_NAME, "fuzz", fail)
    assert [checkout.run(), checkout.run()] == [(False, "FAIL  fuzz\na leak")] * 2
    assert checkout.runs == 2


def test_clang_tidy_result_depends_on_headers_and_options(tmp_path: pathlib.Path, cache: pathlib.Path) -> None:
    source, header = tmp_path / "a.c", tmp_path / "a.h"
    source.write_text('#include "a.h"\n')
    command = {"command": "cc -O2 -c a.c"}
    keys = []
    for text in ("int a;", "int b;"):
        header.write_text(text)
        kept.content_of.cache_clear()
        keys.append(check.tidy_key(command, [source, header]))
    keys.append(check.tidy_key({"command": "cc -O3 -c a.c"}, [source, header]))
    assert len(set(keys)) == 3
    assert check.tidy_key(command, [source, header]) == keys[1]


def test_result_that_was_not_used_for_long_is_removed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path
) -> None:
    checkout.run()
    kept.remove_unused()
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(kept, "UNUSED_S", -1.0)
    kept.remove_unused()
    assert list(cache.iterdir()) == []
