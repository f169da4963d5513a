# SPDX-License-Identifier: Apache-2.0
"""Images in headrace's loaders: the batches are torch's, whatever collates them and however many threads make them."""

from __future__ import annotations

import dataclasses
import io
import os
from collections import UserDict
from pathlib import Path
from random import Random
from typing import Any

import photos
import pytest

if photos.MISSING:
    pytest.skip(photos.WHY_MISSING, allow_module_level=True)
photos.import_torchvision()
import headrace  # noqa: E402
import torch  # noqa: E402
import torch.utils.data  # noqa: E402
from headrace import images  # noqa: E402
from headrace.images import _deferred  # noqa: E402
from headrace.images._deferred import DeferredTensor  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402
from loaders import needs_failpoints  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

COUNT = 37
EPOCHS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of classes, of small photographs of several kinds, one of them a PNG file."""
    root = tmp_path_factory.mktemp("photos")
    files = photos.Drawn(Random(2))
    for number in range(COUNT):
        place = root / f"class{number % 3}"
        place.mkdir(exist_ok=True)
        data = files.file()
        if number == 5:
            Image.open(io.BytesIO(data)).save(place / "5.png")
        else:
            (place / f"{number}.jpg").write_bytes(data)
    return root


def train() -> Any:
    return v1.Compose(
        [
            v1.RandomResizedCrop(32),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def own_collate(samples: list[Any]) -> Any:
    assert not any(isinstance(image, DeferredTensor) for image, _ in samples)
    return torch.stack([image for image, _ in samples]), [label for _, label in samples]


class Views(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Two views of each image, in a dict, next to other values."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        path, label = self.folder.samples[index]
        image = self.folder.loader(path)
        transform = self.folder.transform
        return {"views": [transform(image), transform(image)], "label": label, "name": str(index), "number": index / 7}


class Cached(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Keeps each sample, as it was given to the loader, and gives it again."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.inner[index]
        return self.kept[index]


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.inner[index] for index in range(first, len(self.inner), step))


DATASETS: dict[str, Any] = {
    "folder": lambda inner: inner,
    "views": Views,
    "cached": Cached,
    "stream": Stream,
    "subset": lambda inner: torch.utils.data.Subset(inner, range(3, 30)),
}


def batches(loader_class: Any, dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(11)
    shuffle = not isinstance(dataset, torch.utils.data.IterableDataset)
    loader = loader_class(dataset, shuffle=shuffle, **{"batch_size": 8, **options})
    return [batch for _ in range(EPOCHS) for batch in loader]


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch_and_torchvision(folder: Path, kind: str, workers: int) -> None:
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    theirs = DATASETS[kind](ImageFolder(folder, train()))
    expected = batches(torch.utils.data.DataLoader, theirs, **options)
    for threads in (1, 3, "auto"):
        ours = DATASETS[kind](ImageFolder(folder, images.native(train()), loader=images.load_rgb))
        assert_equal(batches(DataLoader, ours, threads=threads, **options), expected)
    ours = DATASETS[kind](ImageFolder(folder, images.native(train()), loader=images.load_rgb))
    assert_equal(batches(torch.utils.data.DataLoader, ours, **options), expected)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"collate_fn": own_collate},
        {"batch_size": None},
        {"drop_last": True, "batch_size": 5},
        {"collate_fn": list},
    ],
)
def test_other_ways_to_collate_get_ordinary_tensors(folder: Path, workers: int, options: dict[str, Any]) -> None:
    expected = batches(torch.utils.data.DataLoader, ImageFolder(folder, train()), num_workers=workers, **options)
    ours = ImageFolder(folder, images.native(train()), loader=images.load_rgb)
    assert_equal(batches(DataLoader, ours, num_workers=workers, threads=2, **options), expected)


def load_some(path: str) -> Any:
    if path.endswith(("7.jpg", "4.jpg")):
        raise OSError("bad")
    return images.load_rgb(path)


def load_some_at_once(path: str) -> Any:
    return load_some(path).copy() if load_some(path).getbbox() else None


@pytest.mark.parametrize("workers", [0, 1])
def test_options_for_samples_work_with_images(folder: Path, workers: int) -> None:
    """Samples made one by one, some of which are bad."""
    options = {"num_workers": workers, "on_bad_sample": "skip", "rng": "sample", "seed": 3}
    native = ImageFolder(folder, images.native(train()), loader=load_some)
    ours = batches(DataLoader, native, threads=2, **options)
    theirs = batches(DataLoader, ImageFolder(folder, train(), loader=load_some_at_once), **options)
    assert_equal(ours, theirs)
    assert sum(len(labels) for _, labels in ours) < EPOCHS * COUNT


def batch_message(dataset: Any, workers: int) -> str:
    with pytest.raises(RuntimeError) as error:
        batches(DataLoader, dataset, num_workers=workers)
    return str(error.value)


def test_sizes_that_differ_keep_torchs_message(folder: Path) -> None:
    transform = v1.Compose([v1.ToTensor()])
    ours = ImageFolder(folder, images.native(transform), loader=images.load_rgb)
    assert batch_message(ImageFolder(folder, transform), 0) == batch_message(ours, 0)
    last, expected = (
        batch_message(dataset, 1).strip().splitlines()[-1] for dataset in (ours, ImageFolder(folder, transform))
    )
    assert last == expected
    assert "size" in last


@pytest.mark.parametrize("threads", [0, -1, 257, 2**40, 1.5, "all", True, None])
def test_bad_numbers_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        DataLoader(range(3), threads=threads)
    assert str(error.value) == f"threads should be from 1 to 256, or 'auto', but got {threads!r}"
    assert DataLoader(range(3), threads=256).threads == 256


def test_kept_samples_keep_their_values(folder: Path) -> None:
    """A dataset that keeps a sample of each batch, whose memory would be used again."""
    ours = Cached(ImageFolder(folder, images.native(train()), loader=images.load_rgb))
    torch.manual_seed(1)
    first = list(DataLoader(ours, 4, threads=2))
    assert_equal(list(DataLoader(ours, 4, threads=2)), first)
    torch.manual_seed(1)
    worker_batches = []
    loader = DataLoader(Cached(ours.inner), 4, num_workers=1, persistent_workers=True)
    for _ in range(3):
        worker_batches.append(list(loader))
    assert_equal(worker_batches[1], worker_batches[0])
    assert_equal(worker_batches[2], worker_batches[0])


def v2_train() -> Any:
    """Ends with an Image of torchvision, which the default collate stacks to an ordinary tensor."""
    crop = v2.RandomResizedCrop(32)
    return v2.Compose([crop, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)])


class Grey(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """An image as bytes and as other dtypes, so that a batch has several columns of images."""

    def __init__(self, folder: Any, is_native: bool) -> None:
        tails = [
            v1.Compose([v1.Resize((20, 30)), v1.Grayscale(), v1.PILToTensor()]),
            v2.Compose([v2.Resize((9, 7)), v2.PILToTensor(), v2.ToDtype(torch.float64, scale=True)]),
            v2.Compose([v2.Resize((9, 7)), v2.PILToTensor(), v2.ToDtype(torch.int32, scale=True)]),
            v2.Compose([v2.Resize((9, 7)), v2.PILToTensor(), v2.ToDtype(torch.bfloat16, scale=True)]),
        ]
        self.folder = folder
        self.tails = [images.native(tail) for tail in tails] if is_native else tails

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        return [tail(self.folder[index][0]) for tail in self.tails]


def refuse(*arguments: Any) -> Any:
    raise AssertionError("an image was made outside the batch's memory")


@pytest.mark.parametrize("kind", ["v1", "v2", "columns"])
def test_images_are_made_in_the_batchs_memory(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers have no other way to make pixels."""
    (folder / "class2" / "5.png").rename(folder / "5.png")  # is left to Pillow
    try:
        if kind == "columns":
            theirs: Any = Grey(ImageFolder(folder), False)
            ours: Any = Grey(ImageFolder(folder, loader=images.load_rgb), True)
        else:
            transform = train() if kind == "v1" else v2_train()
            theirs = ImageFolder(folder, transform)
            ours = ImageFolder(folder, images.native(transform), loader=images.load_rgb)
        expected = batches(torch.utils.data.DataLoader, theirs)
        found = batches(DataLoader, ours)
        assert_equal(found, expected)
        monkeypatch.setattr(_deferred._tables, "make", refuse)
        torch.manual_seed(11)
        if kind == "columns":
            loader = DataLoader(ours, 8, shuffle=True, num_workers=1, threads=2, multiprocessing_context="fork")
            assert_equal([batch for _ in range(EPOCHS) for batch in loader], expected)
            return
        loader = DataLoader(ours, 8, num_workers=1, threads=2, multiprocessing_context="fork")
        for batch, _ in loader:
            assert type(batch) is torch.Tensor
    finally:
        (folder / "5.png").rename(folder / "class2" / "5.png")


def test_report_counts_images_of_all_workers(folder: Path) -> None:
    ours = ImageFolder(folder, images.native(train()), loader=images.load_rgb)
    images.load_rgb(ours.samples[0][0]).resize((9, 9)).tobytes()  # in this process
    loader = DataLoader(ours, 4, num_workers=2, persistent_workers=True)
    with pytest.raises(RuntimeError, match="before the first"):
        images.report(loader)
    for epoch in (1, 2):
        list(loader)
        report = images.report(loader)
        assert report.made == epoch * (COUNT - 1)
        assert report.left == {"its format is PNG": epoch}
        assert report.read_bytes == epoch * sum(os.path.getsize(p) for p, _ in ours.samples if p.endswith("jpg"))
        assert dataclasses.asdict(report) == {**loader.report()["images"], "pillow": report.pillow}
    assert images.report(DataLoader(ours)) == images.report()
    list(loader := DataLoader(ours, 4, num_workers=1, collate_fn=own_collate))
    assert images.report(loader).made == COUNT - 1
    with pytest.raises(TypeError, match="workers of other loaders"):
        images.report(torch.utils.data.DataLoader(ours, num_workers=1))


def damage(data: bytes) -> bytes:
    """Returns a JPEG file whose markers are right and whose compressed data is not: Pillow accepts it."""
    middle = data.index(b"\xff\xda") + 30
    return data[:middle] + b"\xff\x00" * 20 + data[middle + 40 :]


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_image_in_a_batch_is_pillows(tmp_path: Path, workers: int) -> None:
    place = tmp_path / "class"
    place.mkdir()
    small = Image.open(photos.PHOTOS / "china.jpg").resize((40, 30))
    for number in range(6):
        data = photos.encode(small.rotate(number), quality=90)
        (place / f"{number}.jpg").write_bytes(damage(data) if number == 3 else data)
    transform = v1.Compose([v1.ToTensor()])
    expected = batches(torch.utils.data.DataLoader, ImageFolder(tmp_path, transform))
    ours = ImageFolder(tmp_path, images.native(transform), loader=images.load_rgb)
    torch.manual_seed(11)
    loader = DataLoader(ours, 8, shuffle=True, num_workers=workers, threads=2)
    assert_equal([batch for _ in range(EPOCHS) for batch in loader], expected)
    if workers:
        assert images.report(loader).left == {"its compressed data is damaged": 1}
        assert images.report(loader).made == 5


class Crashing(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Its worker is killed where the decoder begins with the third image of the second batch."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            os.environ["HEADRACE_STOP"] = "port.making:9:5"  # it is passed at the beginning and the end of each
        return self.folder[index]


@needs_failpoints
def test_crash_in_the_decoder_names_the_sample(folder: Path) -> None:
    ours = Crashing(ImageFolder(folder, images.native(train()), loader=images.load_rgb))
    with pytest.raises(RuntimeError) as error:
        list(DataLoader(ours, 8, num_workers=1))
    assert "had been making images for 0" in str(error.value)
    assert "at sample 10 of batch 1, [8, 9, 10, 11, 12, 13, 14, 15]" in str(error.value)


@dataclasses.dataclass
class Sample:
    image: Any
    label: int


class Wrapped(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, folder: Any, wrap: Any) -> None:
        self.folder, self.wrap = folder, wrap

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        return self.wrap(*self.folder[index])


def as_mapping(image: Any, label: int) -> Any:
    return UserDict(image=image, label=label)


def collate_wrapped(samples: list[Any]) -> Any:
    values = [vars(one) if isinstance(one, Sample) else one for one in samples]
    assert {type(one["image"]) for one in values} == {torch.Tensor}
    return torch.stack([one["image"] for one in values])


@pytest.mark.parametrize("wrap", [Sample, as_mapping])
def test_images_in_other_containers_are_ordinary_in_collate(folder: Path, wrap: Any) -> None:
    ours = Wrapped(ImageFolder(folder, images.native(train()), loader=images.load_rgb), wrap)
    for workers in (0, 1):
        assert len(list(DataLoader(ours, 10, num_workers=workers, collate_fn=collate_wrapped))) == 4


def opened_in_worker(method: str) -> list[Any]:
    return [
        str(text)
        for batch in headrace.Loader(photos.Opened(), num_workers=1, multiprocessing_context=method)
        for text in batch
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_install_acts_in_workers_of_every_start_method(method: str) -> None:
    images.install()
    try:
        assert opened_in_worker(method) == ["LazyJpeg"]
    finally:
        images.uninstall()
    if method == "fork":
        assert opened_in_worker(method) == ["JpegImageFile"]
