# SPDX-License-Identifier: Apache-2.0
"""headrace.images: Pillow's exact pixels from JPEG files, made in C."""

from __future__ import annotations

try:
    import PIL as _pillow  # noqa: F401
except ImportError as error:
    raise ImportError("headrace.images needs Pillow: pip install pillow") from error

from headrace.images._open import install, installed, load_rgb, open, uninstall

__all__ = ["install", "installed", "load_rgb", "open", "uninstall"]
