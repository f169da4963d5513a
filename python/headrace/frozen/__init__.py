# SPDX-License-Identifier: Apache-2.0
"""headrace.frozen: frozen data, which any number of processes read. headrace.freeze, open and thaw are here too."""

from __future__ import annotations

from headrace.frozen._attributes import FreezeReport, FrozenAttribute, freeze_attributes
from headrace.frozen._builder import Builder
from headrace.frozen._freeze import FrozenError, Report, freeze, nbytes, open
from headrace.frozen._thaw import thaw

__all__ = [
    "Builder",
    "FreezeReport",
    "FrozenAttribute",
    "FrozenError",
    "Report",
    "freeze",
    "freeze_attributes",
    "nbytes",
    "open",
    "thaw",
]
