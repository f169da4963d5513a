# SPDX-License-Identifier: Apache-2.0
"""Iterable datasets that are instances of torch's IterableDataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


def _of_stream(name: str) -> Any:
    return property(lambda self: getattr(self.stream, name))


class ForTorch(IterableDataset[Any]):
    """One of mishaps.py or scenes.py, with all that it has. headrace looks in the class for how it is continued:
    __getattr__ does not count."""

    state_dict = _of_stream("state_dict")
    load_state_dict = _of_stream("load_state_dict")
    replayable = _of_stream("replayable")

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.stream, name)
