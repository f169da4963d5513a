# SPDX-License-Identifier: Apache-2.0
"""`--claims FOLDER`: runs of pytest at the same time share the test files; each takes the next free one.

`--costs FILE`: the seconds of each test are written into a file.

After every test that has passed: nothing that it made is left (lib/leftovers.py)."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import huge_pages
import pytest
import warm
from leftovers import PATIENCE_S, Leftovers, describe, mark_run

DEFAULT_TIMEOUT_S = 300
TORCHS_PATIENCE_S = 8.0
FEW_OBJECTS = 20_000  # a collection visits as many in a few milliseconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=pathlib.Path, help="a folder where concurrent runs note the files that they take")
    parser.addoption("--costs", type=pathlib.Path, help="a file for the seconds that each test took")


class Claims:
    """Collects and runs one file after another. A process that has collected all tests is three times as large, and
    starting a worker takes as much longer."""

    def __init__(self, folder: pathlib.Path, config: pytest.Config) -> None:
        self.folder = folder
        self.paths, config.args = config.args, []  # pytest itself collects nothing
        self.files: list[pytest.File] = []
        self.running = folder / f"running-{os.getpid()}"  # for run_tests.py, if this process dies

    def take(self, file: pathlib.Path) -> bool:
        """Takes a file of tests. Returns False if another run has taken it."""
        try:
            (self.folder / str(file).replace("/", "-")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def pytest_collection(self, session: pytest.Session) -> None:
        nodes = session.perform_collect(self.paths, genitems=False)  # imports no file
        self.files = [node for node in nodes if isinstance(node, pytest.File)]

    def items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        collected = 0
        for number, file in enumerate(self.files, start=1):
            if not self.take(file.path):
                continue
            self.running.write_text(f"the import of {file.path}")
            items = list(session.genitems(file))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            huge_pages.collapse()
            collected += len(items)
            # What pytest divides by to print how far it is: the share of the files.
            session.testscollected = collected * len(self.files) // number
            yield from items
        session.testscollected = collected

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests like pytest's own loop. It takes the next file before the last test of the one before."""
        items = self.items(session)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            self.running.write_text(item.nodeid)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.running.unlink(missing_ok=True)
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # the other runs have them
            session.exitstatus = pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    caches = os.environ["HEADRACE_CACHE"] = tempfile.mkdtemp(prefix="hrc-test-", dir="/dev/shm")  # if a test names none
    config.stash[_LEFTOVERS] = Leftovers(mark_run(), caches)
    warm.install()  # with the environment of this run
    folder = config.getoption("--claims")
    if folder is not None:
        config.pluginmanager.register(Claims(folder, config))
    path = config.getoption("--costs")
    if path is not None:
        from costs import CostPlugin  # of tools/, which is in the path when the configuration has been read

        config.pluginmanager.register(CostPlugin(path, lambda: warm.forked))


_LEFTOVERS = pytest.StashKey[Leftovers]()
_HAS_PASSED = pytest.StashKey[bool]()


def pytest_unconfigure(config: pytest.Config) -> None:
    warm.close()
    config.stash[_LEFTOVERS].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import chosen  # of tools/, which is in the path when the configuration has been read

    for item in items:
        if not isinstance(item, pytest.Item):
            continue  # a file, which Claims collects later
        if not chosen.read().has(item.nodeid):
            item.add_marker(pytest.mark.wide)
        for name in ("cold", "destructors"):
            if any(not mark.args for mark in item.iter_markers(name)):
                raise pytest.UsageError(f"{item.nodeid}: say why it needs this: @pytest.mark.{name}(REASON)")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DEFAULT_TIMEOUT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture, because some start scripts."""
    warm.is_wanted = item.get_closest_marker("cold") is None
    warm.skips_destructors = item.get_closest_marker("destructors") is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    return report


def _is_of_torchs_loader(test: Any) -> bool:
    """Returns True for a test whose script uses `from loaders import Torch`."""
    return hasattr(test, "callspec") and test.callspec.params.get("kind") == "Torch"


def _remove_torchs_files(left: dict[str, set[Any]]) -> None:
    """Torch's own loader leaves the tensor that a worker was about to send as its trainer ended."""
    for name in [name for name in left.get("files in /dev/shm", ()) if name.startswith("torch_")]:
        pathlib.Path("/dev/shm", name).unlink(missing_ok=True)
        left["files in /dev/shm"].remove(name)


def _keep_what_is_imported() -> None:
    """A collection would visit all of torch after every test, and all that a test has made it import."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)  # else what a failed test has made would be kept for ever
    gc.collect()
    if len(gc.get_objects()) > FEW_OBJECTS:
        gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    _keep_what_is_imported()
    leftovers = request.config.stash[_LEFTOVERS]
    before = leftovers.state()
    yield
    if not request.node.stash.get(_HAS_PASSED, False):
        return
    meant = {kind for kind, _ in (mark.args for mark in request.node.iter_markers("leaves"))}
    if _is_of_torchs_loader(request.node):
        left = leftovers.left(before, TORCHS_PATIENCE_S, meant)
        _remove_torchs_files(left)
    else:
        left = leftovers.left(before, PATIENCE_S, meant)
    assert not any(left.values()), describe(left)
