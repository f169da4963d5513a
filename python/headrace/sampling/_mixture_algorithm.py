# SPDX-License-Identifier: Apache-2.0
"""The version of the order of a headrace.Mixture, for its states and those of loaders and plans that read one."""

from __future__ import annotations

from typing import Any

from headrace._base.help_key import help_on
from headrace.sampling._state import OrderChangedError

# States of version 1 do not say so: it shuffled 64 samples across passes.
ALGORITHM = 2


def check_algorithm(found: Any) -> None:
    """Raises OrderChangedError for a state whose order this version does not have."""
    if found != ALGORITHM:
        raise OrderChangedError(
            f"headrace: this state was taken with a Mixture of algorithm {found}, and this version of headrace has "
            f"{ALGORITHM}, which gives other samples at the same place; use the version that has made the state, or "
            "begin an epoch with set_epoch" + help_on("order-changed")
        )
