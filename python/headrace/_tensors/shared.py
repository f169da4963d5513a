# SPDX-License-Identifier: Apache-2.0
"""Tensors over arrays that several processes write, and how they reach other processes.

torch's reducer of tensors moves a tensor that is sent to memory of its own. The sender's tensor would then no longer be
the shared array, without a word. So tensors over shared arrays are sent as the handle of their array.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # it registers torch's reducers


def tensor_over(
    array: Any, is_written: Callable[[int], bool], reduce: Callable[[Any], Any], load: Callable[..., Any]
) -> torch.Tensor:
    """Returns a tensor over a shared array. Raises TypeError for a dtype that torch does not have.

    is_written: an address -> whether a shared array is there. reduce: an array -> the arguments of load.
    """
    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    previous = reducers.get(torch.Tensor)
    if previous is None or getattr(previous, "is_of_headrace", False):
        return torch.from_numpy(array)

    def reduce_tensor(tensor: torch.Tensor) -> Any:  # the doctor knows the reducer of tensors by this name
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or not tensor.numel() or not is_written(tensor.data_ptr()):
            return previous(tensor)
        return load, _arguments(tensor, reduce)

    reduce_tensor.is_of_headrace = True  # type: ignore[attr-defined]
    ForkingPickler.register(torch.Tensor, reduce_tensor)
    return torch.from_numpy(array)


def _arguments(tensor: torch.Tensor, reduce: Callable[[Any], Any]) -> Any:
    try:
        arguments = reduce(tensor.numpy())
    except (RuntimeError, TypeError):  # it requires a gradient, or has a dtype that numpy does not have
        arguments = None
    if arguments is None:
        raise pickle.PicklingError(
            f"headrace: a tensor over a shared array, of dtype {tensor.dtype} and with requires_grad="
            f"{tensor.requires_grad}, cannot be sent as what it is; send the shared array, or a copy of the tensor"
        )
    return arguments
