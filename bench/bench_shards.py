# SPDX-License-Identifier: Apache-2.0
"""Measures tar files as WebDataset writes them: samples as bytes, images through two workers, and the index. The rivals
are webdataset, tarfile, and os.pread at places that are known. Values are CPU times, with workers the time that passes;
all files are in the page cache.
"""

from __future__ import annotations

import importlib
import io
import itertools
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import headrace.torch
import torch
import torch.utils.data
from headrace import _core, sources
from headrace.sources import _index
from measure import QUICK, Case, Goal, Key, Row, in_turn, run_all, show_against

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

OURS, WEBDATASET, TARFILE, PREAD = "headrace", "webdataset", "tarfile", "os.pread"
PILLOW = "webdataset, Pillow"
SMALL, LARGE = 4_000, 110_000
MEMBERS = 50_000 if QUICK else 1_000_000
IMAGES = "JPEG of 110 KB to tensors (RandomResizedCrop 224), 2 workers, a sample"
INDEX = f"index of {MEMBERS:,} members of 0 bytes"
AGAIN = f"an index of {MEMBERS:,} members, opened again"


def work_of(size: int) -> str:
    return f"a sample of tar as bytes: jpg of {size // 1000} KB and cls, at random"


def write(path: str, samples: int, content: Callable[[int], bytes]) -> str:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            for field, data in (("jpg", content(number)), ("cls", b"%d" % (number % 1000))):
                info = tarfile.TarInfo(f"{number:07d}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def each_us(samples: Iterator[Any], count: int) -> float:
    """Returns the CPU time of a sample of an iterator, after its first one."""
    next(samples)
    start = time.thread_time()
    done = sum(1 for _ in itertools.islice(samples, count))
    return 1e6 * (time.thread_time() - start) / done


def by_webdataset(path: str) -> Iterator[Any]:
    """Gives the samples in order: webdataset has no others."""
    tariterators = importlib.import_module("webdataset.tariterators")
    return iter(tariterators.tarfile_samples([{"url": path}]))


def by_pread(path: str, places: list[list[tuple[int, int]]], order: list[int]) -> Iterator[Any]:
    fd = os.open(path, os.O_RDONLY)
    try:
        for index in order:
            yield tuple([os.pread(fd, size, at) for at, size in places[index]])
    finally:
        os.close(fd)


def of_bytes(size: int) -> list[Row]:
    count = (2_000 if QUICK else 20_000) * SMALL // size
    rng = random.Random(0)
    content = rng.randbytes(size)
    with tempfile.TemporaryDirectory() as folder:
        path = write(f"{folder}/a.tar", count, lambda number: content)
        source: Any = sources.Tar(path, fields=("jpg", "cls"), decode=None, keep="job")
        places = [[(at, length) for _, _, at, length in source._tar.find(i)[1]] for i in range(count)]
        order = rng.sample(range(count), count)
        ways = {
            WEBDATASET: lambda: each_us(by_webdataset(path), count),
            OURS: lambda: each_us((source[i] for i in order), count),
            PREAD: lambda: each_us(by_pread(path, places, order), count),
        }
        return in_turn(work_of(size), ways, "us")


# ---- images ----


def make_jpeg(number: int) -> bytes:
    """A file of about 110 KB: smooth noise of 700 x 500."""
    image: Any = importlib.import_module("PIL.Image")
    rng = random.Random(number)
    small = image.frombytes("RGB", (70, 50), rng.randbytes(70 * 50 * 3))
    target = io.BytesIO()
    small.resize((700, 500)).save(target, "jpeg", quality=88)
    return target.getvalue()


class Decoded:
    """Makes of a sample what a pipeline of webdataset makes: Pillow's image, transformed."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, sample: Any) -> Any:
        image: Any = importlib.import_module("PIL.Image")
        return self._transform(image.open(io.BytesIO(sample["jpg"])).convert("RGB")), int(sample["cls"])


def of_images() -> list[Row]:
    photos: Any = importlib.import_module("photos")
    if photos.MISSING:
        print("torchvision is not installed, so images are not measured", flush=True)
        return []
    photos.import_torchvision()
    transforms: Any = importlib.import_module("torchvision.transforms")
    from headrace import images

    webdataset: Any = importlib.import_module("webdataset")
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    count = 320
    some = [make_jpeg(number) for number in range(30)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            write(f"{folder}/{number}.tar", count // 2, lambda number: some[number % len(some)])

        def theirs() -> float:
            dataset = webdataset.WebDataset(f"{folder}/{{0..1}}.tar", shardshuffle=False)
            dataset = dataset.map(Decoded(transforms.Compose(steps)))
            return passed_us(torch.utils.data.DataLoader(dataset, 32, num_workers=2))

        def ours() -> float:
            native = images.native(transforms.Compose(steps))
            source = sources.Tar(f"{folder}/*.tar", fields=("jpg", "cls"), transform={"jpg": native}, keep="job")
            return passed_us(headrace.torch.DataLoader(source, 32, shuffle=True, num_workers=2))

        return in_turn(IMAGES, {PILLOW: theirs, OURS: ours}, "us", rounds=3)


def passed_us(loader: Any) -> float:
    """Returns the time of a sample from the second batch on."""
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    count = sum(len(batch[1]) for batch in batches)
    return 1e6 * (time.perf_counter() - start) / count


# ---- the index ----


def write_empty(path: str, count: int) -> None:
    """Writes members of 0 bytes, which tarfile takes a minute for."""
    info = tarfile.TarInfo("0" * 7 + ".txt")
    head = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    base = sum(head[:148]) + sum(head[156:]) + 8 * ord(" ")
    with open(path, "wb", 1 << 20) as file:
        for number in range(count):
            digits = b"%07d" % number
            head[:7] = digits
            head[148:156] = b"%06o\0 " % (base + sum(digits) - 7 * ord("0"))
            file.write(head)
        file.write(b"\0" * 1024)


def of_index() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.tar"
        write_empty(path, MEMBERS)

        def ours() -> float:
            start = time.process_time()
            index = _index.make_index(_core.INDEX_TAR, [path], False)
            assert index.look()[1] == MEMBERS
            return 1e3 * (time.process_time() - start)

        def theirs() -> float:
            start = time.process_time()
            with tarfile.open(path, "r:") as tar:
                assert sum(1 for _ in tar) == MEMBERS
            return 1e3 * (time.process_time() - start)

        def again() -> float:
            start = time.process_time()
            _core.Index(data, _core.INDEX_TAR, False)
            return 1e3 * (time.process_time() - start)

        def source_again() -> float:
            start = time.process_time()
            assert len(sources.Tar(path, fields=("txt",), keep="job")) == MEMBERS
            return 1e3 * (time.process_time() - start)

        rows = in_turn(INDEX, {OURS: ours, TARFILE: theirs}, "ms", rounds=1)  # tarfile takes a minute
        made: Any = _index.make_index(_core.INDEX_TAR, [path], False)
        data = bytes(made)
        held = sources.Tar(path, fields=("txt",), keep="job")
        rows += in_turn(AGAIN, {OURS: again, "sources.Tar": source_again}, "ms")
        assert len(held) == MEMBERS
        return rows


def goals() -> list[Goal]:
    return [
        Goal("4 KB, of webdataset", Key(work_of(SMALL), OURS), 1 / 12, Key(work_of(SMALL), WEBDATASET)),
        Goal("110 KB, of webdataset", Key(work_of(LARGE), OURS), 1 / 6, Key(work_of(LARGE), WEBDATASET)),
        Goal("4 KB, of os.pread", Key(work_of(SMALL), OURS), 1 / 0.8, Key(work_of(SMALL), PREAD)),
        Goal("110 KB, of os.pread", Key(work_of(LARGE), OURS), 1 / 0.8, Key(work_of(LARGE), PREAD)),
        Goal("images, of webdataset with Pillow", Key(IMAGES, OURS), 1 / 2.5, Key(IMAGES, PILLOW)),
        Goal("index, of tarfile", Key(INDEX, OURS), 1 / 40, Key(INDEX, TARFILE)),
        Goal("index, opened again", Key(AGAIN, OURS), 5, unit="ms"),
    ]


CASES = [
    Case("bytes of 4 KB", partial(of_bytes, SMALL)),
    Case("bytes of 110 KB", partial(of_bytes, LARGE)),
    Case("images", of_images, in_quick=False),
    Case("index", of_index),
]


def main() -> None:
    torch.set_num_threads(1)
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against(WEBDATASET, PILLOW, TARFILE), goals)


if __name__ == "__main__":
    main()
