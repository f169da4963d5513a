# SPDX-License-Identifier: Apache-2.0
"""Values of a user's state_dict as text in the state of a loader, and back.

A checkpoint may come from somewhere else, so reading it must not run code: only plain values, NumPy arrays and torch
tensors are allowed, and a pickle is read by a reader that knows no other class.
"""

from __future__ import annotations

import base64
import collections
import io
import pickle
import sys
import zlib
from typing import Any

from headrace.sampling._state import StateError

# Modules and names that a pickle may contain.
_ALLOWED = {
    ("builtins", name): getattr(__import__("builtins"), name)
    for name in ("complex", "set", "frozenset", "bytearray", "range", "slice")
} | {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "deque"): collections.deque,
    ("collections", "Counter"): collections.Counter,
}
_NUMPYS = {"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"}


def _tensor_of(array: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(array.copy()).view(getattr(torch, dtype)).reshape(shape)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor and value.device.type == "cpu":
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
            return _tensor_of, (flat.numpy(), str(value.dtype)[len("torch.") :], tuple(value.shape))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if (module, name) == (__name__, "_tensor_of"):
            return _tensor_of
        if module.partition(".")[0] == "numpy" and name in _NUMPYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def encode(value: Any) -> str:
    """Returns a value as text. Raises StateError if it contains objects of classes that a state may not contain."""
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=4).dump(value)
        _Unpickler(io.BytesIO(file.getvalue())).load()
    except pickle.UnpicklingError as error:
        raise StateError(
            f"headrace: a state_dict contains a {error}; a loader's state can contain numbers, strings, bytes, None, "
            "lists, tuples, dicts, sets, NumPy arrays and torch tensors, so return those from state_dict()"
        ) from None
    except Exception as error:
        raise StateError(f"headrace: a state_dict cannot be pickled: {type(error).__name__}: {error}") from error
    return base64.b85encode(zlib.compress(file.getvalue(), 1)).decode()


def decode(text: Any) -> Any:
    """Returns the value that encode was given. Raises StateError."""
    try:
        return _Unpickler(io.BytesIO(zlib.decompress(base64.b85decode(text)))).load()
    except Exception as error:
        raise StateError(f"headrace: this state is damaged: a state_dict in it cannot be read ({error!r})") from None
