# SPDX-License-Identifier: Apache-2.0
"""headrace.doctor says what keeps an object from being sent to worker processes, where it was set, and what to do.

The command `headrace doctor` is `_cli`; what it says of the machine and of a loader at work is `_machine` and `_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.doctor._check import check as check
    from headrace.doctor._report import Finding as Finding
    from headrace.doctor._report import Report as Report
    from headrace.doctor._report import Size as Size

__all__ = ["Finding", "Report", "Size", "check"]


def __getattr__(name: str) -> object:
    # Late: the machine is looked at where the extension cannot be loaded too.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.doctor import _check, _report

    return _check.check if name == "check" else getattr(_report, name)
