# SPDX-License-Identifier: Apache-2.0
"""The bytes and the noted steps that the pixels of a lazy image are made of."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace import _core
from headrace.images import _counts, _steps


class Source:
    """The bytes of one JPEG file that can be decoded in C. All images that derive from one file share it."""

    __slots__ = ("data", "picture")

    def __init__(self, picture: _core.Picture, data: bytes) -> None:
        self.picture = picture
        self.data = data

    def by_pillow(self) -> Any:
        """Returns the image as Pillow decodes it."""
        image = JpegImageFile(io.BytesIO(self.data))
        image.load()
        return image


class Note:
    """An image without pixels: its source, the steps so far, and its size and mode after them. It never changes."""

    __slots__ = ("_packed", "mode", "size", "source", "steps", "weights")

    def __init__(self, source: Source, steps: bytes, size: tuple[int, int], mode: str, weights: bytes = b"") -> None:
        self.source = source
        self.steps = steps
        self.size = size
        self.mode = mode
        self.weights = weights  # floats, for the steps that need some
        self._packed: bytes | None = None

    def then(self, step: bytes, size: tuple[int, int], mode: str, weights: bytes = b"") -> Note:
        return Note(self.source, self.steps + step, size, mode, self.weights + weights)

    def packed(self) -> bytes:
        """Returns the pixels as bytes, of (height, width, 3) in mode RGB and (height, width) in mode L."""
        if self._packed is None:
            data = self._pixels(_core.IMAGE_PACKED)
            self._packed = self.by_pillow().tobytes() if data is None else data
        return self._packed

    def core(self) -> Any:
        """Returns the pixels as Pillow's own object (`Image.im`)."""
        if self._packed is not None:
            return Image.frombytes(self.mode, self.size, self._packed).im
        data = self._pixels(_core.IMAGE_PADDED)
        if data is None:
            return self.by_pillow().im
        return Image.frombytes(self.mode, self.size, data, "raw", "RGBX" if self.mode == "RGB" else "L").im

    def by_pillow(self) -> Any:
        """Returns the image as Pillow makes it from the same bytes. The decoder in C found them damaged."""
        _counts.leave("its compressed data is damaged")
        return _steps.replay(self.source.by_pillow(), self.steps, self.weights)

    def _pixels(self, layout: int) -> bytes | None:
        data = self.source.picture.pixels(self.steps, self.weights, layout)
        if data is not None:
            _counts.made()
        return data
