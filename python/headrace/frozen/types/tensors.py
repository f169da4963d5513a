# SPDX-License-Identifier: Apache-2.0
"""torch's tensors, and the small types of torch that tensors are described with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from headrace._core import FrozenError

# By the name of the type in torch, because torch may not be imported. A row is what is stored of a value.
ROWS: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda value: str(value).removeprefix("torch."),
    "device": str,
    "Size": tuple,
}


def _module() -> Any:
    return importlib.import_module("headrace._tensors.frozen")


def maker(name: str) -> Callable[[Any], Any]:
    """Returns the function that makes a value of one of the rows."""

    def make(parts: Any) -> Any:
        torch = _module().torch
        made = vars(torch)[parts] if name == "dtype" else getattr(torch, name)(parts)  # getattr would import
        if type(made).__name__ != name:
            raise FrozenError(f"headrace: this frozen data has {parts!r} as a torch.{name}, but it is not one")
        return made

    return make


def tensor_dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def tensor(*arguments: Any) -> Any:
    return _module().tensor(*arguments)


def strided_tensor(*arguments: Any) -> Any:
    return _module().strided_tensor(*arguments)
