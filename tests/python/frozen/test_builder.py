# SPDX-License-Identifier: Apache-2.0
"""headrace.frozen.Builder: frozen data made record by record."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest


def records(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"path": f"images/{number:06}.jpg", "box": [number * 0.1, 2.5], "number": number}


def test_records_keep_order_and_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "train.frozen"
    with headrace.frozen.Builder(path) as builder:
        for record in records(1000):
            builder.append(record)
        assert len(builder) == 1000
        assert builder.nbytes > 50_000
        assert not path.exists()
    assert builder.view == list(records(1000))
    assert headrace.open(path, verify=True) == list(records(1000))
    assert builder.report is not None and builder.nbytes == builder.report.bytes == path.stat().st_size


def test_an_frozen_data_in_memory_needs_no_path() -> None:
    builder = headrace.frozen.Builder()
    for number in range(100_000):
        builder.append(number)
    assert list(builder.finish()) == list(range(100_000))


def test_a_record_that_cannot_be_frozen_is_left_out(tmp_path: Path) -> None:
    with headrace.frozen.Builder(tmp_path / "image") as builder:
        builder.append({"a": 1})
        with pytest.raises(TypeError, match=r"\['lock'\]"):
            builder.append({"lock": threading.Lock()})
        builder.append({"a": 2})
    assert builder.view == [{"a": 1}, {"a": 2}]


def test_an_exception_drops_the_frozen_data_and_leaves_no_file(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), headrace.frozen.Builder(tmp_path / "image") as builder:
        builder.append(1)
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(ValueError, match="closed"):
        builder.append(2)
    with pytest.raises(ValueError, match="not finished"):
        _ = builder.view


def test_a_failed_builder_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "image"
    headrace.freeze([1, 2], path=path)
    builder = headrace.frozen.Builder(path)
    builder.append("new")
    builder.close()
    assert headrace.open(path) == [1, 2]
    with headrace.frozen.Builder(path) as builder:
        builder.append("new")
    assert headrace.open(path) == ["new"]


@pytest.mark.parametrize("failure", ["", "tmpfile:EINVAL"])
def test_forked_child_that_frees_a_builder_keeps_the_file(
    tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", failure)
    path = tmp_path / "x.frozen"
    builder = headrace.frozen.Builder(path)
    builder.append({"a": 1})
    child = os.fork()
    if child == 0:
        del builder
        os._exit(0)
    os.waitpid(child, 0)
    assert builder.finish() == [{"a": 1}]
    assert os.listdir(tmp_path) == ["x.frozen"]


def test_a_builder_can_be_closed_in_its_with_statement(tmp_path: Path) -> None:
    with headrace.frozen.Builder(tmp_path / "x.frozen") as builder:
        builder.append(1)
        builder.close()
    assert not os.listdir(tmp_path)
    with pytest.raises(ValueError, match="closed"):
        builder.append(2)


def test_a_record_may_hold_itself_and_records_share_nothing() -> None:
    record: dict[str, Any] = {"name": "loop"}
    record["self"] = record
    shared = ["a list of both"]
    builder = headrace.frozen.Builder()
    builder.append(record)
    builder.append([shared, shared])
    builder.append(shared)
    loop, pair, alone = headrace.thaw(builder.finish())
    assert loop["self"] is loop
    assert pair[0] is pair[1] and pair[0] is not alone and alone == shared


def test_records_die_as_soon_as_they_are_in(tmp_path: Path) -> None:
    """A new record often has the address of one that is gone: it must not be taken for it."""
    with headrace.frozen.Builder(tmp_path / "image") as builder:
        for number in range(10_000):
            inner = [number]
            builder.append({"both": (inner, inner), "number": number})
    for number, record in enumerate(builder.view):
        assert record["both"][0] == [number] and record["number"] == number


def test_progress_is_reported() -> None:
    counts: list[int] = []
    builder = headrace.frozen.Builder(progress=counts.append)
    for record in records(50_000):
        builder.append(record)
    builder.finish()
    assert counts and counts == sorted(counts)
    counts.clear()
    builder = headrace.frozen.Builder(progress=counts.append)
    for _ in range(4):
        builder.append(bytes(10_000_000))
    builder.finish()
    assert counts and counts == sorted(counts)


def test_the_line_of_progress_ends_once(capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.frozen.Builder(progress=True) as builder:
        for _ in range(4):
            builder.append(bytes(10_000_000))
    shown = capsys.readouterr().err
    assert "MB/s" in shown and shown.endswith(" \n") and shown.count("\n") == 1
