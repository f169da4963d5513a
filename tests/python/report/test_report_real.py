# SPDX-License-Identifier: Apache-2.0
"""headrace report on the recordings of real jobs: all of it fits together, and traces have the clock of torch's."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import headrace
import processes
import pytest
from headrace._report import page, reading, rules, trace
from headrace._report.numbers import numbers_of
from headrace._report.ranks import jobs_of
from headrace.torch import DataLoader

JOB = """
import json, sys, time
import torch
from headrace.torch import DataLoader

class Slow:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

loader = DataLoader(Slow(), batch_size=2, num_workers=1, multiprocessing_context="fork", record=sys.argv[1])
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
    batches = iter(loader)
    while True:
        with torch.profiler.record_function("mine"):
            batch = next(batches, None)
        if batch is None:
            break
        time.sleep(0.01)
prof.export_chrome_trace(sys.argv[2])
"""
CLOSE_US = 1000


def spans(events: list[Any], name: str) -> list[tuple[float, float]]:
    found = [(event["ts"], event["ts"] + event["dur"]) for event in events
             if event.get("name") == name and event.get("ph") == "X"]  # fmt: skip
    return sorted(found)


def test_trace_of_a_job_has_the_clock_of_torchs(tmp_path: Path) -> None:
    """Both have seen the same calls of next(). The process may be stopped between the two looks at the clock, so the
    median counts."""
    folder, torchs = tmp_path / "run1", tmp_path / "torch.json"
    result = processes.run_python(tmp_path, "-c", JOB, str(folder), str(torchs))
    assert result.returncode == 0, result.stderr
    recorded = processes.until(lambda: [one for one in reading.read(folder)[0] if one.ended], 30)
    assert len(recorded) == 1
    trace.write(recorded, tmp_path / "both.json", torchs)
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    mine, ours = spans(events, "mine")[1:30], spans(events, "next()")  # the first step of an epoch has no span
    assert len(mine) == len(ours) == 29
    pairs = zip(mine, ours, strict=True)
    apart = [max(abs(one[0] - other[0]), abs(one[1] - other[1])) for one, other in pairs]
    assert statistics.median(apart) < CLOSE_US
    assert rules.verdict_on(jobs_of(recorded)[0]).kind == "short"
    assert "What the workers do" in page.make(jobs_of(recorded), "run1/")


class SlowCollate:
    def __call__(self, samples: list[Any]) -> list[Any]:
        time.sleep(0.02)
        return samples


@pytest.mark.leaves("processes", "the recorder ends with pytest, which it records")
@pytest.mark.parametrize("loader_type", [headrace.Loader, DataLoader])
def test_collate_function_of_the_user_counts_as_collating(tmp_path: Path, loader_type: Any) -> None:
    """It is no part of the samples, which take no time."""
    folder = tmp_path / "run1"
    loader = loader_type(range(200), batch_size=2, num_workers=1, collate_fn=SlowCollate(), record=folder)
    for _ in loader:
        pass
    recorded = processes.until(lambda: [one for one in reading.read(folder)[0] if sum(one.rows["batches"]) > 90], 30)
    assert numbers_of(recorded[0]).collate > 0.8
