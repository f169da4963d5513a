# SPDX-License-Identifier: Apache-2.0
"""Makes tensors over the memory of frozen data.

torch has no read-only tensors, and a write to sealed memory would crash the process. So this process maps the data
once more, copy on write, and tensors use that mapping. Pages that are only read are the shared memory. A page that is
written becomes private: only tensors over the same data in this process see the change.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from typing import Any

import torch

from headrace import _core
from headrace._core import FrozenError


def _open(frozen: Any) -> int | None:
    """Returns a descriptor of the file that has the data, or None."""
    if frozen.fd >= 0:
        return os.dup(frozen.fd)
    if hasattr(frozen, "open_file"):  # an object of a cache
        return int(frozen.open_file())
    try:
        return os.open(frozen.path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, TypeError, AttributeError):
        return None


def _map(frozen: Any) -> mmap.mmap | None:
    fd = _open(frozen)
    if fd is None:
        return None
    try:
        mapped = mmap.mmap(fd, frozen.bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    same = (
        mapped[: _core.FROZEN_HEADER_BYTES] == memoryview(frozen)[: _core.FROZEN_HEADER_BYTES]
    )  # the file may be another
    return mapped if same else None


def _memory(frozen: Any) -> mmap.mmap | None:
    if not hasattr(frozen, "tensors"):
        frozen.tensors = _map(frozen)
    found: mmap.mmap | None = frozen.tensors
    return found


def _dtype(name: str) -> torch.dtype:
    dtype = vars(torch).get(name)  # getattr would import what torch imports late
    if not isinstance(dtype, torch.dtype):
        raise FrozenError(f"headrace: this frozen data has a tensor of dtype {name[:40]!r}, which torch does not have")
    return dtype


def tensor(frozen: Any, name: str, shape: tuple[int, ...], offset: int, size: int, private: bool) -> torch.Tensor:
    """Returns a tensor over the `size` bytes at `offset` of frozen data, or a copy of them if `private`."""
    dtype = _dtype(name)
    if math.prod(shape) * torch.empty(0, dtype=dtype, device="cpu").element_size() != size:
        raise FrozenError(f"headrace: a tensor of this frozen data does not have the size of its shape {shape}")
    if size == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = None if private else _memory(frozen)
    if memory is None:
        return torch.frombuffer(bytearray(memoryview(frozen)[offset : offset + size]), dtype=dtype).reshape(shape)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)


def strided_tensor(
    memory: Any,
    name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    first: int,
    item_bytes: int,
    offset: int,
    size: int,
) -> torch.Tensor:
    """Returns a tensor whose elements share the `size` bytes at `offset` of frozen data, or of a copy (a bytearray).

    The library has checked that shape, strides and first stay within these bytes, in elements of item_bytes.
    """
    dtype = _dtype(name)
    if torch.empty(0, dtype=dtype, device="cpu").element_size() != item_bytes or min(strides, default=0) < 0:
        raise FrozenError(
            "headrace: a tensor of this frozen data has a layout that torch does not have; freeze the data again"
        )
    if not isinstance(memory, bytearray):
        mapped = _memory(memory)
        if mapped is None:
            memory, offset = bytearray(memoryview(memory)[offset : offset + size]), 0
        else:
            memory = mapped
    elements = torch.frombuffer(memory, dtype=dtype, count=size // item_bytes, offset=offset)
    return elements.as_strided(shape, strides, first)


def tensor_over(array: Any) -> torch.Tensor:
    """Returns a tensor over a read-only array of a cache, whose memory is mapped copy on write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is not writable
        return torch.from_numpy(array)
