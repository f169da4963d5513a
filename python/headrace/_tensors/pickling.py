# SPDX-License-Identifier: Apache-2.0
"""Pickles batches with tensors: the bytes of the tensors are not in the pickle, but next to it in the slot."""

from __future__ import annotations

import io
from typing import Any

import torch

from headrace._base import pickling
from headrace._tensors import torch_names

_ALIGN = 16  # the largest item size: a storage's part starts at a multiple of it


class _Part:
    """The part of a storage that the tensors of one batch use."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.start = storage.nbytes()
        self.end = 0

    def add(self, start: int, end: int) -> None:
        self.start = min(self.start, start // _ALIGN * _ALIGN)
        self.end = max(self.end, end)

    def as_tensor(self) -> torch.Tensor:
        size = max(0, self.end - self.start)
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(self.storage, self.start, (size,), (1,))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the range of bytes [start, end) of its storage that a strided tensor uses."""
    item = tensor.element_size()
    start = int(tensor.storage_offset()) * item
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * item


def _is_plain(tensor: torch.Tensor) -> bool:  # shortcut: plain-tensors
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _is_changed_by_torch(tensor: torch.Tensor) -> bool:  # shortcut: plain-tensors
    """Returns True for a tensor that torch.multiprocessing sends without its attributes, or with another quantiser."""
    return tensor.is_quantized or (type(tensor) is torch.Tensor and bool(vars(tensor)))


class Pickler(pickling.Pickler):
    """Pickles as torch.multiprocessing does, except that the bytes of a storage are sent in the slot and not in a file
    of their own. Tensors that share a storage share it after loading too; only the part that they use is sent."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.parts: dict[int, tuple[int, _Part]] = {}

    def _part_of(self, storage: torch.UntypedStorage) -> tuple[int, _Part]:
        key = torch_names.storage_key(storage)
        found = self.parts.get(key)
        if found is None:
            found = self.parts[key] = (len(self.parts), _Part(storage))
        return found

    def reducer_override(self, value: Any) -> Any:  # shortcut: plain-tensors
        if self.is_exact and type(value) is torch.Tensor and not value.requires_grad:
            value = value.resolve_conj().resolve_neg()  # a pickle does not keep these bits, and torch loses them, too
        if self.is_exact and isinstance(value, torch.Tensor) and _is_changed_by_torch(value):
            return value.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        if isinstance(value, torch.Tensor) and _is_plain(value):
            number, part = self._part_of(value.untyped_storage())
            part.add(*_span(value))
            return _rebuild_tensor, (number, value.dtype, value.storage_offset(), value.size(), value.stride())
        if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
            number, part = self._part_of(value)
            part.add(0, value.nbytes())
            return _rebuild_storage, (number,)
        return super().reducer_override(value)

    def finish(self) -> list[Any]:
        """Returns the children. The first says where each part starts in its storage, which is known only now."""
        if self.parts:
            parts = [part for _, part in self.parts.values()]
            starts = torch.tensor([part.start for part in parts], device="cpu")
            self.tensors = [starts, *(part.as_tensor() for part in parts)]
        return super().finish()


def _rebuild_storage(number: int) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = pickling.child(1 + number).untyped_storage()
    return storage


def _rebuild_tensor(
    number: int, dtype: torch.dtype, offset: int, size: torch.Size, stride: tuple[int, ...]
) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype, device="cpu")  # on the CPU, whatever the default device is
    start = int(pickling.child(0)[number]) // empty.element_size()
    return empty.set_(_rebuild_storage(number), offset - start, size, stride)
