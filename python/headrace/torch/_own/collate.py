# SPDX-License-Identifier: Apache-2.0
"""Finds how torch collates, and whether a mode is on that sees it. With private names of torch."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
import torch.utils.data
from torch.autograd import forward_ad

from headrace._tensors import torch_names
from headrace.torch._own.classes import UTILS

default_convert: Any = torch_names.find(f"{UTILS}.collate.default_convert")
collate_module: Any = vars(sys.modules.get(f"{UTILS}.collate", types))  # torch's own functions have these globals


def collate() -> Any:
    """Returns torch's function that collates, or what a user has put in its place; None if torch has none."""
    return torch_names.find(f"{UTILS}.collate.collate")


def collate_functions() -> Any:
    """Returns torch's table of collating functions, by type, with what a user has added; None if torch has none."""
    return torch_names.find(f"{UTILS}.collate.default_collate_fn_map")


def collate_in_private_memory() -> None:
    """Makes torch's default_collate, and functions that are copied from it, use private memory in this worker.
    Otherwise they put a batch into a file in /dev/shm for torch's queue. headrace would only copy it from there."""
    storage: Any = torch.UntypedStorage
    in_shared_memory = torch_names.find("torch.UntypedStorage._new_shared")
    if in_shared_memory is None:
        return

    def new(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type == "cpu":
            return cls(size, device="cpu")
        return in_shared_memory(size, device=device)

    storage._new_shared = classmethod(new)


_function_modes: Any = torch_names.find("torch._C._len_torch_function_stack")
_dispatch_modes: Any = torch_names.find("torch._C._len_torch_dispatch_stack")


_transforms: Any = torch_names.find("torch._C._functorch.peek_interpreter_stack", lambda: None)


def has_modes() -> bool:
    """Returns True if a mode is on that sees torch's operations, or changes them, or in which tensors have tangents
    (forward_ad.dual_level), or within a function that torch.func transforms, or if torch does not say."""
    if _function_modes is None or _dispatch_modes is None or _transforms() is not None:
        return True
    return bool(_function_modes() or _dispatch_modes() or getattr(forward_ad, "_current_level", 0) >= 0)
