# SPDX-License-Identifier: Apache-2.0
"""A dataset of scans: a dict of objects with arrays and nested dicts, frozen once and read by four workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest

COUNT, POINTS = 1500, 2000
WORKERS = 4


@dataclass
class Scan:
    name: str
    points: Any
    labels: Any
    instances: dict[str, Any] = field(default_factory=dict)
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)

    def centre(self) -> Any:
        return self.points.mean(axis=0)

    @property
    def size(self) -> int:
        return len(self.points)


def make_scan(number: int) -> Scan:
    draw = np.random.default_rng(number)
    points = draw.random((POINTS, 3), dtype=np.float32)
    boxes = {f"chair {one}": {"box": [float(number), one * 0.5], "ids": list(range(20))} for one in range(3)}
    return Scan(f"scene{number:04}_00", points, draw.integers(0, 20, POINTS, dtype=np.int16), boxes)


def make_scans(count: int) -> dict[str, Scan]:
    return {scan.name: scan for scan in map(make_scan, range(count))}


class Scans:
    def __init__(self, scans: Any) -> None:
        self.scans = scans
        self.names = sorted(scans)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        scan = self.scans[self.names[index]]
        assert type(scan) is Scan
        scan.seen = os.getpid()  # its own attribute: no other process sees it
        assert scan.instances["chair 2"]["ids"][19] == 19
        return {"centre": scan.centre(), "size": scan.size, "first": scan.instances["chair 1"]["box"][0]}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_four_workers_read_exact_instances_from_one_image(method: str) -> None:
    scans = headrace.freeze(make_scans(COUNT))
    data = Scans(scans)
    loader = headrace.Loader(data, batch_size=50, num_workers=WORKERS, multiprocessing_context=method)
    seen = 0
    for batch in loader:
        for centre, size, first in zip(batch["centre"], batch["size"], batch["first"], strict=True):
            if seen % 100 == 0:
                expected = make_scan(seen)
                assert np.allclose(centre, expected.centre())
                assert (size, first) == (POINTS, seen)
            seen += 1
    assert seen == COUNT
    assert not hasattr(scans["scene0007_00"], "seen")


def test_a_scan_is_an_instance_whose_arrays_look_into_the_image(tmp_path: Path) -> None:
    headrace.freeze(make_scans(20), path=tmp_path / "scans.frozen")
    scan = headrace.open(tmp_path / "scans.frozen")["scene0007_00"]
    expected = make_scan(7)
    assert type(scan) is Scan and scan.axis == expected.axis and scan.instances == expected.instances
    assert np.array_equal(scan.points, expected.points) and not scan.points.flags.writeable
    assert scan.points.ctypes.data % 64 == 0
    scan.points = scan.points + 1  # a private array on a private instance
    again = headrace.open(tmp_path / "scans.frozen")["scene0007_00"]
    assert np.array_equal(again.points, expected.points)
