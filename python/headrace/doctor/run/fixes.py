# SPDX-License-Identifier: Apache-2.0
"""The fixes that give a loader an option."""

from __future__ import annotations

from typing import Any

from headrace import Loader


def with_option(loader: Any, option: str) -> str:
    """Returns the fix that gives a loader an option: a loader of torch gets it with headrace's class."""
    return f"{option} in {'headrace.Loader' if isinstance(loader, Loader) else 'headrace.torch.DataLoader'}"
