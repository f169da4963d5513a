# SPDX-License-Identifier: Apache-2.0
"""headrace.doctor lists what keeps an object from being pickled for worker processes, the lines that set it, and fixes.

The rooms: `pickle` checks objects, `machine` checks the machine and the container, `run` measures a loader at work. The
command `headrace doctor` is `_commands/doctor.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._pickles.check import check as check
    from headrace._pickles.reports import Finding as Finding
    from headrace._pickles.reports import Report as Report
    from headrace._pickles.reports import Size as Size

__all__ = ["Finding", "Report", "Size", "check"]


def __getattr__(name: str) -> object:
    # Imported late, because the machine can also be checked if the extension cannot be loaded.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace._pickles import check, reports

    return check.check if name == "check" else getattr(reports, name)
