# SPDX-License-Identifier: Apache-2.0
"""A lazy image does what Pillow's image does, whatever it is used for, and raises where Pillow raises."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
PATH = photos.PHOTOS / "china.jpg"


def use_numpy(image: Any) -> Any:
    import numpy as np

    return np.asarray(image).tobytes()


def use_thumbnail(image: Any) -> Any:
    image.thumbnail((90, 80))
    return image


def use_paste(image: Any) -> Any:
    image.paste((1, 2, 3) if image.mode == "RGB" else 7, (2, 3, 20, 30))
    return image


def use_putpixel(image: Any) -> Any:
    image.putpixel((3, 4), (9, 8, 7) if image.mode == "RGB" else 9)
    return image


def use_draw(image: Any) -> Any:
    from PIL import ImageDraw

    ImageDraw.Draw(image).line((0, 0, 30, 30), fill=128)
    return image


def use_access(image: Any) -> Any:
    access = image.load()
    access[1, 1] = access[5, 6]
    return image.tobytes(), access[1, 1]


def use_keep(image: Any) -> Any:
    file = io.BytesIO()
    image.save(file, "JPEG", quality="keep" if image.format == "JPEG" else 90)
    return file.getvalue()


def use_draft(image: Any) -> Any:
    return image.draft("L", (100, 100)), image


def use_verify(image: Any) -> Any:
    return image.verify()


def use_with(image: Any) -> Any:
    with image as opened:
        return opened.convert("L").resize((30, 20))


def use_closed(image: Any) -> Any:
    image.close()
    return image.crop((0, 0, 5, 5))


def use_transform(image: Any) -> Any:
    from PIL import Image

    return image.transform((50, 40), Image.Transform.AFFINE, (1, 0.1, 3, 0, 1, 5))


def use_enhance(image: Any) -> Any:
    from PIL import ImageEnhance

    return ImageEnhance.Contrast(image).enhance(0.5)


def use_blend(image: Any) -> Any:
    from PIL import Image

    return Image.blend(image, image.transpose(0), 0.5)


USES: list[Callable[[Any], Any]] = [
    use_numpy,
    use_thumbnail,
    use_paste,
    use_putpixel,
    use_draw,
    use_access,
    use_keep,
    use_draft,
    use_verify,
    use_with,
    use_closed,
    use_transform,
    use_enhance,
    use_blend,
    copy.copy,
    copy.deepcopy,
    lambda image: pickle.loads(pickle.dumps(image)),
    lambda image: image.getdata(),
    lambda image: list(image.get_flattened_data())[:100] if hasattr(image, "get_flattened_data") else 0,
    lambda image: image.getpixel((3, 3)),
    lambda image: image.getextrema(),
    lambda image: image.histogram(),
    lambda image: image.getbbox(),
    lambda image: image.split()[0],
    lambda image: image.seek(1),
    lambda image: image.tell(),
    lambda image: dict(image.getexif()),
    lambda image: image.getbands(),
    lambda image: (image.width, image.height, image.size, image.mode, image.format, image.info),
    lambda image: image.readonly,
    lambda image: image.filename,
    lambda image: image.quantization,
    lambda image: image.im.size,
    lambda image: image.convert("HSV"),
    lambda image: image.convert("RGB", (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)),
    lambda image: image.convert("P"),
    lambda image: image.convert(),
    lambda image: image.reduce(3),
    lambda image: image.resize((40, 30), reducing_gap=2.0),
    lambda image: image.resize((40, 30), 77),
    lambda image: image.resize((0, 30)),
    lambda image: image.resize("ab"),
    lambda image: image.resize((40, 30), 2, (-1, 0, 5, 5)),
    lambda image: image.resize((40, 30), 2, (0, 0, 9000, 5)),
    lambda image: image.resize((40, 30), 2, (5, 0, 5, 5)),
    lambda image: image.crop((10, 10, 5, 5)),
    lambda image: image.crop((10, 10, 10, 15)),
    lambda image: image.crop((10.4, 10.5, 30.5, 15.6)),
    lambda image: image.crop((0, 0, 1 << 40, 5)),
    lambda image: image.crop("abcd"),
    lambda image: image.crop(),
    lambda image: image.transpose(9),
    lambda image: image.transpose("x"),
    lambda image: image.rotate(90, expand=True),
    lambda image: image.rotate(13),
    lambda image: image.filter_nothing,
    lambda image: image.toqimage_nothing(),
    lambda image: image.effect_spread(0),
    lambda image: image.point(lambda value: 255 - value),
    lambda image: image.quantize(8),
    lambda image: image.tobytes("xbm"),
    lambda image: image._repr_png_(),
]


def outcome(use: Callable[[Any], Any], image: Any) -> Any:
    """Returns what a use gives, or its exception, and the image after it."""
    from PIL import Image

    try:
        result = use(image)
    except Exception as error:
        return type(error), str(error).replace("LazyJpeg", "JpegImageFile").replace("LazyImage", "Image")
    if isinstance(result, Image.Image):
        return result.mode, result.size, result.info, result.tobytes()
    return result if not hasattr(result, "__len__") or isinstance(result, (tuple, list, bytes, dict)) else list(result)


@pytest.mark.parametrize("number", range(len(USES)))
def test_lazy_image_is_used_like_pillows(number: int) -> None:
    """Unread, loaded, and after an operation; then the image itself is compared, too."""
    from headrace import images
    from PIL import Image

    def loaded(image: Any) -> Any:
        image.load()
        return image

    states: list[Callable[[Any], Any]] = [
        lambda image: image,
        loaded,
        lambda image: image.crop((20, 30, 300, 200)),
        lambda image: image.convert("L").resize((60, 50)),
    ]
    for state in states:
        found, expected = state(images.open(PATH)), state(Image.open(PATH))
        assert outcome(USES[number], found) == outcome(USES[number], expected)
        assert outcome(lambda image: image.tobytes(), found) == outcome(lambda image: image.tobytes(), expected)


def test_results_are_pillows_classes_once_they_have_pixels() -> None:
    from headrace import images
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile

    opened = images.open(PATH)
    part = opened.crop((1, 2, 30, 40))
    assert isinstance(opened, JpegImageFile)
    assert part.format is None
    assert not hasattr(part, "filename")
    part.info["mine"] = 1
    assert "mine" not in opened.info
    assert part.getpixel((0, 0)) == Image.open(PATH).getpixel((1, 2))
    assert type(part) is Image.Image
    assert opened.im.size == opened.size
    assert type(opened) is JpegImageFile
    assert opened == Image.open(PATH)
    assert Image.open(PATH) == images.open(PATH)


def test_equality_needs_the_same_class() -> None:
    from headrace import images
    from PIL import Image

    assert images.open(PATH) != images.open(PATH).copy()
    assert Image.open(PATH).copy() == images.open(PATH).copy()
    assert images.open(PATH) != 3
    with pytest.raises(TypeError):
        hash(images.open(PATH))


def test_file_may_change_after_it_was_read(tmp_path: Path) -> None:
    from headrace import images
    from PIL import Image

    path = tmp_path / "a.jpg"
    path.write_bytes(PATH.read_bytes())
    image = images.open(path).convert("L")
    path.write_bytes(b"something else")
    os.unlink(path)
    assert image == Image.open(PATH).convert("L")


def test_unread_file_keeps_its_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import images
    from PIL import Image

    path = tmp_path / "a.jpg"
    path.write_bytes(PATH.read_bytes())
    monkeypatch.chdir(tmp_path)
    image = images.open("a.jpg")
    assert not image.fp.closed
    monkeypatch.chdir("/")
    os.unlink(path)
    assert image.convert("L") == Image.open(PATH).convert("L")
    assert image.fp is None


def test_files_of_all_kinds_are_opened(tmp_path: Path) -> None:
    from headrace import images
    from PIL import Image

    path = tmp_path / "a.png"
    Image.open(PATH).save(path)
    assert images.open(path) == Image.open(path)
    with open(PATH, "rb") as file:
        assert images.open(file).convert("L") == Image.open(PATH).convert("L")
        assert not file.closed
    assert images.open(io.BytesIO(PATH.read_bytes())) == Image.open(PATH)
    assert images.open(str(PATH), formats=["JPEG"]) == Image.open(PATH)
    for bad in (lambda: images.open(PATH, formats=["PNG"]), lambda: images.open(PATH, "w"), lambda: images.open("no")):
        with pytest.raises((OSError, ValueError)):
            bad()


def test_load_rgb_is_torchvisions_loader() -> None:
    from headrace import images
    from PIL import Image

    assert images.load_rgb(PATH) == Image.open(PATH).convert("RGB")
    with pytest.raises(OSError):
        images.load_rgb(__file__)


def test_install_and_uninstall_exchange_pillows_open() -> None:
    from headrace import images
    from PIL import Image

    before = Image.open
    try:
        images.install()
        assert images.installed()
        assert type(Image.open(PATH)).__name__ == "LazyJpeg"
        images.install()
    finally:
        images.uninstall()
    assert Image.open is before
    assert not images.installed()


def test_uninstall_puts_back_what_install_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import images
    from PIL import Image

    opened, pillows = [], Image.open

    def counting(*arguments: Any) -> Any:
        opened.append(arguments[0])
        return pillows(*arguments)

    monkeypatch.setattr(Image, "open", counting)
    images.install()
    assert type(Image.open(PATH)).__name__ == "LazyJpeg"
    assert opened == [PATH]
    images.uninstall()
    assert Image.open is counting
    images.install()
    monkeypatch.setattr(Image, "open", pillows)
    images.uninstall()
    assert Image.open is pillows


class NeedsNumber(io.BytesIO):
    """A file whose read() needs an argument, and gives at most 64 KiB."""

    def read(self, count: int) -> bytes:  # type: ignore[override]
        return super().read(min(count, 1 << 16))


def test_file_whose_read_needs_a_number_is_read() -> None:
    from headrace import images
    from PIL import Image

    image = images.open(NeedsNumber(PATH.read_bytes()))
    image.load()
    assert type(image).__name__ == "LazyJpeg"
    assert image.resize((30, 20)).tobytes() == Image.open(PATH).resize((30, 20)).tobytes()


def test_bytes_after_the_image_are_not_kept() -> None:
    from headrace import images
    from headrace.images._lazy import note_of
    from PIL import Image

    data = PATH.read_bytes()
    image = images.open(io.BytesIO(data + bytes(100_000)))
    image.load()
    note = note_of(image)
    assert note is not None
    assert note.encoded.data == data
    assert image.tobytes() == Image.open(PATH).tobytes()


def test_other_settings_than_0_and_1_are_refused() -> None:
    script = "import photos; from headrace import images; images.load_rgb(photos.PHOTOS / 'china.jpg')"
    environment = {**os.environ, "HEADRACE_IMAGES": "off", "PYTHONPATH": str(Path(photos.__file__).parent)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "HEADRACE_IMAGES should be 0 (Pillow makes all images) or 1, but is 'off'" in result.stderr


def test_tiny_box_at_a_large_coordinate_is_pillows() -> None:
    """Its edges are different numbers in Python, and the same one in Pillow."""
    from headrace import images
    from PIL import Image

    wide = io.BytesIO()
    Image.new("RGB", (40_000, 2)).save(wide, "JPEG")
    box = (39_990.0, 0.0, 39_990.0015, 1.0)
    results = []
    for opener in (Image.open, images.open):
        try:
            results.append(opener(wide).convert("RGB").resize((3, 3), Image.Resampling.BILINEAR, box).tobytes())
        except ValueError as error:
            results.append(str(error))
    assert results[0] == results[1]


def by_pillow_or_headrace(opener: Callable[[Any], Any], data: bytes, steps: int) -> Any:
    """Opens, loads by an operation, and reads; returns the pixels, or the step that raised and its exception."""
    step = "open"
    try:
        image = opener(io.BytesIO(data))
        step = "operation"
        image = image.convert("RGB") if steps == 0 else image.resize((30, 20)) if steps == 1 else image
        if steps == 2:
            image.load()
        step = "pixels"
        return image.size, image.mode, image.tobytes()
    except Exception as error:
        return step, type(error), re.sub("0x[0-9a-f]+", "", str(error))


def test_truncated_file_raises_where_pillow_raises() -> None:
    from headrace import images
    from PIL import Image

    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2}):
        data = photos.encode(photos.photo("flower").resize((200, 150)), **options)
        for percent in range(101):
            cut = data[: len(data) * percent // 100]
            for steps in range(3):
                found = by_pillow_or_headrace(images.open, cut, steps)
                assert found == by_pillow_or_headrace(Image.open, cut, steps), (options, percent, steps)


@pytest.mark.timeout(7200)  # make soak draws 20,000 cases
def test_damaged_file_gives_pillows_result() -> None:
    """Flips bits and writes random bytes, anywhere in the file."""
    from headrace import images
    from PIL import Image

    random = Random(int(os.environ.get("HEADRACE_SEED", "3")))
    files = photos.Drawn(random)
    raised = 0
    for case in range(int(os.environ.get("HEADRACE_EXAMPLES", "600"))):
        data = bytearray(files.file())
        for _ in range(random.randint(1, 4)):
            place = random.randrange(len(data))
            if random.random() < 0.5:
                data[place] ^= 1 << random.randrange(8)
            else:
                data[place] = random.choice([0, 0xFF, random.randrange(256)])
        steps = random.randrange(3)
        expected = by_pillow_or_headrace(Image.open, bytes(data), steps)
        assert by_pillow_or_headrace(images.open, bytes(data), steps) == expected, case
        raised += len(expected) == 3 and isinstance(expected[1], type)
    assert raised > 0


def size_at(data: bytes) -> int:
    """Returns where a baseline file has its height and width, of 2 bytes each."""
    return data.index(b"\xff\xc0") + 5


def test_file_object_may_change_the_memory_that_it_gave() -> None:
    from headrace import images
    from PIL import Image

    given: list[bytearray] = []

    class File(io.BytesIO):
        is_open = False

        def read(self, size: Any = -1) -> Any:
            data = super().read(size)
            if not self.is_open:  # Pillow reads the header, and wants bytes
                return data
            given.append(bytearray(data))
            return given[-1]

    data = photos.encode(photos.photo("flower").resize((200, 150)))
    file = File(data)
    image = images.open(file)
    file.is_open = True
    image.load()
    assert sum(map(len, given)) == len(data)
    for one in given:
        one[:] = bytes(len(one))
    assert image.tobytes() == Image.open(io.BytesIO(data)).tobytes()


@pytest.mark.parametrize("size", [(75, 200), (300, 200), (150, 100), (150, 400)])
def test_header_that_changed_after_the_scan_is_damage(size: tuple[int, int]) -> None:
    """The memory for the pixels has the size of the scanned header."""
    import headrace.images  # noqa: F401
    from headrace import _core

    data = bytearray(photos.encode(photos.photo("flower").resize((200, 150))))
    picture = _core.Picture.open(data)
    place = size_at(data)
    assert data[place : place + 4] == bytes((0, 150, 0, 200))
    data[place : place + 4] = b"".join(side.to_bytes(2, "big") for side in size)
    for _ in range(2):  # the second one decodes the whole image, to keep it
        assert picture.pixels(b"", b"", 0) is None


def test_bombs_are_refused_as_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import images
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(Image.DecompressionBombError):
        images.open(PATH)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 640 * 427 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        images.open(PATH)


def test_lazy_images_are_used_by_threads() -> None:
    """Several threads make pixels of the same image and of its parts at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from headrace import images
    from PIL import Image

    expected = Image.open(PATH).convert("L").tobytes()
    for _ in range(5):
        image = images.open(PATH)
        image.load()
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _, image=image: image.convert("L").tobytes(), range(16)))
            settled = list(pool.map(lambda _, image=image: image.getpixel((5, 5)), range(16)))
        assert results == [expected] * 16
        assert len(set(settled)) == 1


def test_forked_process_makes_pixels_of_lazy_images() -> None:
    from headrace import images
    from PIL import Image

    image = images.open(PATH).convert("L")
    image.tobytes()
    part = image.crop((5, 5, 50, 50))
    pid = os.fork()
    if pid == 0:
        os._exit(part.tobytes() != Image.open(PATH).convert("L").crop((5, 5, 50, 50)).tobytes())
    assert os.waitpid(pid, 0)[1] == 0
