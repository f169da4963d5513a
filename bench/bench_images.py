# SPDX-License-Identifier: Apache-2.0
"""Measures images: CPU time per image of whole loaders, from JPEG files in memory to batches in the trainer.

All ways use the same files and the same crops, and one worker unless the row says otherwise. One case compares the
pixels of each way with those of Pillow. Files are made of the two photographs that scikit-learn ships.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_words, measure, medians, run_all

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "python" / "lib"))
import photos  # noqa: E402

if photos.MISSING:
    sys.exit(f"images: {photos.WHY_MISSING}")
photos.import_torchvision()
import torchvision.transforms as v1  # noqa: E402
from headrace import images  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

try:
    import cv2

    cv2.setNumThreads(1)
except ImportError:
    cv2 = None
try:
    import simplejpeg
except ImportError:
    simplejpeg = None

BATCH, SIDE, FILES = 64, 224, 64 if QUICK else 400
SECONDS = 2.0 if QUICK else 5.0
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
PILLOW, NATIVE, LAZY = "Pillow + torchvision", "headrace, native", "headrace, load_rgb under torch"
MEMORY = "memory of workers and batches made ahead"
torch.set_num_threads(1)

Crop = tuple[int, int, int, int, bool]  # left, upper, width, height, whether it is flipped


def make_files(width: int, height: int) -> list[bytes]:
    """Returns photographs of this size, of about half a byte per pixel, with 4:2:0."""
    draw = random.Random(1)
    sources = [photos.photo(name) for name in photos.NAMES]
    files = []
    for _ in range(FILES if width < 1000 else max(8, FILES // 10)):
        source = draw.choice(sources)
        part_width = draw.randint(400, 640)
        part_height = min(427, part_width * 3 // 4)
        left, upper = draw.randint(0, 640 - part_width), draw.randint(0, 427 - part_height)
        part = source.crop((left, upper, left + part_width, upper + part_height)).resize((width, height), 1)
        files.append(photos.encode(part, quality=93, subsampling="4:2:0"))
    return files


def draw_crops(count: int, width: int, height: int) -> list[Crop]:
    torch.manual_seed(1)
    shown = torch.empty(3, height, width)
    crops = []
    for _ in range(count):
        upper, left, tall, wide = v1.RandomResizedCrop.get_params(shown, [0.08, 1.0], [3 / 4, 4 / 3])
        crops.append((left, upper, wide, tall, bool(torch.rand(1) < 0.5)))
    return crops


def by_images(opener: Callable[[Any], Any]) -> Callable[[bytes, Crop], Any]:
    def make(data: bytes, crop: Crop) -> Any:
        left, upper, width, height, flips = crop
        image = opener(io.BytesIO(data)).convert("RGB").crop((left, upper, left + width, upper + height))
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flips else image

    return make


def by_simplejpeg(data: bytes, crop: Crop) -> Any:
    left, upper, width, height, flips = crop
    image = Image.fromarray(simplejpeg.decode_jpeg(data)[upper : upper + height, left : left + width])
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flips else image


def by_opencv(data: bytes, crop: Crop) -> Any:
    left, upper, width, height, flips = crop
    array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[upper : upper + height, left : left + width]
    array = cv2.cvtColor(cv2.resize(array, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), cv2.COLOR_BGR2RGB)
    return cv2.flip(array, 1) if flips else array


def by_v2(data: bytes, crop: Crop) -> Any:
    left, upper, width, height, flips = crop
    tensor = v2.functional.pil_to_tensor(Image.open(io.BytesIO(data)).convert("RGB"))
    tensor = v2.functional.resized_crop(tensor, upper, left, height, width, [SIDE, SIDE], antialias=True)
    return v2.functional.horizontal_flip(tensor) if flips else tensor


class Tail:
    """The last steps: bytes, or normalised floats."""

    def __init__(self, is_float: bool, is_native: bool) -> None:
        self.is_float = is_float
        steps = [v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)] if is_float else [v1.PILToTensor()]
        self.steps = v1.Compose(steps)
        if is_native:
            self.steps = images.native(self.steps)

    def __call__(self, image: Any) -> Any:
        if isinstance(image, torch.Tensor):
            return v1.functional.normalize(image.float().div(255), MEAN, DEVIATION) if self.is_float else image
        if isinstance(image, np.ndarray):
            if not self.is_float:
                return torch.from_numpy(image).permute(2, 0, 1)
            scaled = (image.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(DEVIATION)
            return torch.from_numpy(scaled).permute(2, 0, 1)
        return self.steps(image)


class Files(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, files: list[bytes], crops: list[Crop], make: Callable[[bytes, Crop], Any], tail: Any) -> None:
        self.files, self.crops, self.make, self.tail = files, crops, make, tail

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        number = index % len(self.crops)
        return self.tail(self.make(self.files[number % len(self.files)], self.crops[number])), number


class Transformed(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A transform of the user's on whole images, such as an evaluation or SimCLR's two views."""

    def __init__(self, files: list[bytes], opener: Callable[[Any], Any], transform: Any, views: int) -> None:
        self.files, self.opener, self.transform, self.views = files, opener, transform, views

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        image = self.opener(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return [self.transform(image) for _ in range(self.views)]


def cost_of(loader_class: Any, dataset: Any, workers: int, **options: Any) -> Any:
    loader = loader_class(dataset, BATCH, num_workers=workers, multiprocessing_context="fork", **options)
    batches = iter(loader)
    pids = [worker.pid for worker in batches._workers]
    try:
        return measure(batches, pids, seconds=SECONDS, warm_count=3)
    finally:
        batches._shutdown_workers()


def memory_of(pids: list[int]) -> float:
    """Returns the MiB that a loader takes: memory that only its workers have, and the files in memory in which they
    pass batches, mapped or not (torch's are on their way as descriptors)."""
    private = sum(map(private_kib, pids)) / 1024
    files: dict[tuple[int, int], int] = {}
    for pid in [os.getpid(), *pids]:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry).startswith(("/dev/shm/", "/memfd:")):
                    status = entry.stat()
                    files[status.st_dev, status.st_ino] = status.st_blocks * 512
    return private + sum(files.values()) / 2**20


def private_kib(pid: int) -> int:
    """Returns the private memory of a process that is not of a file."""
    kib, is_anonymous = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_anonymous = words[4] == "0"
        elif is_anonymous and words[0] in ("Private_Clean:", "Private_Dirty:"):
            kib += int(words[1])
    return kib


Way = tuple[Any, Any, int, dict[str, Any]]  # loader class, dataset, workers, options


def in_turn(work: str, ways: dict[str, Way], per: int = BATCH) -> list[Row]:
    """Measures CPU time per image, of trainer and workers, in turn."""
    costs: dict[str, list[Any]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (loader_class, dataset, workers, options) in ways.items():
            costs[name].append(cost_of(loader_class, dataset, workers, **options))
    rows = []
    for name, found in costs.items():
        cost = medians(found)
        rows.append(Row(work, name, ways[name][2], (cost.cpu_us + cost.worker_cpu_us) / per, "us"))
        rows.append(Row(f"{work}: time that passed", name, ways[name][2], cost.us / per, "us"))
    return rows


def of_size(width: int, height: int, is_float: bool) -> Callable[[], list[Row]]:
    def run() -> list[Row]:
        files = make_files(width, height)
        crops = draw_crops(len(files) * 4, width, height)
        torchs = torch.utils.data.DataLoader
        plain, native = Tail(is_float, False), Tail(is_float, True)
        ways: dict[str, Way] = {PILLOW: (torchs, Files(files, crops, by_images(Image.open), plain), 1, {})}
        if simplejpeg:
            ways["simplejpeg + Pillow's resize"] = (torchs, Files(files, crops, by_simplejpeg, plain), 1, {})
        ways["torchvision v2 on tensors"] = (torchs, Files(files, crops, by_v2, plain), 1, {})
        if cv2:
            ways["OpenCV"] = (torchs, Files(files, crops, by_opencv, plain), 1, {})
        ways[LAZY] = (torchs, Files(files, crops, by_images(images.open), plain), 1, {})
        ways[NATIVE] = (DataLoader, Files(files, crops, by_images(images.open), native), 1, {})
        return in_turn(name_of(width, height, is_float), ways)

    return run


def name_of(width: int, height: int, is_float: bool) -> str:
    return f"{width} x {height}, {'float32' if is_float else 'uint8'}"


def differences() -> list[Row]:
    """The largest difference of a byte from Pillow's, over all crops."""
    files = make_files(500, 375)
    crops = draw_crops(len(files), 500, 375)
    ways: dict[str, Any] = {"torchvision v2 on tensors": by_v2, LAZY: by_images(images.open)}
    ways |= {"simplejpeg + Pillow's resize": by_simplejpeg} if simplejpeg else {}
    ways |= {"OpenCV": by_opencv} if cv2 else {}
    found = dict.fromkeys(ways, 0)
    for data, crop in zip(files, crops, strict=True):
        expected = np.asarray(by_images(Image.open)(data, crop)).astype(int)
        for name, make in ways.items():
            image = make(data, crop)
            array = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
            found[name] = max(found[name], int(np.abs(array.astype(int) - expected).max()))
    return [Row("largest difference from Pillow", name, 0, value, "of 255") for name, value in found.items()]


def threads() -> list[Row]:
    """One worker with two threads and torch with two workers, on two cores: time that passes, and memory."""
    files, work = make_files(500, 375), "two cores, 500 x 375, float32"
    crops = draw_crops(len(files) * 4, 500, 375)
    theirs = Files(files, crops, by_images(Image.open), Tail(True, False))
    ours = Files(files, crops, by_images(images.open), Tail(True, True))
    rows = in_turn(
        work,
        {
            PILLOW: (torch.utils.data.DataLoader, theirs, 2, {}),
            NATIVE: (DataLoader, ours, 2, {}),
            "headrace, native, threads=2": (DataLoader, ours, 1, {"threads": 2}),
        },
    )
    for name, loader in (
        (PILLOW, torch.utils.data.DataLoader(theirs, BATCH, num_workers=2)),
        ("headrace, native, threads=2", DataLoader(ours, BATCH, num_workers=1, threads=2)),
    ):
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        time.sleep(3)  # until all batches that may be made ahead are ready, as with a trainer that is slower
        memory = memory_of([worker.pid for worker in batches._workers])
        rows.append(Row(MEMORY, name, loader.num_workers, memory, "MiB"))
        batches._shutdown_workers()
    return rows


def of_transform(work: str, transform: Callable[[], Any], views: int) -> Callable[[], list[Row]]:
    def run() -> list[Row]:
        files = make_files(500, 375)
        plain = Transformed(files, Image.open, transform(), views)
        native = Transformed(files, images.open, images.native(transform()), views)
        ways: dict[str, Way] = {
            PILLOW: (torch.utils.data.DataLoader, plain, 1, {}),
            NATIVE: (DataLoader, native, 1, {}),
        }
        return in_turn(work, ways)

    return run


def evaluation() -> Any:
    return v1.Compose([v1.Resize(256), v1.CenterCrop(SIDE), v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)])


def simclr() -> Any:
    return v1.Compose(
        [
            v1.RandomResizedCrop(SIDE, scale=(0.2, 1.0)),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
        ]
    )


def goals() -> list[Goal]:
    def ratio(work: str, rival: str, least: float, workers: int = 1, against: int = 1) -> Goal:
        return Goal(f"{work}: {rival}", Key(work, rival, workers), 1 / least, Key(work, PILLOW, against))

    threaded = "two cores, 500 x 375, float32: time that passed"
    memory = Key(MEMORY, "headrace, native, threads=2", 1)
    return [
        ratio(name_of(500, 375, False), NATIVE, 2.2),
        ratio(name_of(500, 375, True), NATIVE, 2.9),
        ratio(name_of(500, 375, False), LAZY, 1.7),
        ratio(name_of(2000, 1500, True), NATIVE, 2.5),
        ratio(threaded, "headrace, native, threads=2", 2.0, 1, 2),
        Goal(MEMORY, memory, 0.5, Key(MEMORY, PILLOW, 2)),
        ratio("evaluation", NATIVE, 1.8),
        ratio("SimCLR, two views", NATIVE, 1.8),
        Goal("largest difference", Key("largest difference from Pillow", LAZY), 0, unit="of 255"),
    ]


CASES = [
    Case("differences", differences),
    Case("uint8", of_size(500, 375, False)),
    Case("float32", of_size(500, 375, True)),
    Case("large", of_size(2000, 1500, True)),
    Case("threads", threads),
    Case("evaluation", of_transform("evaluation", evaluation, 1)),
    Case("simclr", of_transform("SimCLR, two views", simclr, 2)),
]


def show(rows: list[Row]) -> None:
    theirs = {row.work: row.value for row in rows if row.rival == PILLOW}
    for row in rows:
        ratio = in_words(row.value / theirs[row.work]) if row.work in theirs else ""
        print(f"{row.work:48} {row.rival:30} {row.workers:3} {row.value:10.1f} {row.unit:6} {ratio}", flush=True)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_all(__doc__ or "", CASES, lambda case: case.run(), show, goals)


if __name__ == "__main__":
    main()
