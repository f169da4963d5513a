# SPDX-License-Identifier: Apache-2.0
"""Datasets whose transform has random steps of many kinds, for the tests of cached samples."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

_shared = np.random.default_rng(8)  # a generator that code names


class Scale:
    """A step that is not random."""

    def __call__(self, x: Any) -> Any:
        return x * 1.5


class GlobalNoise:
    """Draws from one of the generators that all code shares."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, x: Any) -> Any:
        draws = {"python": random.random, "numpy": np.random.rand, "torch": lambda: float(torch.rand(()))}
        return x + draws[self.kind]()


def own_generator(kind: str, seed: int = 3) -> Any:
    made: dict[str, Any] = {
        "python": lambda: random.Random(seed),
        "generator": lambda: np.random.default_rng(seed),
        "state": lambda: np.random.RandomState(seed),
        "torch": lambda: torch.Generator().manual_seed(seed),
    }
    return made[kind]()


def draw(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    return float(generator.random() if hasattr(generator, "random") else generator.rand())


class OwnNoise:
    """Draws from a generator of its own, as the random steps of MONAI do; sometimes."""

    def __init__(self, kind: str, share: float = 1.0) -> None:
        self.generator = own_generator(kind)
        self.share = share

    def __call__(self, x: Any) -> Any:
        return x + draw(self.generator) if draw(self.generator) < self.share else x


class SharedNoise:
    """Draws from a generator that is a global variable."""

    def __call__(self, x: Any) -> Any:
        return x + float(_shared.random())


class Pictures:
    """A dataset with a transform, and with code after it. kept: a memory of its own."""

    def __init__(self, transform: Any, after: str = "", count: int = 6) -> None:
        self.transform, self.after, self.count = transform, after, count
        self.kept: dict[int, Any] = {}
        self.generator = own_generator("generator", 9)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        x = torch.arange(64.0).reshape(1, 8, 8) + index
        if self.after == "twice":
            return self.transform(x), self.transform(x + 1)
        if self.after == "kept":
            if index not in self.kept:
                self.kept[index] = self.transform(x)
            return self.kept[index], index
        if self.after == "draws before":
            x = x + float(self.generator.random() < 0.2)
        return AFTER.get(self.after, _label)(self.transform(x), index, self)


def _label(x: Any, index: int, _: Any) -> Any:
    return x, index


def _draw(x: Any, index: int, dataset: Any) -> Any:
    return x, index + float(dataset.generator.random() < 0.2)


AFTER: dict[str, Any] = {
    "": _label,
    "dict": lambda x, index, _: {"x": x, "n": [index]},
    "draws after": _draw,
}
