# SPDX-License-Identifier: Apache-2.0
"""Reading of files, files that are not complete, with and without LOAD_TRUNCATED_IMAGES; builds without
libjpeg-turbo."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from random import Random
from typing import Any

import photos
import pytest

if photos.MISSING:
    pytest.skip(photos.WHY_MISSING, allow_module_level=True)
from headrace import _core, images
from headrace.doctor.machine.check import check_machine
from headrace.doctor.observations import as_text
from headrace.images import _selftest
from PIL import Image, ImageFile

TAIL_BYTES = 64 << 20
MOST_READ = 4 << 20
TRUNCATED = "it is truncated: there is no end-of-image marker"


@pytest.fixture
def truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


def outcome(opened: Any, data: bytes) -> Any:
    try:
        image = opened(io.BytesIO(data))
        small = image.convert("RGB").resize((20, 10))
        return image.mode, image.size, image.tobytes(), small.tobytes()
    except Exception as error:
        return type(error), str(error).split(" <_io")[0]


def test_complete_files_are_made_in_c_with_the_setting(truncated: None) -> None:
    files = photos.Drawn(Random(7))
    for _ in range(20):
        data = files.file()
        before = images.report()
        assert outcome(images.open, data) == outcome(Image.open, data)
        after = images.report()
        assert after.made > before.made
        assert after.left == before.left


def test_truncated_files_are_pillows_and_counted(truncated: None) -> None:
    """Cut at many places, with and without bits that were changed."""
    files, random = photos.Drawn(Random(3)), Random(4)
    left = images.report().left.get(TRUNCATED, 0)
    for number in range(80):
        data = bytearray(files.file())
        if number % 2:
            del data[random.randrange(len(data)) :]
        if number % 4 > 1 and data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        assert outcome(images.open, bytes(data)) == outcome(Image.open, bytes(data)), number
    assert images.report().left[TRUNCATED] > left


def test_truncated_files_raise_pillows_error_without_the_setting() -> None:
    files, random = photos.Drawn(Random(5)), Random(6)
    for _ in range(30):
        data = files.file()
        data = data[: random.randrange(len(data))]
        assert outcome(images.open, data) == outcome(Image.open, data)


class Counting(io.FileIO):
    """A file that counts what is read of it, and gives few bytes at a time."""

    most = 1 << 30
    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        data = super().read(min(self.most, self.most if size is None or size < 0 else size))
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("most", [1 << 30, 1000], ids=["large reads", "small reads"])
def test_video_behind_an_image_is_not_read(tmp_path: Path, most: int) -> None:
    """A motion photo: a video of any size follows the image."""
    path = tmp_path / "motion.jpg"
    data = photos.encode(photos.photo("china"), quality=95)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + TAIL_BYTES)
    with Counting(path) as file:
        file.most = most
        assert images.open(file).convert("RGB").tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()
        assert file.read_bytes < MOST_READ


def test_image_of_several_pieces_is_read_to_its_end(tmp_path: Path) -> None:
    noise = Image.frombytes("RGB", (1500, 1200), Random(1).randbytes(1500 * 1200 * 3))
    data = photos.encode(noise, quality=95)
    assert len(data) > 2 << 20
    path = tmp_path / "large.jpg"
    path.write_bytes(data + bytes(5 << 20))
    before = images.report()
    assert images.open(path).tobytes() == Image.open(io.BytesIO(data)).tobytes()
    after = images.report()
    assert after.left == before.left
    assert len(data) <= after.read_bytes - before.read_bytes <= 2 * len(data)


def test_read_error_behind_the_image_is_not_raised() -> None:
    """Pillow does not read there either."""
    data = photos.encode(photos.photo("china"), quality=95)

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= (1 << 20):
                raise OSError(5, os.strerror(5))
            return super().read(size)

    file = Failing(data + bytes(3 << 20))
    assert images.open(file).tobytes() == Image.open(io.BytesIO(data)).tobytes()


def test_build_without_libjpeg_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "HAS_JPEG", False)
    monkeypatch.setattr(_selftest, "_verdict", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert type(images.load_rgb(photos.PHOTOS / "china.jpg")) is Image.Image
    (warning,) = caught
    assert "this headrace was built without libjpeg-turbo, so Pillow makes all images" in str(warning.message)
    assert "apt install libjpeg-dev" in str(warning.message)


def test_doctor_names_a_build_without_libjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_jpeg, line in ((False, "note     images           no libjpeg-turbo"), (True, "ok       images  ")):
        monkeypatch.setattr(_core, "HAS_JPEG", has_jpeg)
        text = as_text(check_machine(1))
        assert line in text
        assert ("apt install libjpeg-dev" in text) is not has_jpeg
