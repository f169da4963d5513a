# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several rooms use."""

from __future__ import annotations

import pathlib

import pytest
from mishaps import Marks


@pytest.fixture
def marks(tmp_path: pathlib.Path) -> Marks:
    return Marks(tmp_path)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """An accelerator that is made up: see lib/accelerator.py."""
    from accelerator import watch_pinning  # not at the top: it imports torch

    return watch_pinning(monkeypatch)
