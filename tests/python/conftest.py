# SPDX-License-Identifier: Apache-2.0
"""After every test: nothing new in /dev/shm, no new process, no new descriptor."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Iterator
from multiprocessing import forkserver, resource_sharer, resource_tracker
from typing import Any

import pytest
import warm
from headrace._loader.forkserver import client
from mishaps import Marks
from processes import children, is_held_elsewhere, shared_files, until

DEFAULT_TIMEOUT_S = 300
PATIENCE_S = 20.0  # for files and processes to disappear: also those of a test that runs at the same time
TORCHS_PATIENCE_S = 8.0
FILES = "files in /dev/shm"
FEW_OBJECTS = 20_000  # a collection visits as many in a few milliseconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DEFAULT_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_OUTCOME] = report.passed
    return report


_OUTCOME = pytest.StashKey[bool]()


def _helpers() -> tuple[set[int], set[int]]:
    """Returns the processes of multiprocessing and of warm.py that outlive a test, and the descriptors for them."""
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker  # type: ignore[attr-defined]
    pids = {server._forkserver_pid, tracker._pid}
    descriptors = {server._forkserver_alive_fd, tracker._fd}
    for one in [*client._current, *client._retired]:
        pids.add(one.pid)
        descriptors |= {one._control.fileno(), one._alive}
    warm_pids, warm_descriptors = warm.helpers()
    return (pids | warm_pids) - {None}, (descriptors | warm_descriptors) - {None}


def _state() -> dict[str, set[Any]]:
    pids, known = _helpers()
    with os.scandir("/proc/self/fd") as entries:
        open_now = {int(entry.name) for entry in entries}
    descriptors = set()
    for descriptor in open_now - known:
        try:
            descriptors.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0]))
        except OSError:
            continue
    return {
        FILES: shared_files(),
        "processes": children(os.getpid()) - pids,
        "descriptors": descriptors,
    }


def _left(before: dict[str, set[Any]], patience_s: float) -> dict[str, set[Any]]:
    """Returns what is new and stays. Ignores files of other programs, which use /dev/shm too."""
    gc.collect()
    gc.collect()  # of cycles that were held by what the first one has freed, such as a dataset by its loader's epoch
    resource_sharer.stop(timeout=5)  # multiprocessing's own, where a test sent a tensor to another process
    stays: dict[str, set[Any]] = {}

    def gone() -> bool:
        after = _state()
        for name in after:
            new = after[name] - before[name]
            stays[name] = stays.get(name, new) & new
        stays[FILES] = {name for name in stays[FILES] if not is_held_elsewhere(f"/dev/shm/{name}")}
        return not any(stays.values())

    until(gone, patience_s)
    return {name: new for name, new in stays.items() if new}


def _is_of_torchs_loader(test: Any) -> bool:
    """Returns True for a test whose script uses `from loaders import Torch`."""
    return hasattr(test, "callspec") and test.callspec.params.get("kind") == "Torch"


def _remove_torchs_files(left: dict[str, set[Any]]) -> None:
    """Torch's own loader leaves the tensor that a worker was about to send as its trainer ended."""
    files = left.pop(FILES, set())
    torchs = {name for name in files if name.startswith("torch_")}
    for name in torchs:
        pathlib.Path("/dev/shm", name).unlink(missing_ok=True)
    if files - torchs:
        left[FILES] = files - torchs


def _keep_what_is_imported() -> None:
    """A collection would visit all of torch after every test, and all that a test has made it import."""
    gc.collect()
    if len(gc.get_objects()) > FEW_OBJECTS:
        gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    _keep_what_is_imported()
    before = _state()
    yield
    if request.node.stash.get(_OUTCOME, False):
        is_of_torchs = _is_of_torchs_loader(request.node)
        left = _left(before, TORCHS_PATIENCE_S if is_of_torchs else PATIENCE_S)
        if is_of_torchs:
            _remove_torchs_files(left)
        assert left == {}


@pytest.fixture
def marks(tmp_path: pathlib.Path) -> Marks:
    return Marks(tmp_path)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """An accelerator that is made up: see lib/accelerator.py."""
    from accelerator import watch_pinning  # not at the top: it imports torch

    return watch_pinning(monkeypatch)
