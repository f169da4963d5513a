# SPDX-License-Identifier: Apache-2.0
"""Iterable data sets as torch wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class ForTorch(IterableDataset[Any]):
    """One of mishaps.py or scenes.py, with all that it has."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.stream, name)
