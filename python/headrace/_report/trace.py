# SPDX-License-Identifier: Apache-2.0
"""Writes what was recorded as a trace for Perfetto and chrome://tracing, alone or in one file with a trace of torch.

torch's `ts` are microseconds after `baseTimeNanoseconds`, which is a time of CLOCK_REALTIME (0 in older versions of
torch); those of headrace are made to fit.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace import _core
from headrace._report.recorded import Recorded

Event = dict[str, Any]
_US = 1000.0  # nanoseconds
_AROUND_US = 1e6  # before and after a trace of torch, of which headrace's events are kept
_FIRST_THREAD = 1 << 30  # larger than the number of any thread: headrace's rows come after those of threads
_THREADS_OF_LOADER = 1 << 16


class BadTrace(Exception):
    """Raised for a file that is no trace of torch; the text is for the user."""


def events_of(one: Recorded, base_ns: int) -> Iterator[Event]:
    """Yields the events of a loader: the calls of next(), and the batches of each worker in rows of their own."""
    first = _FIRST_THREAD + one.loader * _THREADS_OF_LOADER
    yield from _names(one, first)
    us_of = _clock(one, base_ns)
    for at_ns, epoch, step, inside_us in zip(
        *(one.steps[name] for name in ("at_ns", "epoch", "step", "inside_us")), strict=True
    ):
        if inside_us != _core.NO_STEP:
            args = {"epoch": epoch, "step": step}
            yield _event("next()", one.pid, first, us_of(at_ns) - inside_us, inside_us, args)
    names = ("worker", "task", "began_ns", "fetch_ns", "collate_ns", "bytes", "slowest_index", "slowest_ns")
    for worker, task, began, fetch, collate, size, index, slowest in zip(
        *(one.batches[name] for name in names), strict=True
    ):
        args = {"batch": task, "bytes": size}
        if slowest:
            args |= {"slowest sample (ms)": slowest / 1e6} | ({} if index == _core.NO_SAMPLE else {"its index": index})
        thread = first + 1 + worker
        yield _event("samples", one.pid, thread, us_of(began), fetch / _US, args)
        yield _event("collate", one.pid, thread, us_of(began + fetch), collate / _US, {"batch": task})


def _clock(one: Recorded, base_ns: int) -> Callable[[int], float]:
    """Returns a function that makes `ts` of a time of CLOCK_MONOTONIC."""
    return lambda at_ns: (one.real_ns(at_ns) - base_ns) / _US


def _event(name: str, pid: int, thread: int, ts: float, us: float, args: Event) -> Event:
    return {"ph": "X", "cat": "headrace", "name": name, "pid": pid, "tid": thread, "ts": round(ts, 3),
            "dur": round(us, 3), "args": args}  # fmt: skip


def _names(one: Recorded, first: int) -> Iterator[Event]:
    rows = [f"{one.name}: next()", *(f"{one.name}: worker {worker}" for worker in range(one.workers))]
    for at, name in enumerate(rows):
        for kind, args in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": first + at})):
            yield {"ph": "M", "name": kind, "pid": one.pid, "tid": first + at, "args": args}


# ---- files ----


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadTrace(f"{path} is no JSON ({error}); name a trace that prof.export_chrome_trace has written") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise BadTrace(f"{path} has no traceEvents; name a trace that prof.export_chrome_trace has written")
    return trace


def _limits(trace: dict[str, Any]) -> tuple[float, float]:
    times = [(event["ts"], event.get("dur") or 0.0) for event in trace["traceEvents"]
             if isinstance(event, dict) and isinstance(event.get("ts"), (int, float))]  # fmt: skip
    return min(ts for ts, _ in times), max(ts + us for ts, us in times)


def write(recorded: Sequence[Recorded], path: Path, torchs: Path | None) -> int:
    """Writes a trace, and returns how many spans of headrace it has. With `torchs` those around the time of that trace
    are added to it. Raises OSError, or BadTrace for a trace that cannot be read."""
    trace: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
    if torchs is not None:
        trace = _read(torchs)
    base_ns = int(trace.get("baseTimeNanoseconds") or 0) if torchs else _first_ns(recorded)
    trace["baseTimeNanoseconds"] = base_ns
    events = [event for one in recorded for event in events_of(one, base_ns)]
    if torchs is not None and any(isinstance(event, dict) and "ts" in event for event in trace["traceEvents"]):
        first, last = _limits(trace)
        events = [event for event in events if event["ph"] == "M"
                  or first - _AROUND_US - event["dur"] <= event["ts"] <= last + _AROUND_US]  # fmt: skip
    trace["traceEvents"] = [*trace["traceEvents"], *events]
    data = json.dumps(trace, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return sum(event["ph"] == "X" for event in events)


def _first_ns(recorded: Sequence[Recorded]) -> int:
    """Returns when the first recording began, on CLOCK_REALTIME."""
    return min(one.rows["real_ns"][0] - one.rows["length_ns"][0] if len(one.rows) else one.opened_real_ns
               for one in recorded)  # fmt: skip
