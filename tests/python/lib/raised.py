# SPDX-License-Identifier: Apache-2.0
"""Datasets and samplers whose own code raises, at a known depth, with a cause."""

from __future__ import annotations

from typing import Any, NoReturn

import torch.utils.data

TEXT = "sample 3 is broken"


def decode(index: int) -> NoReturn:
    try:
        raise KeyError(index)
    except KeyError as error:
        raise ValueError(TEXT) from error


class Maps(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return decode(index) if index == 3 else index


class Streams(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from (decode(index) if index == 3 else index for index in range(8))


class Closed(torch.utils.data.IterableDataset[int]):
    """Raises when its iterator is made."""

    def __iter__(self) -> Any:
        decode(0)


def collate(samples: list[int]) -> list[int]:
    return decode(3) if 3 in samples else samples


def starts(worker: int) -> None:
    decode(worker)


class Sampler:
    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        yield 0
        decode(3)
