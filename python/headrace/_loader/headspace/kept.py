# SPDX-License-Identifier: Apache-2.0
"""Keeps copies of the batches that a loop gets, and gives them again. A Measure uses it.

A batch is kept as a pickle in which each tensor and each array is a number, and copies of these. So the loop gets new
containers each time, whatever it does to them (`batch.pop("labels")`), and the same tensors, as long as it does not
write into them. A tensor that is more than its values is pickled whole, and a new one is made each time.
"""

from __future__ import annotations

import io
import pickle
import sys
import zlib
from typing import Any, NamedTuple

from headrace import _core
from headrace._loader.worker.batch_maker import count_local_trainers

MOST = 16  # batches that are kept
_PART = 4  # of the free memory, one part in so many
_PROTOCOL = 5  # of pickle


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def _is_plain(tensor: Any) -> bool:
    """Returns True if a tensor is its values alone. One of a subclass may have attributes, another a gradient."""
    torch = sys.modules["torch"]
    is_strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return is_strided and not tensor.requires_grad and not vars(tensor)


class _Whole(NamedTuple):
    """A pickled tensor that is not plain."""

    data: bytes

    @property
    def nbytes(self) -> int:
        return len(self.data)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self.parts: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []  # keeps them, because of their id()

    def persistent_id(self, value: Any) -> int | None:
        if not _is_tensor(value) and not _is_array(value):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.parts)
            self._values.append(value)
            is_whole = _is_tensor(value) and not _is_plain(value)
            self.parts.append(_Whole(pickle.dumps(value, _PROTOCOL)) if is_whole else value)
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: list[Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, number: Any) -> Any:
        return self._parts[number]


class _Batch(NamedTuple):
    frame: bytes
    parts: list[Any]


def _kept(part: Any) -> Any:
    """Returns what is kept of a part."""
    return part if isinstance(part, _Whole) else _copied(part)


def _copied(part: Any) -> Any:
    """Returns a copy, in pinned memory if the part is pinned."""
    if isinstance(part, _Whole):
        return pickle.loads(part.data)
    if not _is_tensor(part):
        return part.copy(order="K")
    copy = part.detach().clone()
    return copy.pin_memory() if part.device.type == "cpu" and part.is_pinned() else copy


def _alias(part: Any) -> Any:
    """Returns another object with the same memory, and for a tensor the same count of versions, so that the loop may
    change the object: its gradient, its shape. A tensor that is not plain is a new one."""
    if isinstance(part, _Whole):
        return _copied(part)
    return part.detach() if _is_tensor(part) else part.view()


def _checksum(array: Any) -> int:
    numpy = sys.modules["numpy"]
    return zlib.crc32(numpy.ravel(array, order="K").view(numpy.uint8))


def _mark(part: Any) -> int:
    """Returns a number that changes when the part is written. (Writes through tensor.data or tensor.numpy() do not
    count: the tensor does not know of them.)"""
    if isinstance(part, _Whole):  # no loop has it
        return 0
    if not _is_tensor(part):
        return _checksum(part)
    # A tensor of torch.inference_mode() counts no versions.
    return 0 if part.is_inference() else int(part._version)


def _marks(parts: list[Any]) -> list[int]:
    return [_mark(part) for part in parts]


def _bytes_of(parts: list[Any], kind: str) -> int:
    """Returns the bytes of the parts that are on a device of this kind."""
    return sum(int(part.nbytes) for part in parts if (part.device.type if _is_tensor(part) else "cpu") == kind)


class Kept:
    """The batches of one loop."""

    def __init__(self) -> None:
        self.is_written = False  # the loop writes into its batches
        self.problem = ""  # why no batch can be kept
        self._batches: list[_Batch] = []
        self._has_others = False  # than plain tensors
        self._seen: tuple[list[Any], list[int]] = ([], [])  # parts that the loop has, and their marks before
        self._seen_batch: _Batch | None = None  # the kept batch that they are of
        self._given_count = 0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def is_dear(self) -> bool:
        """True if giving a batch takes as long as copying or reading it."""
        return self.is_written or self._has_others

    def keep(self, batch: Any) -> None:
        """Keeps a copy of a batch that the loop is about to get, unless memory is short."""
        if self.problem:
            return
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump(batch)
            if len(self._batches) < MOST and self._has_room(pickler.parts):
                self._batches.append(_Batch(file.getvalue(), [_kept(part) for part in pickler.parts]))
            self._seen = pickler.parts, _marks(pickler.parts)
            self._has_others = self._has_others or not all(map(_is_tensor, pickler.parts))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            self._batches = []

    def _has_room(self, parts: list[Any]) -> bool:
        if not self._batches:
            return True
        kept = [part for batch in self._batches for part in batch.parts]
        # The other ranks of this machine keep as much of the same memory; each has a GPU of its own.
        room = {"cpu": _core.machine()["spare_bytes"] // count_local_trainers() + _bytes_of(kept, "cpu")}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            room["cuda"] = torch.cuda.mem_get_info()[0] + _bytes_of(kept, "cuda")
        return all(_bytes_of([*kept, *parts], kind) <= free // _PART for kind, free in room.items())

    def check(self) -> None:
        """Called when the loop has used a batch: notes whether it has written into that."""
        (parts, before), batch = self._seen, self._seen_batch
        self._seen, self._seen_batch = ([], []), None
        if _marks(parts) == before:
            return
        self.is_written = True
        if batch is not None and len(self._batches) > 1:
            self._batches = [one for one in self._batches if one is not batch]

    def give(self) -> Any:
        """Returns the next batch."""
        batch = self._batches[self._given_count % len(self._batches)]
        self._given_count += 1
        if self.is_written:
            parts = [_copied(part) for part in batch.parts]
        else:
            parts = [_alias(part) for part in batch.parts]
            self._seen, self._seen_batch = (batch.parts, _marks(batch.parts)), batch
        return _Unpickler(io.BytesIO(batch.frame), parts).load()
