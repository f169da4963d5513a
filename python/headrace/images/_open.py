# SPDX-License-Identifier: Apache-2.0
"""`images.open` and `images.load_rgb`, and `install`, which puts `open` in the place of PIL.Image.open."""

from __future__ import annotations

import builtins
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace._samples import start_state
from headrace.images import _counts
from headrace.images._lazy import make_lazy
from headrace.images._selftest import verdict

_next_open = Image.open  # Pillow's, or what install() has replaced


def open(fp: Any, mode: Any = "r", formats: Any = None) -> Any:  # shortcut: pillow-image
    """Opens an image file as PIL.Image.open does, with the same arguments, results and errors.

    A JPEG file is not decoded when it is loaded: convert, crop, resize, transpose and copy are noted, and what needs
    pixels gets them from C, all steps in one go and only the part of the file that they use. The pixels are exactly
    Pillow's. All other files are Pillow's own images.
    """
    image = _next_open(fp, mode, formats)
    if type(image) is not JpegImageFile:
        _counts.leave(f"its format is {image.format}")
    elif verdict().decode:
        make_lazy(image)
    else:
        _counts.leave(verdict().why)
    return image


def load_rgb(path: Any) -> Any:
    """Returns the image in a file in mode RGB: a `loader` for torchvision's ImageFolder, with the pixels of its own.

    The file is read and checked here, so a damaged one raises here, as with torchvision's loader.
    """
    with builtins.open(path, "rb") as file:
        return open(file).convert("RGB")


def install() -> None:
    """Makes PIL.Image.open the same as `open` here, for code that cannot be changed, in this process and in the workers
    of headrace's loaders that start afterwards.

    Only code that calls `Image.open` as an attribute sees it. HEADRACE_IMAGES=0 turns all of headrace.images off.
    """
    global _next_open
    if Image.open is not open:
        _next_open, Image.open = Image.open, open
    start_state.installs_images = True


def uninstall() -> None:
    """Puts back the function that install() has replaced. If PIL.Image.open was replaced again in the meantime, that
    stays."""
    if Image.open is open:
        Image.open = _next_open
    start_state.installs_images = False


def installed() -> bool:
    """Returns True if PIL.Image.open is `open` here."""
    return Image.open is open
