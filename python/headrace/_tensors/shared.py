# SPDX-License-Identifier: Apache-2.0
"""Tensors over arrays that several processes write, and how they reach other processes.

torch's reducers move the storage of a tensor that is sent to memory of its own. The sender's tensor would then no
longer be the shared array, without a word. So tensors over shared arrays are sent as the handle of their array, and
what else would move their storage is refused: storages, and tensors of other classes or with a gradient.

Such tensors are also made without headrace (torch.as_tensor(s.array)), and torch may be imported after the array was
made. So this module does not import torch, and looks at each reducer that is entered.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

Reducer = Callable[[Any], Any]


class Arrays(NamedTuple):
    """The functions of the cache that find, send and load its shared arrays."""

    is_written: Callable[[int], bool]  # an address -> whether a shared array is there
    reduce: Callable[[Any], Any]  # a numpy array -> the arguments of load, in front of which it gets `is_parameter`
    load: Callable[..., Any]


class _Reducers(dict[Any, Reducer]):
    """multiprocessing's table of reducers, into which torch enters its own when it is imported."""

    def __init__(self, entered: dict[Any, Reducer], arrays: Arrays) -> None:
        super().__init__()
        self._arrays = arrays
        for cls, reducer in entered.items():
            self[cls] = reducer

    def __setitem__(self, cls: Any, reducer: Reducer) -> None:
        wrap = _WRAPPERS.get((getattr(cls, "__module__", ""), getattr(cls, "__name__", "")))
        super().__setitem__(cls, wrap(reducer, self._arrays) if wrap else reducer)


def know_tensors(arrays: Arrays) -> None:
    """Makes multiprocessing's pickler send tensors over shared arrays as handles."""
    entered: dict[Any, Reducer] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    if not isinstance(entered, _Reducers):
        ForkingPickler._extra_reducers = _Reducers(entered, arrays)  # type: ignore[attr-defined]


def _wrap_tensors(torchs: Reducer, arrays: Arrays) -> Reducer:
    @functools.wraps(torchs)  # the doctor knows torch's reducers by their names
    def reduce_tensor(tensor: Any) -> Any:
        torch: Any = sys.modules["torch"]
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or not arrays.is_written(tensor.untyped_storage().data_ptr()):
            return torchs(tensor)
        return arrays.load, (isinstance(tensor, torch.nn.Parameter), *_arguments(tensor, arrays))

    return reduce_tensor


def _wrap_storages(torchs: Reducer, arrays: Arrays) -> Reducer:
    @functools.wraps(torchs)
    def reduce_storage(storage: Any) -> Any:
        if storage.device.type == "cpu" and arrays.is_written(storage.data_ptr()):
            raise pickle.PicklingError(
                "headrace: the storage of a tensor over a shared array cannot be sent, because torch would move it to "
                "other memory; send the shared array, or a copy of the tensor"
            )
        return torchs(storage)

    return reduce_storage


_WRAPPERS = {
    ("torch", "Tensor"): _wrap_tensors,
    ("torch.nn.parameter", "Parameter"): _wrap_tensors,
    ("torch.storage", "UntypedStorage"): _wrap_storages,  # all other storages and tensors are sent with one
}


def _arguments(tensor: Any, arrays: Arrays) -> Any:
    try:
        arguments = arrays.reduce(tensor.numpy())
    except (RuntimeError, TypeError):  # it requires a gradient, or has a dtype that numpy does not have
        arguments = None
    if arguments is None:
        raise pickle.PicklingError(
            f"headrace: a tensor over a shared array, of dtype {tensor.dtype}, shape {tuple(tensor.shape)} and with "
            f"requires_grad={tensor.requires_grad}, cannot be sent as what it is; send the shared array, or a copy of "
            "the tensor"
        )
    return arguments


def tensor_over(array: Any, is_parameter: bool) -> Any:
    """Returns a tensor over a shared array. Raises TypeError for a dtype that torch does not have."""
    import torch

    tensor = torch.from_numpy(array)
    return torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
