# SPDX-License-Identifier: Apache-2.0
"""`--claims FOLDER`: runs of pytest at the same time share the test files; each takes the next free one.

`--costs FILE`: the seconds of each test are written into a file."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest
import warm
from processes import CACHE_PREFIX

warm.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=pathlib.Path, help="a folder where concurrent runs note the files that they take")
    parser.addoption("--costs", type=pathlib.Path, help="a file for the seconds that each test took")


class Claims:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def take(self, file: pathlib.Path) -> bool:
        """Takes a file of tests. Returns False if another run has taken it."""
        try:
            (self.folder / str(file).replace("/", "-")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        ours: dict[pathlib.Path, bool] = {}
        for item in session.items:
            if item.path not in ours:
                ours[item.path] = self.take(item.path)
            if ours[item.path]:
                yield item

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests like pytest's own loop, but takes each file before its first test."""
        items = self.items(session)
        item = None if session.config.option.collectonly else next(items, None)
        while item is not None:
            following = next(items, None)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CACHES] = os.environ["HEADRACE_CACHE"] = tempfile.mkdtemp(prefix=CACHE_PREFIX, dir="/dev/shm")
    folder = config.getoption("--claims")
    if folder is not None:
        config.pluginmanager.register(Claims(folder))
    path = config.getoption("--costs")
    if path is not None:
        from costs import CostPlugin  # of tools/, which is in the path when the configuration has been read

        config.pluginmanager.register(CostPlugin(path, lambda: warm.forked))


_CACHES = pytest.StashKey[str]()  # the folder of the caches of tests that do not name one


def pytest_unconfigure(config: pytest.Config) -> None:
    warm.close()
    shutil.rmtree(config.stash[_CACHES], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(not mark.args for mark in item.iter_markers("cold")):
            raise pytest.UsageError(f"{item.nodeid}: say why it needs new processes: @pytest.mark.cold(REASON)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture, because some start scripts."""
    warm.is_wanted = item.get_closest_marker("cold") is None
