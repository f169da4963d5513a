# SPDX-License-Identifier: Apache-2.0
"""sources.Tar in headrace.Loader, headrace.torch.DataLoader and torch's own loader."""

from __future__ import annotations

import io
import pathlib
import random
from typing import Any

import headrace
import headrace.torch
import numpy as np
import photos
import pytest
import tar_files
import torch
from headrace import sources
from headrace.torch import DataLoader, per_rank
from loaders import needs_failpoints
from tar_files import numbers_of, write_samples, write_tar

COUNT = 120


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tars")
    for number in range(4):
        write_samples(folder / f"{number}.tar", COUNT // 4, COUNT // 4 * number)
    return folder


def length_of(data: bytes) -> int:
    return len(data)


def open_tar(folder: pathlib.Path, **options: Any) -> sources.Tar:
    return sources.Tar(f"{folder}/{{0..3}}.tar", fields=("bin", "cls"), decode={"bin": length_of}, **options)


def add_noise(found: Any) -> Any:
    return found[0], found[1], random.random() + torch.rand(()).item()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_each_kind_read_the_same_samples(files: pathlib.Path, method: str) -> None:
    found = open_tar(files)
    loader = headrace.Loader(found, 16, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert list(numbers_of(batches)) == list(range(COUNT))
    assert batches[0][0].tolist() == [len(b"%d " % i * 100) for i in range(16)]


@pytest.mark.parametrize("loader", [DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loaders_give_the_same_batches(files: pathlib.Path, loader: Any, workers: int) -> None:
    torch.manual_seed(1)
    found = list(numbers_of(loader(open_tar(files), 16, shuffle=True, num_workers=workers)))
    torch.manual_seed(1)
    wanted = list(numbers_of(torch.utils.data.DataLoader(list(open_tar(files)), 16, shuffle=True)))
    assert found == wanted and sorted(found) == list(range(COUNT))


def test_states_go_on_with_other_ranks_and_workers(files: pathlib.Path) -> None:
    def loader(world: int, rank: int, workers: int) -> Any:
        sampler = per_rank(headrace.Order(COUNT, seed=2), num_replicas=world, rank=rank, tail="exact")
        return DataLoader(open_tar(files), 5, sampler=sampler, num_workers=workers)

    def state_after_three(rank: int) -> tuple[list[int], Any]:
        one = loader(2, rank, 1)
        batches = iter(one)
        return list(numbers_of(next(batches) for _ in range(3))), one.state_dict()

    (first, state), (second, _) = state_after_three(0), state_after_three(1)
    rest: list[int] = []
    for rank in range(3):
        again = loader(3, rank, 2 if rank == 0 else 0)
        again.load_state_dict(state)
        for batch in again:
            rest += [int(one) for one, weight in zip(batch[1], again.last.weights, strict=True) if weight]
    assert sorted(first + second + rest) == list(range(COUNT))


def test_random_numbers_are_those_of_the_sample(files: pathlib.Path) -> None:
    def noise(workers: int) -> dict[int, float]:
        loader = DataLoader(open_tar(files, transform=add_noise), 8, num_workers=workers, rng="sample", seed=3)
        return {int(number): float(one) for batch in loader for number, one in zip(batch[1], batch[2], strict=True)}

    assert noise(0) == noise(2)


def test_cached_samples_are_made_once(files: pathlib.Path) -> None:
    cached = headrace.cache_samples(open_tar(files), "64M", name=f"tar-{files.name}")
    for _ in range(2):
        assert list(numbers_of(DataLoader(cached, 16, num_workers=2))) == list(range(COUNT))


def test_damaged_member_is_a_bad_sample(tmp_path: pathlib.Path) -> None:
    """The content of one member is no number; the header of another one is damaged after the index was made."""
    members = [one for i in range(30) for one in tar_files.sample(i)]
    members[2 * 7 + 1] = (members[2 * 7 + 1][0], b"x")
    path = write_tar(tmp_path / "a.tar", members)
    found = sources.Tar(path, fields=("bin", "cls"), decode={"bin": length_of})
    loader = DataLoader(found, 5, num_workers=2, on_bad_sample="skip")
    with pytest.warns(UserWarning, match=r"(?s)1 .*bad|1 .*skipped|sample 7"):
        numbers = list(numbers_of(loader))
    assert numbers == [i for i in range(30) if i != 7]


@needs_failpoints
@pytest.mark.parametrize("workers", [0, 1])
def test_error_in_a_batch_names_the_sample(tmp_path: pathlib.Path, workers: int) -> None:
    members = [one for i in range(10) for one in tar_files.sample(i)]
    members[2 * 7 + 1] = (members[2 * 7 + 1][0], b"x")
    found = sources.Tar(write_tar(tmp_path / "a.tar", members), fields=("cls",))
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(DataLoader(found, 5, num_workers=workers))
    notes = "\n".join(getattr(caught.value, "__notes__", ["sample 7"]))
    assert "sample 7" in notes or "index 7" in notes


def test_batch_asks_the_kernel_for_its_samples(files: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_tar(files)
    asked: list[list[int]] = []

    class Asking:
        def __init__(self, tar: Any) -> None:
            self._inner = tar

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def ask(self, numbers: list[int]) -> None:
            asked.append(numbers)
            self._inner.ask(numbers)

    monkeypatch.setattr(found, "_tar", Asking(found._tar))
    for loader in (DataLoader(found, 60), headrace.Loader(found, 60), torch.utils.data.DataLoader(found, 60)):
        asked.clear()
        list(loader)
        assert asked == [list(range(60)), list(range(60, 120))], loader


# ---- images ----

needs_images = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    from PIL import Image

    files = photos.Drawn(random.Random(2))
    members: list[tuple[str, bytes]] = []
    for number in range(24):
        data, field = files.file(), "jpg"
        if number == 5:
            png = io.BytesIO()
            Image.open(io.BytesIO(data)).save(png, "png")
            data, field = png.getvalue(), "png"
        members += [(f"{number:03d}.{field}", data), (f"{number:03d}.cls", b"%d" % number)]
    return write_tar(tmp_path_factory.mktemp("pictures") / "a.tar", members)


@needs_images
def test_images_are_those_of_pillow(pictures: str) -> None:
    from PIL import Image

    raw = sources.Tar(pictures, fields=("jpg;png", "cls"), decode=None)
    for (image, number), (data, digits) in zip(sources.Tar(pictures, fields=("jpg;png", "cls")), raw, strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
        assert number == int(digits)


@needs_images
@pytest.mark.parametrize("workers", [0, 2])
def test_native_images_are_made_in_the_batch(pictures: str, workers: int) -> None:
    """Through `threads`, with the pixels of torchvision; the transforms return deferred tensors."""
    photos.import_torchvision()
    from headrace import images
    from torchvision import transforms

    steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    for how in ("dict", "whole"):
        native = images.native(transforms.Compose(steps))
        transform: Any = {"jpg;png": native} if how == "dict" else Whole(native)
        found = sources.Tar(pictures, fields=("jpg;png", "cls"), transform=transform)
        loader = DataLoader(found, 6, num_workers=workers, threads=2)
        before = images.report() if workers == 0 else images.Counts(0, 0)  # of the whole process
        batches = list(loader)
        plain = transforms.Compose(steps)
        wanted = [plain(image.copy()) for image, _ in sources.Tar(pictures, fields=("jpg;png", "cls"))]
        assert torch.equal(torch.cat([batch[0] for batch in batches]), torch.stack(wanted))
        made = images.report(loader)
        assert made.made - before.made >= 20 and made.alone == before.alone, made


class Whole:
    def __init__(self, native: Any) -> None:
        self._native = native

    def __call__(self, found: Any) -> Any:
        return self._native(found[0]), found[1]
