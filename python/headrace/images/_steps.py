# SPDX-License-Identifier: Apache-2.0
"""The steps of a recipe as bytes (`struct hr_image_step` of headrace/image.h), and their replay by Pillow.

The lazy images note their steps with the functions here. Pillow replays them for an image whose compressed data turns
out to be damaged.
"""

from __future__ import annotations

import struct
from typing import Any

from PIL import Image, ImageEnhance

NONE = b""
LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(1, 6)  # Pillow's numbers
FILTERS = frozenset((LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING))
HORIZONTAL_FIRST, SMALLER_FIRST = range(2)
MOST_SIDE = 65500
SWAPPING = frozenset((2, 4, 5, 6))  # the methods of transpose that exchange width and height

_CROP, _RESIZE, _TRANSPOSE, _CONVERT, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE, _BLUR = range(9)
# kind, method, filter, passes, channels, width, height, box, area, factor, shift, weights_at
_STEP = struct.Struct("=7I4i4ff2I")
FLOAT_BYTES = 4
_CHANNELS = {"L": 1, "RGB": 3}
ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)  # from _BRIGHTNESS on
MOST_FACTOR = 1e6  # of brightness, contrast and saturation


def crop(left: int, upper: int, right: int, lower: int) -> bytes:
    return _STEP.pack(_CROP, 0, 0, 0, 0, 0, 0, left, upper, right, lower, 0, 0, 0, 0, 0, 0, 0)


def resize(width: int, height: int, resample: int, passes: int, area: tuple[float, float, float, float]) -> bytes:
    return _STEP.pack(_RESIZE, 0, resample, passes, 0, width, height, 0, 0, 0, 0, *area, 0, 0, 0)


def transpose(method: int) -> bytes:
    return _STEP.pack(_TRANSPOSE, method, *[0] * 16)


def convert(mode: str) -> bytes:
    return _STEP.pack(_CONVERT, 0, 0, 0, _CHANNELS[mode], *[0] * 13)


def brightness(factor: float) -> bytes:
    return _STEP.pack(_BRIGHTNESS, *[0] * 14, factor, 0, 0)


def contrast(factor: float) -> bytes:
    return _STEP.pack(_CONTRAST, *[0] * 14, factor, 0, 0)


def saturation(factor: float) -> bytes:
    return _STEP.pack(_SATURATION, *[0] * 14, factor, 0, 0)


def hue(shift: int) -> bytes:
    """Returns the step that adds `shift`, 0 to 255, to the hue of mode HSV."""
    return _STEP.pack(_HUE, *[0] * 15, shift, 0)


def blur(width: int, height: int, weights_at: int) -> bytes:
    """Returns the step that adds neighbours with so many weights, of which the first is at this place."""
    return _STEP.pack(_BLUR, 0, 0, 0, 0, width, height, *[0] * 10, weights_at)


def replay(image: Any, steps: bytes, weights: bytes = b"") -> Any:
    """Returns the result of the steps by Pillow alone, except blurs, which are torch's."""
    for step in _STEP.iter_unpack(steps):
        image = blur_by_torch(image, weights, step) if step[0] == _BLUR else _replay_one(image, *step)
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
    if kind == _CROP:
        return image.crop((left, upper, right, lower))
    if kind == _RESIZE:
        return image.resize((width, height), resample, tuple(area))
    if kind == _TRANSPOSE:
        return image.transpose(method)
    if kind == _CONVERT:
        return image.convert("L" if channels == 1 else "RGB")
    if kind == _HUE:
        return shift_hue(image, shift)
    return ENHANCERS[kind - _BRIGHTNESS](image).enhance(factor)


def shift_hue(image: Any, shift: int) -> Any:
    """Returns the image with its hue shifted, as torchvision's adjust_hue does; one in mode L is returned as it is."""
    if image.mode == "L":
        return image
    hue_band, *others = image.convert("HSV").split()
    hue_band = hue_band.point([(value + shift) & 255 for value in range(256)])
    return Image.merge("HSV", (hue_band, *others)).convert(image.mode)
