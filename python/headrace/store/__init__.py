# SPDX-License-Identifier: Apache-2.0
"""headrace.store: the earlier name of headrace.frozen."""

from __future__ import annotations

from headrace.frozen import Builder as Builder
from headrace.frozen import FreezeReport as FreezeReport
from headrace.frozen import FrozenAttribute as FrozenAttribute
from headrace.frozen import FrozenError as StoreError
from headrace.frozen import Report as Report
from headrace.frozen import freeze as freeze
from headrace.frozen import freeze_attributes as freeze_attributes
from headrace.frozen import nbytes as nbytes
from headrace.frozen import open as open
from headrace.frozen import thaw as thaw

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
