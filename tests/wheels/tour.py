# SPDX-License-Identifier: Apache-2.0
"""Uses an installed wheel as a new user would, without torch, and prints one JSON object with what it saw.

tests/wheels/test_use.py runs it in an environment with NumPy, Pillow and headrace only. `tour.py one` leaves out what
starts a second interpreter, for an emulator that cannot do that.
"""

import io
import itertools
import json
import os
import resource
import sys
import tempfile

import headrace
import numpy as np
from headrace import _core, images
from PIL import Image

SIDE = 64
COUNT = 32
LARGE = (48, 3, 256, 256)  # a block of 37 MiB as float32: larger than what malloc keeps by itself
PAGE = resource.getpagesize()


class Photos:
    """JPEG files in memory, decoded where a sample is made."""

    def __init__(self, count: int) -> None:
        draw = np.random.default_rng(1)
        self.files = []
        for _ in range(count):
            file = io.BytesIO()
            pixels = draw.integers(0, 255, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((SIDE, SIDE)).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(images.open(io.BytesIO(self.files[index])).convert("RGB"))


class Large:
    """Samples whose collate function makes one block that malloc would map, and how many pages it took so far."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index


def make_large(samples: list) -> list:
    block = np.ones(LARGE, np.float32)
    return [block, np.array([resource.getrusage(resource.RUSAGE_SELF).ru_minflt])]


def look_at_images(method: str) -> dict:
    photos = Photos(COUNT)
    loader = headrace.Loader(photos, 4, num_workers=2, multiprocessing_context=method)
    batches = [np.array(batch) for batch in loader]
    plain = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in photos.files]
    counts = images.report(loader)
    return {"same": np.array_equal(np.concatenate(batches), np.stack(plain)), "made": counts.made, "left": counts.left}


def look_at_heap(method: str) -> list[int]:
    """How many pages a worker was given for each batch with a large block."""
    loader = headrace.Loader(Large(), 1, num_workers=1, multiprocessing_context=method, collate_fn=make_large)
    given = [int(batch[1][0]) for batch in loader]
    return [after - before for before, after in itertools.pairwise(given)]


def look_at_frozen(folder: str) -> bool:
    data = {"names": [f"sample {i}" for i in range(1000)], "sizes": list(range(1000))}
    path = os.path.join(folder, "data.frozen")
    headrace.freeze(data, path)
    return headrace.thaw(headrace.open(path)) == data


def build() -> dict:
    with open(os.environ["TOUR_BUILDS"], "a") as file:
        file.write("built\n")
    return {"x": np.arange(1000)}


def look_at_cache(folder: str) -> list[int]:
    """How often the data was built, and its sum each time it was asked for."""
    os.environ["HEADRACE_CACHE"], os.environ["TOUR_BUILDS"] = folder, os.path.join(folder, "builds")
    sums = [int(headrace.cache("tour", build)["x"].sum()) for _ in range(2)]
    with open(os.environ["TOUR_BUILDS"]) as file:
        return [len(file.readlines()), *sums]


def look_at_packed(folder: str) -> bool:
    """Tells if compressed arrays come into the cache whole. The zlib inside the wheel unpacks them."""
    rows = np.arange(100_000).reshape(1000, 100) % 7
    path = os.path.join(folder, "packed.npz")
    np.savez_compressed(path, rows=rows)
    found = headrace.cache.add("packed", path, root=folder)
    return os.path.getsize(path) < rows.nbytes / 10 and np.array_equal(found["packed"]["rows"], rows)


def main(methods: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seen = {
            "where": headrace.__file__,
            "extension": _core.__file__,
            "images": {method: look_at_images(method) for method in methods},
            "heap": {method: look_at_heap(method) for method in methods},
            "block pages": int(np.prod(LARGE)) * 4 // PAGE,
            "frozen": look_at_frozen(folder),
            "cache": look_at_cache(folder),
            "packed": look_at_packed(folder),
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(["fork"] if "one" in sys.argv[1:] else ["fork", "spawn", "forkserver"])
