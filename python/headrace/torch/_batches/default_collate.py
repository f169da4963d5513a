# SPDX-License-Identifier: Apache-2.0
"""Recognises torch's default_collate, which the extension can do in C."""

from __future__ import annotations

from typing import Any

import torch

from headrace._base import lookup
from headrace.torch._own import collate

_PLAIN = {
    torch.Tensor: "collate_tensor_fn",
    float: "collate_float_fn",
    int: "collate_int_fn",
    str: "collate_str_fn",
    bytes: "collate_str_fn",
}
_NUMPY = ("collate_numpy_array_fn", "collate_numpy_scalar_fn")


def _is_one_of(function: Any, *names: str) -> bool:
    """Returns True if it is a function of torch's collate module with one of these names. The names are not looked up,
    because a user may have replaced the functions."""
    is_of_module = lookup.attribute(function, "__globals__") is collate.collate_module
    return is_of_module and function.__name__ in names


def is_torchs(collate_fn: object) -> bool:
    """Returns True if it is torch's default_collate, and the user has added nothing to its table of types."""
    functions = collate.collate_functions()
    is_default = _is_one_of(collate_fn, "default_collate") and _is_one_of(collate.collate(), "collate")
    if functions is None or not is_default:
        return False
    others = [functions[key] for key in functions if key not in _PLAIN]
    return all(_is_one_of(functions.get(key), name) for key, name in _PLAIN.items()) and all(
        _is_one_of(other, *_NUMPY) for other in others
    )
