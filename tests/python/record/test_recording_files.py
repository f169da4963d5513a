# SPDX-License-Identifier: Apache-2.0
"""`_core.Recording`, which reads the file of a loader in a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import recordings
from headrace import _core


def test_written_numbers_are_read(tmp_path: Path) -> None:
    file = recordings.File(workers=2, rank=1, world_size=4, began_ns=10**9, began_real_ns=7)
    for n in range(1, 4):
        row = {"at_ns": n, "real_ns": n + 5, "batches": n, "bytes": n << 33, "wait_ns": 2000 * n}
        row |= {"used_bytes": 1024 * n, "used_workers": n - 1, "trainer_cpu_ns": 5000 * n, "trainer_delay_ns": 7000}
        file.second(row, [{"fetch_ns": 1000 * n}, {"private_bytes": 2048 * n}])
    file.hour(60, [1] * 44, [2] * 44)
    file.slowest([(900, 17, 1, 3), (800, 18, 0, 4)])
    file.batch({"worker": 1, "task": 5, "fetch_ns": 77, "slowest_index": 9, "slowest_ns": 3000, "bytes": 4096})
    file.batch({"worker": 0})
    file.step(3 * 10**9, 2, 1, -1)
    file.step(4 * 10**9, 2, 2, 50)
    read = _core.Recording(file.write(tmp_path / "a.hrr", ended_ns=99))
    identity = read.identity
    assert (identity["name"], identity["rank"], identity["world_size"], identity["workers"]) == ("train.py:88", 1, 4, 2)
    assert (read.ended, read.ended_ns, read.torn) == ("the job ended", 99, 0)
    assert read.clocks == [(10**9, 7), (1, 6), (2, 7), (3, 8)]
    seconds = read.seconds
    assert list(seconds["batches"]) == [1, 2, 3]
    assert list(seconds["wait_ns"]) == [2000, 4000, 6000]
    assert list(seconds["bytes"]) == [1 << 33, 2 << 33, 3 << 33]
    assert list(seconds["memory_available"]) == [0, 0, 0]
    assert list(seconds["used_workers"]) == [2, 1, 2]  # 0 in the file: all
    assert list(seconds["trainer_cpu_ns"]) == [5000, 10000, 15000]
    assert list(seconds["trainer_delay_ns"]) == [7000] * 3
    assert list(read.second_workers[0]["fetch_ns"]) == [1000, 2000, 3000]
    assert list(read.second_workers[1]["private_bytes"]) == [2048, 4096, 6144]
    assert len(read.minutes["at_ns"]) == 0 and len(read.minute_workers) == 2
    assert read.histograms == [(60, [1] * 44, [2] * 44)]
    assert read.slowest == [(900, 17, 1, 3), (800, 18, 0, 4)]
    assert list(read.batches["slowest_index"]) == [9, -1]
    assert list(read.batches["bytes"]) == [4096, 0]
    assert list(read.steps["inside_us"]) == [-1, 50]
    assert list(read.steps["at_ns"]) == [3 * 10**9, 4 * 10**9]


def test_rows_of_two_weeks_fit(tmp_path: Path) -> None:
    file = recordings.File(workers=8)
    for n in range(14 * 24 * 60 + 10):
        file.minute({"at_ns": n}, [{}] * 8)
    path = file.write(tmp_path / "a.hrr")
    assert path.stat().st_size <= recordings.MAX_BYTES
    assert list(_core.Recording(path).minutes["at_ns"])[:2] == [10, 11]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.hrr"
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(ValueError, match=r"a\.hrr: this is not the file of a recording"):
        _core.Recording(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        _core.Recording(tmp_path / "missing")
