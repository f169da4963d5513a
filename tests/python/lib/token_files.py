# SPDX-License-Identifier: Apache-2.0
"""Writes token files as nanoGPT, llm.c and Megatron do, and reads Megatron's as its IndexedDataset does."""

from __future__ import annotations

import pathlib
import struct
from typing import Any

import numpy as np

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_headless(path: pathlib.Path, tokens: Any, dtype: str = "uint16") -> str:
    np.asarray(tokens).astype(dtype).tofile(path)
    return str(path)


def write_llmc(path: pathlib.Path, tokens: Any, dtype: str = "uint16") -> str:
    head = np.zeros(256, np.int32)
    head[:3] = (20240520, 1, len(tokens)) if dtype == "uint16" else (20240801, 7, len(tokens))
    path.write_bytes(head.tobytes() + np.asarray(tokens).astype(dtype).tobytes())
    return str(path)


def write_megatron(prefix: pathlib.Path, documents: list[list[Any]], dtype: str = "uint16", modes: bool = False) -> str:
    """documents: for each its sequences. Returns the path without a suffix, as Megatron takes it."""
    sequences = [np.asarray(sequence).astype(dtype) for document in documents for sequence in document]
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    pointers = np.cumsum([0, *(sequence.nbytes for sequence in sequences)])[:-1].astype(np.int64)
    bounds = np.cumsum([0, *(len(document) for document in documents)]).astype(np.int64)
    with open(f"{prefix}.bin", "wb") as data:
        for sequence in sequences:
            data.write(sequence.tobytes())
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", MEGATRON_CODES[dtype]))
        index.write(struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(bounds)))
        for part in (sizes, pointers, bounds):
            index.write(part.tobytes())
        if modes:
            index.write(np.zeros(len(sequences), np.int8).tobytes())
    return str(prefix)


class IndexedDataset:
    """Megatron's reader, by its layout: maps of both files, and arrays within the index that are not aligned."""

    def __init__(self, prefix: str) -> None:
        index = pathlib.Path(f"{prefix}.idx").read_bytes()
        assert index[:9] == b"MMIDIDX\x00\x00" and struct.unpack("<Q", index[9:17]) == (1,)
        names = {code: name for name, code in MEGATRON_CODES.items()}
        self.dtype = np.dtype(names[index[17]])
        count, bounds = struct.unpack("<QQ", index[18:34])
        self.sizes = np.frombuffer(index, np.int32, count, 34)
        self.pointers = np.frombuffer(index, np.int64, count, 34 + self.sizes.nbytes)
        self.bounds = np.frombuffer(index, np.int64, bounds, 34 + self.sizes.nbytes + self.pointers.nbytes)
        self.data = pathlib.Path(f"{prefix}.bin").read_bytes()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> Any:
        return np.frombuffer(self.data, self.dtype, self.sizes[number], self.pointers[number])

    def documents(self) -> list[Any]:
        pairs = zip(self.bounds[:-1], self.bounds[1:], strict=True)
        parts = [[self[number] for number in range(first, end)] for first, end in pairs]
        return [np.concatenate([np.zeros(0, self.dtype), *part]) for part in parts]
