# SPDX-License-Identifier: Apache-2.0
"""The example in which losses steer a sampler: all ranks draw the same order, and what is hard is drawn more often."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace
import pytest

pytestmark = pytest.mark.usefixtures("root")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/loss_sampling.py"
LINE = re.compile(r"rank (\d): epoch (\d): order (\w+), (\d+) % of it hard, (\d+) samples made")


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("loss_sampling", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ranks_draw_the_same_order_by_losses() -> None:
    command = [sys.executable, "-m", "headrace", "run", "--nproc", "2", str(EXAMPLE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    found = [LINE.search(line) for line in result.stdout.splitlines()]
    lines = {(int(one[1]), int(one[2])): one for one in found if one}
    assert set(lines) == {(rank, epoch) for rank in (0, 1) for epoch in (0, 1, 2)}, result.stdout
    orders = [lines[0, epoch][3] for epoch in (0, 1, 2)]
    assert orders == [lines[1, epoch][3] for epoch in (0, 1, 2)] and len(set(orders)) == 3
    assert int(lines[0, 0][4]) < 20 and int(lines[0, 1][4]) > 50 and int(lines[0, 2][4]) > 50
    assert [int(lines[rank, 2][5]) for rank in (0, 1)] == [3000, 3000]
    assert headrace.cache.ls() == []


def test_snapshot_does_not_follow_late_losses() -> None:
    """A rank that comes later to an epoch draws from what the first one has seen."""
    pytest.importorskip("torch")
    example = load_example()
    first, second = example.LossSampler("job", 5), example.LossSampler("job", 5)
    first.losses.array[:] = [1, 2, 3, 4, 5]
    first.set_epoch(1)
    second.losses.array[2] = 100
    second.set_epoch(1)
    assert first.weights.tolist() == second.weights.tolist() == [1, 2, 3, 4, 5]
    second.set_epoch(2)
    assert second.weights.tolist() == [1, 2, 100, 4, 5]
