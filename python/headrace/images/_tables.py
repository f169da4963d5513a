# SPDX-License-Identifier: Apache-2.0
"""The last steps of a pipeline (ToTensor, Normalize, ...) as a table: what they make of each of the 256 bytes.

These steps round differently in torchvision's two versions and in timm. So the user's own steps are run on a ramp of
greys, and the results are kept. A second, small image proves that nothing but a pixel's own byte and channel matters.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from headrace import _core
from headrace.images import _counts
from headrace.images._note import Note

_TORCHVISION, _V2 = "torchvision.transforms.transforms.", "torchvision.transforms.v2."
# Steps that make a tensor of an image, with which a tail begins, and steps that may follow. Only these exact classes:
# a subclass may do anything.
FIRST = frozenset(
    {
        _TORCHVISION + "ToTensor",
        _TORCHVISION + "PILToTensor",
        _V2 + "_deprecated.ToTensor",
        _V2 + "_type_conversion.PILToTensor",
        _V2 + "_type_conversion.ToImage",
        "timm.data.transforms.MaybeToTensor",
        "timm.data.transforms.MaybePILToTensor",
    }
)
FURTHER = frozenset(
    {
        _TORCHVISION + "ConvertImageDtype",
        _TORCHVISION + "Normalize",
        _V2 + "_misc.ConvertImageDtype",
        _V2 + "_misc.Normalize",
        _V2 + "_misc.ToDtype",
        _V2 + "_type_conversion.ToPureTensor",
    }
)
_VALUES = ("mean", "std", "dtype", "scale")
_BYTES = 256
_PROBE = (9, 7)  # width and height of the second image


@dataclass(frozen=True)
class Table:
    data: bytes | None  # (channels, 256) items; None: the bytes themselves
    channels: int
    dtype: Any
    kind: type  # torch.Tensor or a subclass of it
    is_channels_last: bool  # in memory, as torchvision's ToImage and PILToTensor leave the result

    def shape(self, note: Note) -> tuple[int, int, int]:
        return self.channels, note.size[1], note.size[0]

    def recipe(self, note: Note) -> tuple[Any, ...]:
        """Returns the recipe that makes the image, without its target: memory for its shape and dtype."""
        return note.encoded.picture, note.steps, note.weights, self.data, self.channels, self.dtype.itemsize

    def empty(self, note: Note) -> Any:
        """Returns a tensor for the image: contiguous, as `make` needs it."""
        return torch.empty(self.shape(note), dtype=self.dtype, device="cpu")

    def as_result(self, planes: Any) -> Any:
        """Returns the tensor with the strides and the class of the steps' result."""
        if self.is_channels_last:
            channels, _, width = planes.shape
            strides = (1, width * channels, channels)
            planes = torch.empty_strided(planes.shape, strides, dtype=self.dtype, device="cpu").copy_(planes)
        return planes if self.kind is torch.Tensor else planes.as_subclass(self.kind)

    def fits(self, note: Note) -> bool:
        """Returns False for a row or a column of pixels: which strides such a tensor gets depends on more than the
        steps."""
        return min(note.size) > 1


def key_of(steps: Sequence[Any], mode: str) -> tuple[Any, ...]:
    """Returns what a table depends on. The values are read each time, because people change them."""
    values = [_as_value(vars(step).get(name)) for step in steps for name in _VALUES]
    return mode, torch.get_default_dtype(), tuple(map(type, steps)), tuple(values)


def _as_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_as_value, value))
    if isinstance(value, (torch.Tensor, np.ndarray)) and not getattr(value, "is_meta", False):
        # The repr of an array has not all digits.
        return str(value.dtype), tuple(value.shape), _as_value(value.tolist())
    return repr(value)


def apply(steps: Sequence[Any], image: Any) -> Any:
    for step in steps:
        image = step(image)
    return image


def build(steps: Sequence[Any], mode: str) -> Table | None:
    """Returns the table of the steps for images of a mode; None if they do not depend on single bytes only."""
    try:
        ramp = Image.frombytes("L", (_BYTES, 1), bytes(range(_BYTES))).convert(mode)
        result = apply(steps, ramp)
        table = _table_of(result)
        return None if table is None else _proved(table, steps, mode)
    except Exception:  # whatever the steps raise, they raise it again for the first image
        return None


def _table_of(result: Any) -> Table | None:
    plain = isinstance(result, torch.Tensor) and result.device.type == "cpu" and not result.requires_grad
    if not plain or result.dim() != 3 or tuple(result.shape[1:]) != (1, _BYTES) or not 1 <= len(result) <= 4:
        return None
    data: bytes | None = _bytes_of(result)
    if result.dtype == torch.uint8 and data == bytes(range(_BYTES)) * len(result):
        data = None
    return Table(data, len(result), result.dtype, type(result), is_channels_last=False)


def _bytes_of(tensor: Any) -> bytes:
    plain = tensor.as_subclass(torch.Tensor).contiguous()
    return bytes(plain.view(torch.uint8).numpy().tobytes())


def _proved(table: Table, steps: Sequence[Any], mode: str) -> Table | None:
    """Compares the table with the steps on an image in which neighbours and channels differ. Returns the table with the
    order in memory that the result has, or None."""
    width, height = _PROBE
    pixel_bytes = 1 if mode == "L" else 4
    pixels = bytes(
        (x * x * 31 + y * 57 + c * 101) % _BYTES
        for y in range(height)
        for x in range(width)
        for c in range(pixel_bytes)
    )
    image = Image.frombytes(mode, _PROBE, pixels, "raw", "L" if mode == "L" else "RGBX")
    expected = apply(steps, image)
    planes = torch.empty((table.channels, height, width), dtype=table.dtype, device="cpu")
    picture = _core.Picture.wrap(pixels, width, height, pixel_bytes)
    target = memory_of(planes)
    results = _core.run_images([(picture, b"", b"", table.data, table.channels, table.dtype.itemsize, target)], 1)
    for one in (table, replace(table, is_channels_last=True)):
        if results == [0] and _is_same(expected, one.as_result(planes)):
            return one
    return None


def _is_same(expected: Any, found: Any) -> bool:
    """Compares two tensors to the last bit, with their classes and strides."""
    forms = [(type(one), one.shape, one.dtype, one.stride()) for one in (expected, found)]
    return forms[0] == forms[1] and _bytes_of(expected) == _bytes_of(found)


def memory_of(tensor: Any) -> Any:
    """Returns the memory of a contiguous tensor as an array of bytes."""
    return tensor.view(torch.uint8).numpy()


def make(notes: Sequence[tuple[Note, Table, Sequence[Any]]], targets: Sequence[Any], threads: int) -> None:
    """Makes images in the memory of contiguous tensors, with so many threads, none of which calls Python."""
    recipes = [
        (*table.recipe(note), memory_of(target)) for (note, table, _), target in zip(notes, targets, strict=True)
    ]
    results = _core.run_images(recipes, threads)
    for (note, _, steps), target, result in zip(notes, targets, results, strict=True):
        if result == 0:
            _counts.made()
        elif result == -errno.EBADMSG:
            target.copy_(apply(steps, note.by_pillow()))
        elif result == -errno.ENOMEM:
            raise MemoryError("headrace: images: no memory to decode an image")
        else:
            raise RuntimeError(f"headrace: images: a recipe failed with code {result}")
