# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a recording."""

from __future__ import annotations

from pathlib import Path

from headrace import _core
from headrace._report.recorded import Hour, Recorded, Rows, Slow

_SUFFIX = ".hrr"
_KNOWN = ("name", "pid", "loader", "rank", "world_size", "workers", "queue_room", "host", "command", "cores", "version")


def read(path: Path) -> tuple[list[Recorded], list[str]]:
    """Reads a file, or all files of a folder. Returns also a complaint for each one that cannot be read."""
    recorded, complaints = list[Recorded](), list[str]()
    for one in sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]:
        try:
            recorded.append(_read_file(one))
        except (OSError, ValueError, RuntimeError) as error:
            complaints.append(getattr(error, "strerror", None) or str(error))
    return recorded, complaints


def _read_file(path: Path) -> Recorded:
    file = _core.Recording(path)
    known = file.identity
    began_ns, began_real_ns = file.clocks[0]
    clock_ns = began_real_ns - began_ns
    return Recorded(
        path=str(path),
        **{name: known[name] for name in _KNOWN},
        opened_real_ns=known["opened_ns"] + clock_ns,
        ended=file.ended,
        seconds=Rows(file.seconds, file.second_workers),
        minutes=Rows(file.minutes, file.minute_workers),
        hours=[Hour(*one) for one in file.histograms],
        slowest=[Slow(*one) for one in file.slowest],
        batches=file.batches,
        steps=file.steps,
        clock_ns=clock_ns,
        torn=file.torn,
    )
