# SPDX-License-Identifier: Apache-2.0
"""headrace.doctor says what keeps an object from being sent to worker processes, where it was set, and what to do."""

from __future__ import annotations

from headrace.doctor._check import check
from headrace.doctor._report import Finding, Report, Size

__all__ = ["Finding", "Report", "Size", "check"]
