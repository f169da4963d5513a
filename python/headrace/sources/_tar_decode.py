# SPDX-License-Identifier: Apache-2.0
"""Decodes the members of tar files by their fields, as WebDataset's decoders do."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

Decoder = Callable[[Any], Any]
KEY = "__key__"

_IMAGES = "apng bmp gif jfif jpe jpeg jpg pbm pgm png pnm ppm tif tiff webp".split()


def _decode_image(data: bytes) -> Any:
    """Returns the image in mode RGB, with the pixels of `headrace.images.load_rgb`."""
    from headrace.images import open as open_image

    return open_image(io.BytesIO(data)).convert("RGB")


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8")


def _decode_array(data: bytes) -> Any:
    import numpy as np

    return np.load(io.BytesIO(data), allow_pickle=False)


# Pickles (pth, pkl, pyd) are not here, because loading one runs code that is in the file.
_AUTO: dict[str, Decoder] = {
    **dict.fromkeys(_IMAGES, _decode_image),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("txt", "text", "transcript"), _decode_text),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _decode_array,
}


class Decoders:
    """Finds the decoder of a field. decode: see sources.Tar."""

    def __init__(self, decode: Any) -> None:
        if decode is not None and decode != "auto" and not isinstance(decode, Mapping):
            raise ValueError(f'Tar: decode should be "auto", None or a dict of functions by field, but got {decode!r}')
        own = decode if isinstance(decode, Mapping) else {}
        for field, function in own.items():
            if not isinstance(field, str) or not callable(function):
                raise TypeError(f"Tar: decode should have functions by field, but has {field!r}: {function!r}")
        self._own = {one: function for field, function in own.items() for one in field.lower().split(";")}
        self._auto = {} if decode is None else _AUTO

    def find(self, field: str) -> Decoder | None:
        """Returns the decoder of a field; None: its bytes stay. The whole field is looked up first, then its last
        part: "seg.png" is a png."""
        last = field.rpartition(".")[2]
        for decoders, name in ((self._own, field), (self._own, last), (self._auto, last)):
            if name in decoders:
                return decoders[name]
        return None
