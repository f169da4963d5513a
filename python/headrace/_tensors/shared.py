# SPDX-License-Identifier: Apache-2.0
"""Tensors over arrays that several processes write, and how they reach other processes.

torch's reducer of tensors moves a tensor that is sent to memory of its own. The sender's tensor would then no longer be
the shared array, without a word. So tensors over shared arrays are sent as the handle of their array.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # it registers torch's reducers

Reduce = Callable[[Any], Any]  # an array -> what a reducer returns, or None if it is not shared


def tensor_over(array: Any, reduce: Reduce) -> torch.Tensor:
    """Returns a tensor over a shared array. Raises TypeError for a dtype that torch does not have."""
    _register(reduce)
    return torch.from_numpy(array)


def _as_array(tensor: torch.Tensor) -> Any:
    """Returns the array of a tensor that numpy can look at, or None."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    try:
        return None if tensor.requires_grad else tensor.numpy()
    except (RuntimeError, TypeError):  # a dtype that numpy does not have, a conjugate view
        return None


def _register(reduce: Reduce) -> None:
    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    previous = reducers.get(torch.Tensor)
    if previous is None or getattr(previous, "is_of_headrace", False):
        return

    def reduce_tensor(tensor: torch.Tensor) -> Any:  # the doctor knows the reducer of tensors by this name
        array = _as_array(tensor)
        sent = None if array is None else reduce(array)
        return previous(tensor) if sent is None else sent

    reduce_tensor.is_of_headrace = True  # type: ignore[attr-defined]
    ForkingPickler.register(torch.Tensor, reduce_tensor)
