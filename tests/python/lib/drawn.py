# SPDX-License-Identifier: Apache-2.0
"""How many examples a test with drawn input takes."""

from __future__ import annotations

import os


def draws(in_soak: int) -> int:
    """Returns the number of examples: a third of those of `make soak`, which takes all."""
    return in_soak if os.environ.get("HEADRACE_SOAK") == "1" else -(-in_soak // 3)
