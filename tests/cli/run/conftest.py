# SPDX-License-Identifier: Apache-2.0
"""Signals and limits as in a terminal."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator

import pytest


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
