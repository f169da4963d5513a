# SPDX-License-Identifier: Apache-2.0
"""Orders of the samples of a dataset: which index comes at which position. headrace.Order is here too."""

from __future__ import annotations

from headrace.sampling._order import Order

__all__ = ["Order"]
