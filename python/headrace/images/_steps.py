# SPDX-License-Identifier: Apache-2.0
"""The steps of a recipe as bytes (`struct hr_image_step` of headrace/image.h), and their replay by Pillow.

The lazy images note their steps with the functions here. Pillow replays them for an image whose compressed data turns
out to be damaged.
"""

from __future__ import annotations

import struct
from typing import Any

from PIL import Image, ImageEnhance

from headrace import _core

NONE = b""
BICUBIC = _core.IMAGE_BICUBIC
FILTERS = frozenset((_core.IMAGE_LANCZOS, _core.IMAGE_BILINEAR, BICUBIC, _core.IMAGE_BOX, _core.IMAGE_HAMMING))
HORIZONTAL_FIRST, SMALLER_FIRST = _core.IMAGE_HORIZONTAL_FIRST, _core.IMAGE_SMALLER_FIRST
MOST_SIDE, MOST_FACTOR = _core.IMAGE_MOST_SIDE, _core.IMAGE_MOST_FACTOR
# The methods of transpose that exchange width and height.
SWAPPING = frozenset((_core.IMAGE_ROTATE_90, _core.IMAGE_ROTATE_270, _core.IMAGE_TRANSPOSED, _core.IMAGE_TRANSVERSE))

# kind, method, filter, passes, channels, width, height, box, area, factor, shift, weights_at
_STEP = struct.Struct("=7I4i4ff2I")
FLOAT_BYTES = 4
_CHANNELS = {"L": 1, "RGB": 3}
ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)  # from IMAGE_BRIGHTNESS on


def crop(left: int, upper: int, right: int, lower: int) -> bytes:
    return _STEP.pack(_core.IMAGE_CROP, 0, 0, 0, 0, 0, 0, left, upper, right, lower, 0, 0, 0, 0, 0, 0, 0)


def resize(width: int, height: int, resample: int, passes: int, area: tuple[float, float, float, float]) -> bytes:
    return _STEP.pack(_core.IMAGE_RESIZE, 0, resample, passes, 0, width, height, 0, 0, 0, 0, *area, 0, 0, 0)


def transpose(method: int) -> bytes:
    return _STEP.pack(_core.IMAGE_TRANSPOSE, method, *[0] * 16)


def convert(mode: str) -> bytes:
    return _STEP.pack(_core.IMAGE_CONVERT, 0, 0, 0, _CHANNELS[mode], *[0] * 13)


def brightness(factor: float) -> bytes:
    return _STEP.pack(_core.IMAGE_BRIGHTNESS, *[0] * 14, factor, 0, 0)


def contrast(factor: float) -> bytes:
    return _STEP.pack(_core.IMAGE_CONTRAST, *[0] * 14, factor, 0, 0)


def saturation(factor: float) -> bytes:
    return _STEP.pack(_core.IMAGE_SATURATION, *[0] * 14, factor, 0, 0)


def hue(shift: int) -> bytes:
    """Returns the step that adds `shift`, 0 to 255, to the hue of mode HSV."""
    return _STEP.pack(_core.IMAGE_HUE, *[0] * 15, shift, 0)


def blur(width: int, height: int, weights_at: int) -> bytes:
    """Returns the step that adds neighbours with so many weights, of which the first is at this place."""
    return _STEP.pack(_core.IMAGE_BLUR, 0, 0, 0, 0, width, height, *[0] * 10, weights_at)


def replay(image: Any, steps: bytes, weights: bytes = b"") -> Any:
    """Returns the result of the steps by Pillow alone, except blurs, which are torch's."""
    for step in _STEP.iter_unpack(steps):
        image = blur_by_torch(image, weights, step) if step[0] == _core.IMAGE_BLUR else _replay_one(image, *step)
    return image


def blur_by_torch(image: Any, weights: bytes, step: tuple[Any, ...]) -> Any:
    """Returns the image blurred as torchvision does it."""
    import numpy as np
    import torch

    width, height, weights_at = step[5], step[6], step[-1]
    kernel = torch.frombuffer(bytearray(weights), dtype=torch.float32)[weights_at : weights_at + width * height]
    values = torch.from_numpy(np.array(image))
    values = (values if values.ndim == 3 else values[..., None]).permute(2, 0, 1).float()[None]
    borders = [width // 2, width // 2, height // 2, height // 2]
    values = torch.nn.functional.pad(values, borders, mode="reflect")
    channels = values.shape[1]
    kernel = kernel.reshape(height, width).expand(channels, 1, height, width)
    values = torch.nn.functional.conv2d(values, kernel, groups=channels).round().to(torch.uint8)
    array = values[0].permute(1, 2, 0).contiguous().numpy()
    return Image.frombytes(image.mode, image.size, array.tobytes())


def _replay_one(image: Any, kind: int, method: int, resample: int, _: int, channels: int, *rest: Any) -> Any:
    width, height, left, upper, right, lower, *area, factor, shift, _ = rest
    if kind == _core.IMAGE_CROP:
        return image.crop((left, upper, right, lower))
    if kind == _core.IMAGE_RESIZE:
        return image.resize((width, height), resample, tuple(area))
    if kind == _core.IMAGE_TRANSPOSE:
        return image.transpose(method)
    if kind == _core.IMAGE_CONVERT:
        return image.convert("L" if channels == 1 else "RGB")
    if kind == _core.IMAGE_HUE:
        return shift_hue(image, shift)
    return ENHANCERS[kind - _core.IMAGE_BRIGHTNESS](image).enhance(factor)


def shift_hue(image: Any, shift: int) -> Any:
    """Returns the image with its hue shifted, as torchvision's adjust_hue does; one in mode L is returned as it is."""
    if image.mode == "L":
        return image
    hue_band, *others = image.convert("HSV").split()
    hue_band = hue_band.point([(value + shift) & 255 for value in range(256)])
    return Image.merge("HSV", (hue_band, *others)).convert(image.mode)
