# SPDX-License-Identifier: Apache-2.0
"""How many examples a test with drawn input takes, and how long a soak of it."""

from __future__ import annotations

import os
import re

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def draws(in_soak: int) -> int:
    """Returns the number of examples: a third of those of `make soak`, which takes all."""
    return in_soak if os.environ.get("HEADRACE_SOAK") == "1" else -(-in_soak // 3)


def to_seconds(text: str) -> int:
    """Returns the seconds of a time on a command line, such as 90, 10m or 1h."""
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    if found is None:
        raise SystemExit(f"{text!r} is no time; write 90, 10m or 1h")
    return int(found[1]) * UNITS[found[2]]
