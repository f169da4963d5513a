# SPDX-License-Identifier: Apache-2.0
"""The example of a grid search runs, and its table shows that the cache makes the data once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/grid_search.py"


def test_grid_search_makes_features_once() -> None:
    result = subprocess.run(
        [sys.executable, EXAMPLE, "--jobs", "3", "--rows", "20000"], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    rows = {line[:24].strip(): line[24:].split() for line in result.stdout.splitlines()[2:]}
    assert rows["features made"] == ["3", "times", "1", "times"]
    without, cached = rows["best loss"]
    assert without == cached
