# SPDX-License-Identifier: Apache-2.0
"""JPEG files for the tests of headrace.images, made at test time from the photographs that scikit-learn ships.

Pillow, torchvision and the photographs are in build/images (`make build/images.stamp`). Importing this module puts the
folder at the end of sys.path, so that PYTHONPATH can name another Pillow; the tests skip if it is missing.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from random import Random
from typing import Any

FOLDER = Path(__file__).parents[3] / "build" / "images"
PHOTOS = FOLDER / "photographs"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
MISSING = importlib.util.find_spec("PIL") is None or not PHOTOS.exists()
WHY_MISSING = "make build/images.stamp installs Pillow, torchvision and photographs"
NAMES = ("china", "flower")
BIG_BUFFER = 1 << 22  # Pillow's encoder fails on small images of high quality with a smaller one


def pillow_version() -> int:
    from PIL import __version__

    return int(__version__.split(".")[0])


def fake_packages(folder: Path) -> list[str]:
    """Puts the photographs where the packages scikit-image and scikit-learn have them, and returns what has to be on
    sys.path to find these packages, torchvision and Pillow. The packages cannot be imported."""
    for package, inside in (("skimage", "data"), ("sklearn", "datasets/images")):
        place = folder / package / inside
        place.parent.mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise ImportError('not to be imported')\n")
        place.symlink_to(PHOTOS)
    return [str(folder), str(FOLDER)]


def photo(name: str) -> Any:
    from PIL import Image

    with Image.open(PHOTOS / f"{name}.jpg") as image:
        return image.convert("RGB")


def encode(image: Any, **options: Any) -> bytes:
    from PIL import ImageFile

    file, before = io.BytesIO(), ImageFile.MAXBLOCK
    ImageFile.MAXBLOCK = BIG_BUFFER
    try:
        image.save(file, "JPEG", **options)
    finally:
        ImageFile.MAXBLOCK = before
    return file.getvalue()


class Drawn:
    """Draws JPEG files: parts of the photographs, of many sizes, encoded in many ways."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.photos = [photo(name) for name in NAMES]

    def image(self) -> Any:
        image, random = self.random.choice(self.photos), self.random
        width = random.choice([random.randint(1, 40), random.randint(1, image.width)])
        height = random.choice([random.randint(1, 40), random.randint(1, image.height)])
        left, upper = random.randint(0, image.width - width), random.randint(0, image.height - height)
        part = image.crop((left, upper, left + width, upper + height))
        return part.convert("L") if random.random() < 0.15 else part

    def file(self) -> bytes:
        random, image = self.random, self.image()
        options: dict[str, Any] = {
            "quality": random.choice([30, 75, 90, 95, 100]),
            "subsampling": random.choice(["4:4:4", "4:2:2", "4:2:0"]),
            "progressive": random.random() < 0.3,
            "optimize": random.random() < 0.3,
        }
        if random.random() < 0.2:
            options["restart_marker_blocks"] = random.randint(1, 50)
        if random.random() < 0.1 and image.mode == "RGB":
            options |= {"keep_rgb": True, "subsampling": "4:4:4"}
        if random.random() < 0.1:
            exif = image.getexif()
            exif[0x0112] = random.randint(1, 8)  # the orientation
            options["exif"] = exif
        return encode(image, **options)


class Opened:
    """A dataset of one sample, the class of an image that Pillow is asked to open. It needs no torch."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        from PIL import Image

        return type(Image.open(PHOTOS / "china.jpg")).__name__


OPERATORS = (
    "nms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward ps_roi_pool "
    "_ps_roi_pool_backward qnms qroi_align deform_conv2d _deform_conv2d_backward"
)
_library: list[Any] = []


def import_torchvision() -> None:
    """Imports torchvision. If its operators do not load, since it was built for CUDA or another torch, they are defined
    without an implementation: the transforms and datasets do not use them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import torch

        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # it stopped in the middle
        _library.append(torch.library.Library("torchvision", "DEF"))
        for name in OPERATORS.split():
            _library[0].define(f"{name}(Tensor x) -> Tensor")
        importlib.import_module("torchvision")
