# SPDX-License-Identifier: Apache-2.0
"""torch's reductions for batches that are pickled: tensors travel beside the pickle, in the slot."""

from __future__ import annotations

import io
from typing import Any

import torch

from headrace._start import pickling
from headrace.torch import _internals

_ALIGN = 16  # the largest item size: a storage's part starts at a multiple of it


class _Part:
    """The part of a storage that tensors of one batch look into."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.start = storage.nbytes()
        self.end = 0

    def add(self, start: int, end: int) -> None:
        self.start = min(self.start, start // _ALIGN * _ALIGN)
        self.end = max(self.end, end)

    def as_tensor(self) -> torch.Tensor:
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self.storage)
        return whole[self.start : max(self.start, self.end)]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a strided tensor looks at: [start, end)."""
    item = tensor.element_size()
    start = int(tensor.storage_offset()) * item
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * item


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


class Pickler(pickling.Pickler):
    """torch.multiprocessing's reductions, except that a storage's bytes travel in the slot and not in a file of their
    own. Tensors that share a storage arrive sharing one; only the part that they look into travels."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.parts: dict[int, tuple[int, _Part]] = {}

    def _part_of(self, storage: torch.UntypedStorage) -> tuple[int, _Part]:
        key = _internals.storage_key(storage)
        found = self.parts.get(key)
        if found is None:
            found = self.parts[key] = (len(self.parts), _Part(storage))
        return found

    def reducer_override(self, value: Any) -> Any:
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
        """The first child says where each part starts in its storage: that is not known before all is pickled."""
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
    empty = torch.empty(0, dtype=dtype, device="cpu")  # whatever the default device is
    start = int(pickling.child(0)[number]) // empty.element_size()
    return empty.set_(_rebuild_storage(number), offset - start, size, stride)
