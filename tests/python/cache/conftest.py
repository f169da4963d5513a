# SPDX-License-Identifier: Apache-2.0
"""A cache in a folder of its own for each test, in memory."""

from __future__ import annotations

import gc
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from cache_scripts import Scripts


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hrc-test-", dir="/dev/shm"))
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    monkeypatch.delenv("HEADRACE_DISABLE", raising=False)
    yield folder
    gc.collect()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def scripts(root: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Scripts]:
    events = tmp_path / "events"
    events.mkdir()
    scripts = Scripts(events)
    yield scripts
    scripts.close()
