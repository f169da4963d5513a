# SPDX-License-Identifier: Apache-2.0
"""headrace.sample_generator: random numbers of the sample that is being made.

The generators of the process (random, numpy.random, torch) are shared by all threads, so samples that several threads
make at a time cannot draw from them: see generator_guard.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from headrace._samples.random_numbers import sample_key

_WORD = 0xFFFFFFFF


def _library(name: str) -> Any:
    found = sys.modules.get(name)
    if found is None:
        raise ImportError(f"headrace: import {name} before sample_generator({name!r}) is called", name=name)
    return found


def _of_numpy(key: int) -> Any:
    return _library("numpy").random.default_rng([key & _WORD, key >> 32])


def _of_torch(key: int) -> Any:
    return _library("torch").Generator().manual_seed(key)


_MAKERS: dict[str, Callable[[int], Any]] = {"random": random.Random, "numpy": _of_numpy, "torch": _of_torch}
# 64 bits from the generator of the process, where no sample is being made.
_DRAWS: dict[str, Callable[[], int]] = {
    "random": lambda: random.getrandbits(64),
    "numpy": lambda: int.from_bytes(_library("numpy").random.bytes(8), "little"),
    "torch": lambda: int(_library("torch").randint(-(2**63), 2**63 - 1, ()).item()) & (2**64 - 1),
}


class SampleInWork:
    """A sample that is being made in the block of a `with`: sample_generator returns its generators, each of which is
    made when it is asked for. draw: how often the index was drawn before in the epoch."""

    __slots__ = ("_made", "_token", "_what")

    def __init__(self, seed: int, epoch: int, index: object, draw: int = 0) -> None:
        self._what = seed, epoch, index, draw
        self._made: dict[str, Any] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *exception: object) -> None:
        _current.reset(self._token)

    def generator(self, library: str) -> Any:
        if self._made is None:
            self._made = {}
        if library not in self._made:
            self._made[library] = _MAKERS[library](sample_key(*self._what))
        return self._made[library]


_current: ContextVar[SampleInWork | None] = ContextVar("headrace_sample", default=None)


def sample_generator(library: str = "numpy") -> Any:
    """Returns the random number generator of the sample that is being made: a numpy.random.Generator for "numpy", a
    torch.Generator for "torch", a random.Random for "random". Call it in the dataset, for each sample.

    In a loader with rng="sample" or sample_threads it is seeded by the loader's seed, the epoch, the index, and how
    often the index was drawn before, so that a sample has the same numbers whichever thread or worker makes it. Calls
    for the same sample return the same generator. Elsewhere, such as in a loader without these options, each call
    returns a new one, which is seeded with a number that the process's generator of that library draws.

    Raises ValueError for another name, and ImportError if the library was not imported.
    """
    if library not in _MAKERS:
        raise ValueError(f'headrace: sample_generator takes "numpy", "torch" or "random", but got {library!r}')
    sample = _current.get()
    return _MAKERS[library](_DRAWS[library]()) if sample is None else sample.generator(library)
