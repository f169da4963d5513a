# SPDX-License-Identifier: Apache-2.0
"""Random operations on random JPEG files: every byte is Pillow's. HEADRACE_EXAMPLES sets the number of cases."""

from __future__ import annotations

import io
import os
from random import Random
from typing import Any

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
CASES = int(os.environ.get("HEADRACE_EXAMPLES", "400"))
SEED = int(os.environ.get("HEADRACE_SEED", "1"))


class Operations:
    """Draws up to four operations, and applies the same ones to any image."""

    def __init__(self, random: Random, data: bytes) -> None:
        from PIL import Image, ImageOps

        self.random = random
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        image = Image.open(io.BytesIO(data))
        if random.random() < 0.2:
            self.calls.append(("exif_transpose", ()))
            image = ImageOps.exif_transpose(image)
        size = image.size
        for _ in range(random.randint(0, 4)):
            draws = [self._crop, self._crop, self._resize, self._resize, self._transpose, self._convert, self._rotate]
            size = random.choice(draws)(*size)

    def _crop(self, width: int, height: int) -> tuple[int, int]:
        random, margin = self.random, self.random.choice([0, 0, 0, 20])
        left, upper = random.randint(-margin, width - 1), random.randint(-margin, height - 1)
        right = random.randint(left + 1, max(width + margin, left + 1))
        lower = random.randint(upper + 1, max(height + margin, upper + 1))
        self.calls.append(("crop", ((left, upper, right, lower),)))
        return right - left, lower - upper

    def _resize(self, width: int, height: int) -> tuple[int, int]:
        random, box = self.random, None
        size = random.choice([random.randint(1, 300), width]), random.choice([random.randint(1, 300), height])
        if random.random() < 0.3:
            left, right = sorted(random.uniform(0, width) for _ in range(2))
            upper, lower = sorted(random.uniform(0, height) for _ in range(2))
            box = (left, upper, right, lower)
        self.calls.append(("resize", (size, random.choice([None, 0, 1, 2, 3, 4, 5]), box)))
        return size

    def _transpose(self, width: int, height: int) -> tuple[int, int]:
        method = self.random.randint(0, 6)
        self.calls.append(("transpose", (method,)))
        return (height, width) if method in (2, 4, 5, 6) else (width, height)

    def _convert(self, width: int, height: int) -> tuple[int, int]:
        self.calls.append(("convert", (self.random.choice(["L", "RGB", None]),)))
        return width, height

    def _rotate(self, width: int, height: int) -> tuple[int, int]:
        self.calls.append(("rotate", (self.random.choice([0, 180]),)))
        return width, height

    def apply(self, image: Any) -> Any:
        from PIL import ImageOps

        for name, arguments in self.calls:
            image = ImageOps.exif_transpose(image) if name == "exif_transpose" else getattr(image, name)(*arguments)
        return image


@pytest.mark.timeout(7200)  # make soak draws 20,000 cases
def test_random_operations_give_pillows_bytes() -> None:
    import numpy as np
    from headrace import images
    from PIL import Image

    random = Random(SEED)
    files = photos.Drawn(random)
    native = 0
    for case in range(CASES):
        data = files.file()
        expected = Image.open(io.BytesIO(data))
        operations = Operations(random, data)
        found = operations.apply(images.open(io.BytesIO(data)))
        expected = operations.apply(expected)
        assert (found.size, found.mode, found.info) == (expected.size, expected.mode, expected.info), operations.calls
        native += type(found).__name__.startswith("Lazy")
        way = random.randint(0, 2)
        if way == 0:
            same = found.tobytes() == expected.tobytes()
        elif way == 1:
            same = bool((np.asarray(found) == np.asarray(expected)).all())
        else:
            same = found == expected
        assert same, f"case {case} of seed {SEED}: {operations.calls}"
    assert native > CASES / 2  # the rest has a NEAREST resize or nothing to do


def test_self_test_finds_the_order_of_passes() -> None:
    """A resize for which the order matters: of Pillow 13's rule, and of the versions before it."""
    from headrace.images import _selftest, _steps
    from PIL import __version__

    expected = _steps.SMALLER_FIRST if int(__version__.split(".")[0]) >= 13 else _steps.HORIZONTAL_FIRST
    assert _selftest.verdict().passes == expected
    assert _selftest.verdict().colour


def test_self_test_leaves_differing_parts_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.images import _lazy, _selftest, _steps
    from PIL import Image

    monkeypatch.setattr(_steps, "transpose", lambda method: _steps.NONE)
    monkeypatch.setattr(_selftest, "_verdict", None)
    with pytest.warns(UserWarning, match="transpose did not give the pixels of Pillow"):
        verdict = _selftest.verdict()
    assert not verdict.transpose
    assert verdict.crop
    path = photos.PHOTOS / "china.jpg"
    from headrace import images

    image = images.open(path)
    assert isinstance(image, _lazy.LazyJpeg)
    assert image.transpose(Image.Transpose.ROTATE_90) == Image.open(path).transpose(Image.Transpose.ROTATE_90)


def test_self_test_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    import numpy as np
    from headrace.images import _selftest

    monkeypatch.setattr(_selftest, "_verdict", None)
    before = random.getstate(), np.random.get_state()[1].tolist()
    _selftest.verdict()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
