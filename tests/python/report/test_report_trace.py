# SPDX-License-Identifier: Apache-2.0
"""Traces of headrace report: their events, and how they are put into a trace of torch."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace._report import trace
from headrace._report.recorded import Recorded
from recorded_runs import OPENED, REAL, S, run


def written(path: Path, loaders: Sequence[Recorded], torchs: Path | None = None) -> dict[str, Any]:
    trace.write(loaders, path, torchs)
    data = path.read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def spans(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["name"] == name]


def test_trace_has_steps_and_batches(tmp_path: Path) -> None:
    """20 batches per second, half of which is fetched and a tenth collated; the loop waits 30 % of each step."""
    data = written(tmp_path / "trace.json", [run(workers=2)])
    assert data["baseTimeNanoseconds"] == REAL
    step, batch, collate = (spans(data, name)[7] for name in ("next()", "samples", "collate"))
    assert (step["ts"], step["dur"]) == (8 * 50_000 - 15_000, 15_000)
    assert (batch["ts"], batch["dur"], batch["args"]["its index"]) == (7 * 50_000, 25_000, 56)
    assert (collate["ts"], collate["dur"]) == (7 * 50_000 + 25_000, 5_000)
    assert step["args"] == {"epoch": 0, "step": 8}
    names = {event["tid"]: event["args"]["name"] for event in spans(data, "thread_name")}
    assert names[step["tid"]] == "train.py:88: next()"
    assert names[batch["tid"]] == "train.py:88: worker 1"


def test_first_steps_of_epochs_are_left_out(tmp_path: Path) -> None:
    one = run(count=11)
    one.steps["inside_us"][0] = -1  # type: ignore[index]
    assert len(spans(written(tmp_path / "trace.json", [one]), "next()")) == 219


def test_clocks_that_drift_apart_are_followed(tmp_path: Path) -> None:
    """CLOCK_REALTIME was set 5 s forward after half a minute."""
    one = run()
    later = one.seconds["real_ns"]
    one.seconds.of_loader["real_ns"][30:] = [ns + 5 * S for ns in later[30:]]  # type: ignore[index]
    first, *_, last = spans(written(tmp_path / "trace.json", [one]), "next()")
    assert last["ts"] - first["ts"] == 1199 * 50_000 + 5_000_000


def test_recording_without_a_whole_second_has_steps(tmp_path: Path) -> None:
    """The recorder was killed before it wrote the first one."""
    one = run(workers=2)
    short = replace(one, seconds=run(count=0, workers=2).seconds, clock_ns=REAL - OPENED)
    assert written(tmp_path / "short.json", [short]) == written(tmp_path / "trace.json", [one])


TORCHS = {"schemaVersion": 1, "baseTimeNanoseconds": REAL - 10 * S, "traceEvents": [
    {"ph": "X", "cat": "user_annotation", "name": "mine", "pid": 4187, "tid": 4187, "ts": 12e6, "dur": 3e6},
    {"ph": "M", "name": "process_name", "pid": 4187, "tid": 0, "args": {"name": "python"}},
]}  # fmt: skip


@pytest.mark.parametrize("name", ["torch.json", "torch.json.gz"])
def test_torchs_trace_and_headraces_are_one(tmp_path: Path, name: str) -> None:
    """Only what is around torch's three seconds is added, by torch's clock."""
    torchs = tmp_path / name
    text = json.dumps(TORCHS).encode()
    torchs.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    data = written(tmp_path / f"both-{name}", [run()], torchs)
    assert data["baseTimeNanoseconds"] == REAL - 10 * S
    assert data["schemaVersion"] == 1
    assert data["traceEvents"][:2] == TORCHS["traceEvents"]
    steps = spans(data, "next()")
    assert min(step["ts"] for step in steps) == pytest.approx(11e6, abs=50_000)
    assert max(step["ts"] for step in steps) == pytest.approx(16e6, abs=50_000)
    assert {step["pid"] for step in steps} == {4187}


def test_trace_of_another_time_adds_no_span(tmp_path: Path) -> None:
    torchs = tmp_path / "torch.json"
    torchs.write_text(json.dumps({**TORCHS, "baseTimeNanoseconds": REAL + 3600 * S}))
    assert trace.write([run()], tmp_path / "both.json", torchs) == 0


@pytest.mark.parametrize("text", [b"", b"[1, 2]", b'{"traceEvents": 3}', b"no", b"\x1f\x8b\x00", b"\xff\xfe"])
def test_file_that_is_no_trace_is_refused(tmp_path: Path, text: bytes) -> None:
    torchs = tmp_path / "torch.json"
    torchs.write_bytes(text)
    with pytest.raises(trace.BadTrace, match=r"torch\.json (is no JSON|has no traceEvents).*name a trace that"):
        trace.write([run(count=1)], tmp_path / "both.json", torchs)
    assert not (tmp_path / "both.json").exists()


def test_unusual_events_of_torch_are_kept(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "a", "ts": 5, "dur": None}, {"name": "b", "ts": "later"}, 7]
    torchs = tmp_path / "torch.json"
    torchs.write_text(json.dumps({"traceEvents": events}))
    data = written(tmp_path / "both.json", [run(count=1)], torchs)
    assert data["traceEvents"][:3] == events
