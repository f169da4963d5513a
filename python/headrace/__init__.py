# SPDX-License-Identifier: Apache-2.0
"""headrace brings samples to training processes.

`headrace.torch.DataLoader` is the drop-in for torch's; `headrace.Loader` is the same engine without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._loader import Loader as Loader

    __version__: str

__all__ = ["Loader", "__version__"]


def __getattr__(name: str) -> object:
    # Late, so that headrace.torch can fall back to torch's loader where the extension cannot be loaded.
    if name == "Loader":
        from headrace._loader import Loader

        return Loader
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
