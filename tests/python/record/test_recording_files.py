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


def test_reads_and_requests_of_remote_objects_are_read(tmp_path: Path) -> None:
    file = recordings.File(workers=2)
    row = {"network_ns": 5000, "hit_count": 7, "wait_count": 8, "fetched_bytes": 1 << 30, "requests": 9, "retries": 2}
    file.second({"at_ns": 1, **row}, [{"network_ns": 3000}, {"network_ns": 4000}])
    read = _core.Recording(file.write(tmp_path / "a.hrr"))
    assert {name: list(read.seconds[name]) for name in row} == {name: [value] for name, value in row.items()}
    assert [list(worker["network_ns"]) for worker in read.second_workers] == [[3000], [4000]]


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
def test_file_of_the_format_before_is_read(workers: int, tmp_path: Path) -> None:
    """Format 2 has shorter rows and workers, so that its rings are at other places."""
    file = recordings.File(workers=workers, file_format=2)
    for n in range(1, 4):
        file.second({"at_ns": n, "batches": n, "trainer_delay_ns": 7000}, [{"private_bytes": 2048 * n}] * workers)
        file.minute({"at_ns": n, "samples": n}, [{"fetch_ns": 1000 * n}] * workers)
    file.step(3 * 10**9, 2, 1, 50)
    read = _core.Recording(file.write(tmp_path / "a.hrr"))
    assert (read.torn, list(read.seconds["batches"]), list(read.minutes["samples"])) == (0, [1, 2, 3], [1, 2, 3])
    assert list(read.seconds["trainer_delay_ns"]) == [7000] * 3 and list(read.seconds["requests"]) == [0] * 3
    for seconds, minutes in zip(read.second_workers, read.minute_workers, strict=True):
        assert list(seconds["private_bytes"]) == [2048, 4096, 6144] and list(seconds["network_ns"]) == [0] * 3
        assert list(minutes["fetch_ns"]) == [1000, 2000, 3000]
    assert len(read.second_workers) == workers and list(read.steps["inside_us"]) == [50]


@pytest.mark.parametrize("file_format", [1, 4])
def test_other_formats_are_refused(file_format: int, tmp_path: Path) -> None:
    path = recordings.File(file_format=file_format).write(tmp_path / "a.hrr")
    with pytest.raises(RuntimeError, match=f"it has format {file_format}, and this headrace reads formats 2 to 3"):
        _core.Recording(path)


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
