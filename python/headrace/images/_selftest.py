# SPDX-License-Identifier: Apache-2.0
"""Compares a few dozen small cases with the installed Pillow, once per process and before the first image.

What differs is left to Pillow from then on, after one warning. The order of a resize's two passes, which differs
between Pillow's versions, is found here too. No random numbers are drawn. A forked process has its parent's verdict.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any

import PIL
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace import _core
from headrace._base.help_key import help_on
from headrace._base.jpeg import GET_JPEG, NO_JPEG
from headrace._base.warn import warn_user
from headrace.images import _steps

VARIABLE = "HEADRACE_IMAGES"
_SIDE = 45


@dataclass(frozen=True)
class Verdict:
    """Says which parts give Pillow's pixels."""

    decode: bool = False
    crop: bool = False
    transpose: bool = False
    convert: bool = False
    passes: int | None = None  # the order of the passes of a resize; None: resizes are Pillow's
    colour: bool = False
    why: str = ""  # why nothing is done in C


_verdict: Verdict | None = None


def verdict() -> Verdict:
    """Returns the verdict, after the self-test if this is the first call."""
    global _verdict
    if _verdict is None:
        _verdict = _find_verdict()
    return _verdict


def _find_verdict() -> Verdict:
    setting = os.environ.get(VARIABLE, "1")
    if setting == "0":
        return Verdict(why=f"{VARIABLE}=0")
    if setting not in ("", "1"):
        raise ValueError(f"{VARIABLE} should be 0 (Pillow makes all images) or 1, but is {setting!r}")
    if not _core.HAS_JPEG:
        warn_user(f"headrace: images: {NO_JPEG}. {GET_JPEG}" + help_on("no-jpeg"))
        return Verdict(why="this headrace was built without libjpeg-turbo")
    if int(PIL.__version__.split(".")[0]) < 11:
        return Verdict(why=f"Pillow {PIL.__version__} is older than 11")
    found = _test()
    names = ("decode", "crop", "transpose", "convert", "passes", "colour")
    failed = [name for name in names if getattr(found, name) is False or getattr(found, name) is None]
    if failed:
        warn_user(
            f"headrace: images: in the self-test, {', '.join(failed)} did not give the pixels of Pillow "
            f"{PIL.__version__}, so Pillow does this. Pixels stay right; they are made at Pillow's speed."
            + help_on("no-jpeg")
        )
    return found


def _test() -> Verdict:
    files = _draw_files()
    if not all(_agrees(file, _steps.NONE, _decoded(file)) for file in files):
        return Verdict(why=f"Pillow {PIL.__version__} decodes to other pixels")
    return Verdict(
        decode=True,
        crop=_test_crops(files),
        transpose=all(map(_test_transpose, files)),
        convert=all(map(_test_convert, files)),
        passes=_find_passes(files),
        colour=all(map(_test_colours, files)),
    )


def _draw_files() -> list[bytes]:
    """Returns small JPEG files of several kinds, with edges, slopes and a fine pattern."""
    width, height = _SIDE + 8, _SIDE
    values = bytes(
        ((x * x * 3 + y * 7) ^ (y * y + x * c * 5)) % 256 if (x // 9 + y // 7) % 2 else (x * 5 + y * 3 + c * 60) % 256
        for y in range(height)
        for x in range(width)
        for c in range(3)
    )
    colour = Image.frombytes("RGB", (width, height), values)
    kinds: list[dict[str, Any]] = [{"subsampling": number} for number in range(3)]
    kinds += [{"subsampling": 2, "progressive": True}, {"restart_marker_blocks": 3}]
    files = [_encode(colour, **kind) for kind in kinds]
    return [*files, _encode(colour.convert("L"))]


def _encode(image: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=88, **options)
    return file.getvalue()


def _agrees(data: bytes, steps: bytes, expected: Any) -> bool:
    picture = _core.Picture.open(data)
    return not isinstance(picture, str) and picture.pixels(steps, b"", _core.IMAGE_PACKED) == expected.tobytes()


def _decoded(data: bytes) -> Any:
    """Returns the image as the installed Pillow decodes it."""
    image = JpegImageFile(io.BytesIO(data))
    image.load()
    return image


def _test_crops(files: list[bytes]) -> bool:
    boxes = [(3, 2, 20, 41), (17, 11, 18, 12), (-4, -3, 30, 20), (20, 20, 70, 60)]
    return all(_agrees(file, _steps.crop(*box), _decoded(file).crop(box)) for file in files for box in boxes)


def _test_transpose(file: bytes) -> bool:
    return all(_agrees(file, _steps.transpose(way), _decoded(file).transpose(way)) for way in range(7))


def _test_convert(file: bytes) -> bool:
    return all(_agrees(file, _steps.convert(mode), _decoded(file).convert(mode)) for mode in ("L", "RGB"))


def _test_resize(file: bytes, passes: int) -> bool:
    """Tries all filters, with sizes for which the order of the passes matters."""
    image = _decoded(file)
    area = (0, 0, *image.size)
    sizes = [(51, 12), (20, 40), (70, 90), (13, 9)]
    return all(
        _agrees(file, _steps.resize(*size, resample, passes, area), image.resize(size, resample))
        for size in sizes
        for resample in sorted(_steps.FILTERS)
    )


def _find_passes(files: list[bytes]) -> int | None:
    """Returns the order of the two passes that the installed Pillow has."""
    for passes in (_steps.SMALLER_FIRST, _steps.HORIZONTAL_FIRST):
        if all(_test_resize(file, passes) for file in (files[0], files[-1])):
            return passes
    return None


def _test_colours(file: bytes) -> bool:
    for factor in (0.4, 1.0, 1.7):
        parts = (_steps.brightness(factor), _steps.contrast(factor), _steps.saturation(factor), _steps.hue(37))
        steps = b"".join(parts)
        if not _agrees(file, steps, _steps.replay(_decoded(file), steps)):
            return False
    return True
