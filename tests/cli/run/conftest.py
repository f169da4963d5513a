# SPDX-License-Identifier: Apache-2.0
"""After every test: no new file in /dev/shm stays, and no new descriptor."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest
from processes import is_held_elsewhere, shared_files, until

PATIENCE_S = 10.0  # for files of tests and programs that run at the same time


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    files, descriptors = shared_files(), len(_descriptors())
    yield
    stays: set[str] | None = None

    def is_clean() -> bool:
        nonlocal stays
        new = shared_files() - files
        stays = new if stays is None else stays & new
        stays = {name for name in stays if not is_held_elsewhere(f"/dev/shm/{name}")}
        return not stays

    assert until(is_clean, PATIENCE_S), stays
    assert len(_descriptors()) <= descriptors


@pytest.fixture(autouse=True)
def keyboard_signals_are_not_ignored() -> Iterator[None]:
    """A shell's background jobs ignore them, and pass this on."""
    ways = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    before = {number: signal.signal(number, way) for number, way in ways.items()}
    yield
    for number, way in before.items():
        signal.signal(number, way)


@pytest.fixture(autouse=True)
def no_core_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)
