# SPDX-License-Identifier: Apache-2.0
"""Images in headrace's loaders: the batches are torch's, whatever collates them and however many threads make them."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from typing import Any

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
if not photos.MISSING:
    photos.import_torchvision()
    import torch
    import torch.utils.data
    from headrace import images
    from headrace.images._pending import PendingTensor
    from headrace.torch import DataLoader
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision.datasets import ImageFolder

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
    assert not any(isinstance(image, PendingTensor) for image, _ in samples)
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


@pytest.mark.parametrize("workers", [0, 1])
def test_options_for_samples_work_with_images(folder: Path, workers: int) -> None:
    """Samples made one by one, some of which are bad."""

    def loader(path: str) -> Any:
        if path.endswith(("7.jpg", "4.jpg")):
            raise OSError("bad")
        return images.load_rgb(path)

    options = {"num_workers": workers, "on_bad_sample": "skip", "rng": "sample", "seed": 3}
    ours = batches(DataLoader, ImageFolder(folder, images.native(train()), loader=loader), threads=2, **options)

    def plain(path: str) -> Any:
        return loader(path).copy() if loader(path).getbbox() else None

    theirs = batches(DataLoader, ImageFolder(folder, train(), loader=plain), **options)
    assert_equal(ours, theirs)
    assert sum(len(labels) for _, labels in ours) < EPOCHS * COUNT


def batch_message(dataset: Any, workers: int) -> str:
    with pytest.raises(RuntimeError) as error:
        batches(DataLoader, dataset, num_workers=workers)
    return str(error.value)


def test_sizes_that_differ_keep_torchs_message(folder: Path) -> None:
    transform = v1.Compose([v1.ToTensor()])
    with pytest.raises(RuntimeError) as theirs:
        batches(torch.utils.data.DataLoader, ImageFolder(folder, transform), num_workers=1)
    ours = ImageFolder(folder, images.native(transform), loader=images.load_rgb)
    with pytest.raises(RuntimeError) as found:
        batches(DataLoader, ours, num_workers=1)
    messages = [str(error.value).strip().splitlines()[-1] for error in (theirs, found)]
    assert messages[0].startswith("RuntimeError: ")
    assert "size" in messages[1]
    assert batch_message(ImageFolder(folder, transform), 0) == batch_message(ours, 0)


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
