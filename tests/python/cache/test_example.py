# SPDX-License-Identifier: Apache-2.0
"""The example of a grid search runs, and its tables show that the cache makes the data once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/grid_search.py"
PICTURES = 100
# In addition to its own decoding, a picture is decoded again only to compare: 64 at first, 2 in each epoch of each job,
# and one that two jobs compare at the same time.
AT_MOST = 2 * PICTURES


def _rows(lines: list[str]) -> dict[str, list[str]]:
    return {line[:24].strip(): line[24:].split() for line in lines[2:]}


def test_grid_search_makes_data_once() -> None:
    words = ["--jobs", "3", "--rows", "20000", "--pictures", str(PICTURES)]
    result = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    features, pictures = _rows(lines[:6]), _rows(lines[6:])
    assert features["features made"] == ["3", "times", "1", "times"]
    made, _, made_cached, _ = pictures["pictures decoded"]
    assert int(made) == 3 * 2 * PICTURES
    assert PICTURES <= int(made_cached) < AT_MOST
    for rows in (features, pictures):
        without, cached = rows["best loss"]
        assert without == cached
