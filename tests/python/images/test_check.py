# SPDX-License-Identifier: Apache-2.0
"""images.check, images.report and what headrace doctor says of images."""

from __future__ import annotations

import dataclasses
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
if not photos.MISSING:
    photos.import_torchvision()
    import numpy as np
    import torch
    from headrace import images
    from headrace._samples import image_counts
    from headrace.doctor.run.images import check_images
    from headrace.images import _check
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision.datasets import ImageFolder

PATH = photos.PHOTOS / "china.jpg"


class Samples:
    """Samples of every type that can be compared; `spoils` changes one of them unless Pillow makes it."""

    def __init__(self, spoils: bool = False) -> None:
        self.spoils = spoils
        self.transform = images.native(v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor()]))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        image = images.open(PATH).convert("RGB")
        if index == 4:
            raise ValueError("no image")
        value = int(self.spoils and index == 7 and type(image) is not Image.Image)
        part = image.crop((index, 0, index + 50, 40))
        return {
            "tensor": self.transform(image),
            "array": np.asarray(part) + np.uint8(value),
            "image": part,
            "others": [random.random(), "text", (None, float(torch.rand(1)))],
        }


def start_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_counts, "made", 0)
    monkeypatch.setattr(image_counts, "read_bytes", 0)
    monkeypatch.setattr(image_counts, "left", Counter())


def test_check_finds_equal_samples_and_their_time() -> None:
    before = torch.get_rng_state(), random.getstate()
    report = images.check(Samples(), n=10)
    assert (report.samples, report.differ, report.failed) == (10, [], [4])
    assert report.made > 10
    assert min(report.pillow_s, report.headrace_s) > 0
    assert report.speedup == report.pillow_s / report.headrace_s
    text = str(report)
    assert "equal to the last bit   9\nraise the same error    1: 4\n" in text
    assert "times as fast" in text
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_check_names_samples_that_differ() -> None:
    report = images.check(Samples(spoils=True), n=40)
    assert report.differ == [7]
    assert "38; not equal: 7" in str(report)
    assert report.failed == [4]


def test_check_counts_why_images_are_left_to_pillow(tmp_path: Path) -> None:
    png = tmp_path / "a.png"
    Image.open(PATH).resize((50, 40)).save(png)
    cmyk = tmp_path / "b.jpg"
    Image.open(PATH).convert("CMYK").save(cmyk)

    class Files:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return images.load_rgb([png, cmyk, PATH][index])

    report = images.check(Files())
    assert report.differ == []
    assert report.left == {"its format is PNG": 1, "its mode is CMYK": 1}
    assert report.made == 1


def test_check_refuses_other_datasets() -> None:
    with pytest.raises(TypeError, match="needs a dataset with __getitem__"):
        images.check(iter([1]))
    with pytest.raises(ValueError, match="is empty"):
        images.check([])
    with pytest.raises(ValueError, match="n should be at least 1"):
        images.check([1], n=0)


def test_report_counts_images_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    start_counting(monkeypatch)
    images.load_rgb(PATH).tobytes()
    images.open(io.BytesIO(PATH.read_bytes() + b"more")).load()
    with pytest.raises(OSError):
        images.open(io.BytesIO(PATH.read_bytes()[:-2000])).load()
    counts = images.report()
    assert counts.made == 1
    assert counts.read_bytes == 2 * PATH.stat().st_size + 4
    assert list(counts.left) == ["it is truncated: there is no end-of-image marker"]
    assert "1 images made in C" in str(counts)
    assert counts.pillow in str(counts)


def test_images_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.images import _selftest

    monkeypatch.setenv("HEADRACE_IMAGES", "0")
    monkeypatch.setattr(_selftest, "_verdict", None)
    start_counting(monkeypatch)
    native = images.native(v1.Compose([v1.ToTensor()]))
    image = images.load_rgb(PATH)
    assert type(image) is Image.Image
    assert torch.equal(native(image), v1.ToTensor()(Image.open(PATH)))
    assert images.report().left == {"HEADRACE_IMAGES=0": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a"
    place.mkdir()
    for number in range(12):
        part = Image.open(PATH).crop((number, number, number + 400, number + 300))
        (place / f"{number}.jpg").write_bytes(photos.encode(part, quality=90))
    return tmp_path


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU times of headrace that the next comparisons measure; Pillow takes 4 s. The rest of the report is true."""
    seconds: list[float] = []
    compare = _check.compare

    def timed(dataset: Any, indices: Any) -> Any:
        return dataclasses.replace(compare(dataset, indices), pillow_s=4.0, headrace_s=seconds.pop(0))

    monkeypatch.setattr(_check, "compare", timed)
    return seconds


def test_doctor_says_what_images_would_give(folder: Path, times: list[float]) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
    dataset = ImageFolder(folder, transform)
    opener = Image.open
    times += [2.0, 1.0]
    (found,) = check_images(torch.utils.data.DataLoader(dataset))
    assert found.name == "images"
    assert found.value == "4.0 times as fast with headrace.images"
    assert "The samples are equal to the last bit (12 were compared)" in found.consequence
    assert "loader=headrace.images.load_rgb" in found.fix
    assert "native(transform)" in found.fix
    assert Image.open is opener
    assert dataset.transform is transform
    assert dataset.transforms.transform is transform


def test_doctor_advises_only_what_makes_samples_faster(folder: Path, times: list[float]) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor()]))
    times += [2.0, 3.0]
    (found,) = check_images(torch.utils.data.DataLoader(dataset))
    assert found.value == "2.0 times as fast with headrace.images"
    assert "load_rgb" in found.fix and "native" not in found.fix
    times += [3.9, 3.8]
    (found,) = check_images(torch.utils.data.DataLoader(dataset))
    assert (found.value, found.fix) == ("as fast with Pillow", "")


def test_doctor_is_silent_about_loaders_without_images(folder: Path) -> None:
    assert check_images(torch.utils.data.DataLoader(list(range(5)))) == []
    assert check_images(torch.utils.data.DataLoader([])) == []
    already = ImageFolder(folder, images.native(v1.ToTensor()), loader=images.load_rgb)
    assert all(not one.fix or "native" not in one.value for one in check_images(torch.utils.data.DataLoader(already)))
