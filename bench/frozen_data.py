# SPDX-License-Identifier: Apache-2.0
"""Makes realistic data, the same in each run: paths of the standard library, and annotation records like COCO's."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

PATH_LENGTH = 52  # characters: the mean of a real list of image paths


def _stems() -> Iterator[str]:
    """Yields the paths of the standard library's modules, without their suffix, again and again."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(
        str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.py") if "site-packages" not in str(path)
    )
    return cycle(found)


def paths(count: int) -> list[str]:
    """Returns `count` different paths of 52 characters, each an object of its own."""
    made = []
    for number, stem in enumerate(islice(_stems(), count)):
        tail = f"{number:09}.jpg"
        room = PATH_LENGTH - len(tail) - 1
        made.append(f"{('train/' + stem).ljust(room, '_')[:room]}/{tail}")
    return made


def unequal_paths(count: int) -> list[str]:
    """Returns `count` different paths whose lengths differ."""
    return [f"train/{stem}/{number:09}.jpg" for number, stem in enumerate(islice(_stems(), count))]


def _numbers(draw: random.Random, count: int) -> list[float]:
    return [round(draw.uniform(0, 640), 2) for _ in range(count)]


def annotation(draw: random.Random, number: int) -> dict[str, Any]:
    """Returns one record like COCO's instances: an outline of 20 coordinates, a bounding rectangle, ids."""
    return {
        "segmentation": [_numbers(draw, 20)],
        "area": round(draw.uniform(10, 90000), 4),
        "iscrowd": 0,
        "image_id": draw.randrange(10**6),
        "bbox": _numbers(draw, 4),
        "category_id": draw.randrange(1, 91),
        "id": number + 10**6,
    }


def annotations(count: int, seed: int = 1) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [annotation(draw, number) for number in range(count)]


@dataclass
class Scan:
    """A scene like those of ScanNet: points with labels, and the objects in it."""

    name: str
    points: Any  # (count, 3) float32
    labels: Any  # (count,) int16
    objects: dict[str, dict[str, Any]]


def scans(count: int, points: int = 50_000) -> dict[str, Scan]:
    """Returns `count` scans of 14 bytes per point: 1,500 scans of 50,000 points are 1 GB."""
    draw = np.random.default_rng(5)
    made = {}
    for number in range(count):
        name = f"scene{number:04}_00"
        found = {f"chair {one}": {"box": _numbers(random.Random(one), 6), "id": one} for one in range(10)}
        cloud = draw.random((points, 3), dtype=np.float32)
        made[name] = Scan(name, cloud, np.zeros(points, dtype=np.int16), found)
    return made
