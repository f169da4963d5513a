# SPDX-License-Identifier: Apache-2.0
"""Moves a batch to a device as a training script does: with `.to`. Loaders without workers, the fallback and torch's
own iterators use it, and the sender for what it does not copy itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch


def move(value: Any, device: torch.device) -> Any:
    """Returns a batch with its tensors on a device: those in tuples, lists, dicts and named tuples, and any other
    object with a method `to`. Everything else stays as it is."""
    kind = type(value)
    if kind is torch.Tensor:
        return value.to(device)
    if kind is tuple or kind is list:
        return kind(move(one, device) for one in value)
    if kind is dict:
        return {key: move(one, device) for key, one in value.items()}
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(kind, [move(one, device) for one in value])
    if isinstance(value, (tuple, list)):
        return _like(value, [move(one, device) for one in value])
    if isinstance(value, Mapping):
        return _like_mapping(value, {key: move(one, device) for key, one in value.items()})
    return value


def _like(value: Any, moved: list[Any]) -> Any:
    """Returns a sequence of the same class, or a list if that cannot be made. torch's pinning does the same."""
    try:
        return type(value)(moved)
    except Exception:
        return moved


def _like_mapping(value: Any, moved: dict[Any, Any]) -> Any:
    try:
        clone = copy.copy(value)
        for key, one in moved.items():
            clone[key] = one
    except Exception:
        return moved
    return clone
