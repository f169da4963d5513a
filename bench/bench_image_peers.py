# SPDX-License-Identifier: Apache-2.0
"""Measures other libraries that decode and resize JPEG files, by hand: CPU time per image in one process and thread,
and the largest difference of a byte from Pillow's pixels. They are too large for `make bench`.

uv pip install --no-deps --target PEERS imagecodecs opencv-python-headless simplejpeg turboloader spdl spdl-io
uv pip install --no-deps --target PEERS nvidia-dali-cuda120 nvidia-nvimgcodec-cu12 optree gast \
    astunparse dm-tree six makefun nvtx
PYTHONPATH=build/site:PEERS OMP_NUM_THREADS=1 .venv/bin/python bench/bench_image_peers.py
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import bench_images as common
import numpy as np
from headrace import images
from PIL import Image

ROUNDS = 5
SIDE = common.SIDE
Make = Callable[[list[bytes], list[common.Crop]], Iterator[Any]]


def one_by_one(make: Callable[[bytes, common.Crop], Any]) -> Make:
    def run(files: list[bytes], crops: list[common.Crop]) -> Iterator[Any]:
        for data, crop in zip(files, crops, strict=True):
            yield np.asarray(make(data, crop))

    return run


def imagecodecs_and_opencv() -> Make:
    import cv2
    import imagecodecs

    cv2.setNumThreads(1)

    def make(data: bytes, crop: common.Crop) -> Any:
        left, upper, width, height, flips = crop
        array = imagecodecs.jpeg8_decode(data)[upper : upper + height, left : left + width]
        array = cv2.resize(array, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(array, 1) if flips else array

    return one_by_one(make)


def turboloader() -> Make:
    import turboloader as library

    resize = library.Resize(SIDE, SIDE, library.InterpolationMode.BILINEAR)
    decode = sys.modules["_turboloader"].decode_jpeg

    def make(data: bytes, crop: common.Crop) -> Any:
        left, upper, width, height, flips = crop
        array = decode(data)[upper : upper + height, left : left + width]
        array = resize.apply(np.ascontiguousarray(array))
        return array[:, ::-1] if flips else array

    return one_by_one(make)


def spdl() -> Make:
    import spdl.io as library

    def make(data: bytes, crop: common.Crop) -> Any:
        left, upper, width, height, flips = crop
        steps = f"crop={width}:{height}:{left}:{upper}:exact=1,scale={SIDE}:{SIDE}:flags=bilinear,format=rgb24"
        return library.to_numpy(library.load_image(data, filter_desc=steps + (",hflip" if flips else "")))

    return one_by_one(make)


def dali() -> Make:
    from nvidia.dali import fn, pipeline_def, types

    @functools.cache
    def build(count: int) -> Any:
        """Returns a pipeline that makes the same batch again and again."""
        shown, cut = list(given_files[:count]), list(given_crops[:count])
        columns = [
            [np.frombuffer(data, np.uint8) for data in shown],
            [np.array(crop[:2], np.int32) for crop in cut],
            [np.array(crop[2:4], np.int32) for crop in cut],
            [np.array(crop[4], np.int32) for crop in cut],
        ]

        @pipeline_def(batch_size=count, num_threads=1, device_id=None)
        def pipeline() -> Any:
            given = [fn.external_source(source=itertools.repeat(column)) for column in columns]
            options = {"device": "cpu", "axis_names": "WH", "normalized_anchor": False, "normalized_shape": False}
            array = fn.decoders.image_slice(*given[:3], **options)
            array = fn.resize(array, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)
            return fn.flip(array, horizontal=given[3])

        made = pipeline(prefetch_queue_depth=1)
        made.build()
        return made

    given_files: list[bytes] = []
    given_crops: list[common.Crop] = []

    def run(files: list[bytes], crops: list[common.Crop]) -> Iterator[Any]:
        given_files[:], given_crops[:] = files, crops
        (batch,) = build(len(files)).run()
        for number in range(len(files)):
            yield np.array(batch.at(number))

    return run


WAYS: dict[str, tuple[str, Callable[[], Make]]] = {
    "Pillow": ("pillow", lambda: one_by_one(common.by_images(Image.open))),
    "headrace, images.open": ("headrace", lambda: one_by_one(common.by_images(images.open))),
    "simplejpeg + Pillow's resize": ("simplejpeg", lambda: one_by_one(common.by_simplejpeg)),
    "imagecodecs + OpenCV": ("imagecodecs", imagecodecs_and_opencv),
    "TurboLoader": ("turboloader", turboloader),
    "SPDL": ("spdl-io", spdl),
    "DALI on the CPU": ("nvidia-dali-cuda120", dali),
}


def main() -> None:
    files = common.make_files(500, 375)
    crops = common.draw_crops(len(files), 500, 375)
    expected = [array.astype(int) for array in WAYS["Pillow"][1]()(files, crops)]
    ways: dict[str, Make] = {}
    for name, (package, make) in WAYS.items():
        try:
            way = make()
            list(way(files, crops))  # the first one loads libraries
            ways[f"{name} {metadata.version(package)}"] = way
        except (ImportError, RuntimeError) as error:  # SPDL looks for the libraries of FFmpeg when it is used
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)
    differences: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            start = time.process_time()
            made = list(run(files, crops))
            times[name].append(1e6 * (time.process_time() - start) / len(files))
            differences[name] = max(int(np.abs(one - other).max()) for one, other in zip(made, expected, strict=True))
    first = statistics.median(next(iter(times.values())))
    for name, found in times.items():
        median = statistics.median(found)
        print(f"| {name} | {median:.0f} us | {first / median:.2f} | {differences[name]} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
