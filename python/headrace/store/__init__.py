# SPDX-License-Identifier: Apache-2.0
"""headrace.store: frozen data, which any number of processes read. headrace.freeze, open and thaw are here too."""

from __future__ import annotations

from headrace.store._attributes import FreezeReport, FrozenAttribute, freeze_attributes
from headrace.store._builder import Builder
from headrace.store._freeze import Report, StoreError, freeze, nbytes, open
from headrace.store._thaw import thaw

__all__ = [
    "Builder",
    "FreezeReport",
    "FrozenAttribute",
    "Report",
    "StoreError",
    "freeze",
    "freeze_attributes",
    "nbytes",
    "open",
    "thaw",
]
