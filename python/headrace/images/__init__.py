# SPDX-License-Identifier: Apache-2.0
"""headrace.images: Pillow's exact pixels from JPEG files, made in C."""

from __future__ import annotations

try:
    import PIL as _pillow  # noqa: F401
except ImportError as error:
    raise ImportError("headrace.images needs Pillow: pip install pillow") from error

from typing import TYPE_CHECKING

from headrace.images._check import Report, check
from headrace.images._counts import Counts, report
from headrace.images._open import install, installed, load_rgb, open, uninstall

if TYPE_CHECKING:
    from headrace.images._native import native as native

__all__ = ["Counts", "Report", "check", "install", "installed", "load_rgb", "native", "open", "report", "uninstall"]


def __getattr__(name: str) -> object:
    if name == "native":  # it needs torch, which the other names do not
        from headrace.images._native import native

        return native
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
