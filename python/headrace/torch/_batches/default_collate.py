# SPDX-License-Identifier: Apache-2.0
"""Recognises torch's default_collate, which the extension can do in C."""

from __future__ import annotations

from headrace.torch._own import collate, originals


def is_torchs(collate_fn: object) -> bool:  # shortcut: default-collate
    """Returns True if it is torch's default_collate, and the user has added nothing to its table of types."""
    return collate_fn is originals.default_collate and originals.collates()


def is_as_ever() -> bool:
    """Returns True if torch's default_collate makes a batch now as it did when headrace was imported, and no mode sees
    that it does."""
    return originals.collates() and not collate.has_modes()
