# SPDX-License-Identifier: Apache-2.0
"""The words of headrace where Python runs without the GIL (free-threaded Python). Imported only there."""

from __future__ import annotations

import sys
import warnings

TURNED_ON = (
    "headrace turned the GIL on for this process: its extension was not made for threads that run at once. Use a "
    "Python with the GIL, or set PYTHON_GIL=1, which has no warning. PYTHON_GIL=0 is not safe with headrace"
)
FORCED_OFF = (
    "headrace runs without the GIL, because PYTHON_GIL=0 or -X gil=0 was given. Its extension was not made for that: "
    "threads that run at once can crash it, or damage data. Remove the setting"
)


def load_extension() -> None:
    """Loads the extension, which turns the GIL on, and says so instead of Python, whose advice is PYTHON_GIL=0."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The global interpreter lock", RuntimeWarning)
        try:
            import headrace._core  # noqa: F401
        except ImportError:
            return  # the module that needs it says why
    is_enabled = sys._is_gil_enabled()  # type: ignore[attr-defined,unused-ignore]
    warnings.warn(TURNED_ON if is_enabled else FORCED_OFF, RuntimeWarning, stacklevel=3)
