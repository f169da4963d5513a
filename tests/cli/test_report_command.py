# SPDX-License-Identifier: Apache-2.0
"""headrace report: what a user types, what is printed, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import pipe_without_reader, run
from recordings import File

S = 10**9


def recording(path: Path, seconds: int = 30, **identity: object) -> Path:
    """Writes a recording of 20 batches per second, in which a loop waits 30 % of its time for two busy workers."""
    file = File(workers=2, began_ns=S, cores=8, **identity)
    worker = {"fetch_ns": 9 * S // 10, "collate_ns": S // 20, "wait_ns": S // 20, "cpu_ns": S * 9 // 10}
    for second in range(seconds):
        at_ns = (second + 2) * S
        file.second(
            {"at_ns": at_ns, "real_ns": at_ns + 1_700_000_000 * S, "length_ns": S, "batches": 20, "samples": 160,
             "inside_ns": 3 * S // 10, "wait_ns": 3 * S // 10, "step": 20 * second, "cores_busy": 3000,
             "cores_allowed": 8000, "memory_available": 1 << 40},
            [worker, worker],
        )  # fmt: skip
        for number in range(20):
            ended_ns = at_ns - S + (number + 1) * S // 20
            file.step(ended_ns, 0, 20 * second + number + 1, 15_000)
            file.batch({"worker": number % 2, "number": number // 2 + 1, "task": 20 * second + number,
                        "began_ns": ended_ns - S // 10, "fetch_ns": S // 20, "collate_ns": S // 400})  # fmt: skip
    file.hour(S, [0] * 21 + [4800] + [0] * 22, [0] * 20 + [600] + [0] * 23)
    file.slowest([(40_000_000, 7, 1, 5 * S)])
    return file.write(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run 1").mkdir()
    recording(tmp_path / "run 1" / "one.hrr")
    return tmp_path / "run 1"


def test_report_prints_verdict_and_numbers(folder: Path) -> None:
    result = run("report", str(folder))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "train.py:88, pid 1 on node07: Too few workers"
    assert "  About 3 workers would be enough." in lines
    assert "  WAIT      30 % (workers 30 %)" in lines
    assert lines[-1] == f"The page with figures: headrace report '{folder}' -o report.html"


def test_report_takes_a_single_file(folder: Path) -> None:
    assert run("report", str(folder / "one.hrr")).stdout.startswith("train.py:88, pid 1 on node07: Too few workers\n")


def test_report_writes_a_page_that_says_the_same(folder: Path) -> None:
    result = run("report", str(folder), "-o", str(folder / "report.html"))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith(f"{folder}/report.html: ")
    page = (folder / "report.html").read_text().replace("\u00a0", " ")
    for text in ("Too few workers", "About 3 workers would be enough.", "30 % (workers 30 %)", "The slowest samples",
                 "headrace replay train.py:DATASET 7"):  # fmt: skip
        assert text in page


def test_report_writes_a_trace(folder: Path) -> None:
    result = run("report", str(folder), "--trace", str(folder / "trace.json"))
    assert f"{folder}/trace.json: 1,800 spans of headrace; open it in ui.perfetto.dev" in result.stdout
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 1800


def test_trace_of_another_run_is_a_warning(folder: Path) -> None:
    torchs = folder / "torch.json"
    torchs.write_text('{"baseTimeNanoseconds": 5, "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')
    result = run("report", str(folder), "--trace", str(folder / "both.json"), "--with", str(torchs))
    assert result.returncode == 0
    assert f"warning: nothing was recorded within a second of {torchs}; it is of another run" in result.stderr


def test_wrong_arguments_are_explained(folder: Path) -> None:
    result = run("report", str(folder), "--with", "torch.json")
    assert result.returncode == 2
    assert "--with is only used with --trace" in result.stderr


def one_line_of(folder: Path, *arguments: str) -> str:
    result = run("report", str(folder), *arguments)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    return line


def test_folder_without_a_recording_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert one_line_of(tmp_path) == (
        f"headrace report: {tmp_path}: there is no recording in this folder, whose files end with .hrr; "
        "HEADRACE_RECORD=FOLDER writes one"
    )
    missing = one_line_of(tmp_path / "missing")
    assert "No such file" in missing and "Errno" not in missing


@pytest.mark.parametrize("content", [b"", b"no recording", bytes(1 << 20)], ids=["empty", "text", "zeros"])
def test_file_that_is_no_recording_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.hrr").write_bytes(content)
    assert "bad.hrr" in one_line_of(tmp_path)


def test_file_of_gigabytes_is_one_line(tmp_path: Path) -> None:
    with (tmp_path / "large.hrr").open("wb") as file:
        file.write(recording(tmp_path / "one").read_bytes())
        file.truncate(5 << 30)
    assert "large.hrr" in one_line_of(tmp_path)


def test_file_of_a_newer_version_is_one_line(tmp_path: Path) -> None:
    data = bytearray(recording(tmp_path / "new.hrr").read_bytes())
    data[8] += 1
    (tmp_path / "new.hrr").write_bytes(data)
    assert "new.hrr" in one_line_of(tmp_path)


def test_bad_file_does_not_hide_the_others(folder: Path) -> None:
    (folder / "bad.hrr").write_bytes(b"no recording")
    result = run("report", str(folder))
    assert result.returncode == 0
    assert "bad.hrr" in result.stderr
    assert result.stdout.startswith("train.py:88, pid 1 on node07: Too few workers\n")


def test_cut_file_is_reported_as_far_as_it_goes(folder: Path) -> None:
    """Cut in the middle of the seconds, whose rest is gone."""
    path = folder / "one.hrr"
    data = path.read_bytes()
    for part in range(1, 6):
        path.write_bytes(data[: len(data) * part // 6])
        result = run("report", str(folder))
        assert result.returncode in (0, 2)
        assert result.stderr.count("\n") == (result.returncode == 2)


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_file_that_cannot_be_written_is_one_line(folder: Path, option: str) -> None:
    assert (
        one_line_of(folder, option, "/nowhere/report") == "headrace report: /nowhere/report: No such file or directory"
    )


def test_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.hrr")
    with pipe_without_reader() as pipe:
        result = run("report", path, stdout=pipe)
    assert (result.returncode, result.stderr) == (141, "")


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.hrr")
    with open("/dev/full", "w") as full:
        result = run("report", path, stdout=full)
    assert (result.returncode, result.stderr) == (2, "headrace report: standard output: No space left on device\n")


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_full_disk_names_the_file(tmp_path: Path, option: str) -> None:
    result = run("report", recording(tmp_path / "a.hrr"), option, "/dev/full")
    assert (result.returncode, result.stderr) == (2, "headrace report: /dev/full: No space left on device\n")
