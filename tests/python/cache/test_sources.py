# SPDX-License-Identifier: Apache-2.0
"""headrace.cache(sources=): what is behind links belongs to a folder, and loops of links end."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import headrace
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("root")


def build() -> list[int]:
    return [1]


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a file, a link to a file, a folder and a link to a folder, which has such a link too."""
    for name in ("data/inside", "disk", "other", "far"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/own", "data/inside/a", "disk/a", "other/a", "far/a", "file", "file2"):
        (tmp_path / name).write_text("1")
    (tmp_path / "data/link").symlink_to("../disk")
    (tmp_path / "data/file").symlink_to(tmp_path / "file")
    (tmp_path / "disk/deep").symlink_to(tmp_path / "far")
    return tmp_path / "data"


def _turn(link: pathlib.Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


CHANGES: dict[str, Callable[[pathlib.Path], object]] = {
    "file": lambda data: (data / "own").write_text("22"),
    "file in a folder": lambda data: (data / "inside/a").write_text("22"),
    "file behind a link": lambda data: (data / "file").write_text("22"),
    "link to another file": lambda data: _turn(data / "file", "../file2"),
    "file in a folder behind a link": lambda data: (data / "link/a").write_text("22"),
    "file behind two links": lambda data: (data / "link/deep/a").write_text("22"),
    "new file behind a link": lambda data: (data / "link/b").write_text("1"),
    "file behind a link that goes": lambda data: (data / "link/a").unlink(),
    "link to another folder": lambda data: _turn(data / "link", "../other"),
    "deep link to another folder": lambda data: _turn(data / "link/deep", "../other"),
    "link to nothing": lambda data: (data / "lock").symlink_to("nothing@nowhere"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("around", ["folder", "link"])
def test_changes_are_seen(name: str, around: str, data: pathlib.Path) -> None:
    sources = data
    if around == "link":
        sources = data.parent / "around"
        sources.symlink_to(data)
    headrace.cache("n", build, sources=sources)
    before = headrace.cache.info("n").id
    CHANGES[name](data)
    headrace.cache("n", build, sources=sources)
    assert headrace.cache.info("n").id != before


@pytest.mark.timeout(60)
def test_loops_of_links_end(data: pathlib.Path) -> None:
    (data / "inside/loop").symlink_to("..")
    (data / "itself").symlink_to("itself")
    (data.parent / "far/back").symlink_to(data.parent)
    for number in range(40):  # 2 to the 40 ways lead through these
        folder = data / f"inside/{number}"
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(f"../{number + 1}")
    assert headrace.cache("n", build, sources=data)[0] == 1
    before = headrace.cache.info("n").id
    (data / "inside/39/c").write_text("1")
    headrace.cache("n", build, sources=data)
    assert headrace.cache.info("n").id != before


def test_an_equal_folder_is_not_built_again(data: pathlib.Path) -> None:
    for _ in range(3):
        headrace.cache("n", build, sources=[data, data / "own"])
    assert [entry.state for entry in headrace.cache.ls()] == ["ready"]


def test_relative_sources_are_absolute(data: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    headrace.cache("n", build, sources="data")
    before = headrace.cache.info("n").id
    headrace.cache("n", build, sources=data)
    assert headrace.cache.info("n").id == before
    (data / "inside/data").mkdir()
    monkeypatch.chdir(data / "inside")
    headrace.cache("n", build, sources="data")
    assert headrace.cache.info("n").id != before


@pytest.mark.timeout(60)
def test_folder_of_arrays_has_those_behind_links(data: pathlib.Path) -> None:
    """A link that leads back adds nothing."""
    np.save(data / "one.npy", np.ones(1))
    np.save(data / "link/two.npy", np.full(2, 2.0))
    np.save(data / "link/deep/three.npy", np.full(3, 3.0))
    (data / "inside/loop").symlink_to("..")
    (data / "itself").symlink_to("itself")
    files = headrace.cache.add("files", data)
    assert sorted(files) == ["one", "three", "two"] and list(files["two"]) == [2, 2]
    np.save(data / "link/two.npy", np.full(2, 5.0))
    assert list(headrace.cache.add("files", data)["two"]) == [5, 5]
    (data.parent / "around").symlink_to(data)
    assert sorted(headrace.cache.add("around", data.parent / "around")) == ["one", "three", "two"]
