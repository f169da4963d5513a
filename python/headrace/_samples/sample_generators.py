# SPDX-License-Identifier: Apache-2.0
"""headrace.sample_generator: random numbers of the sample that is being made.

The generators of the process (random, numpy.random, torch) are shared by all threads, so samples that several threads
make at a time cannot draw from them: Guard finds out whether one has.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from headrace._base.help_key import help_on
from headrace._base.lookup import imported
from headrace._base.warn import warn_user
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


# ---- samples that draw from the generators of the process ----


def _random_mark() -> Any:
    """Returns a part of the state that each draw changes: the place in the words of the Mersenne Twister, and two
    words, which change when all were used, or with a seed (which always sets the first one to the same value)."""
    _, words, gauss = random.getstate()
    return words[-1], words[1], words[2], gauss


def _numpy_mark() -> Any:
    """Returns the state as it is in memory: get_state() takes 50 us."""
    bits = sys.modules["numpy"].random.mtrand._rand._bit_generator
    if type(bits).__name__ != "MT19937":  # the user has set another one
        return repr(bits.state)
    return ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)


def _torch_mark() -> Any:
    state = sys.modules["torch"].default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


_MT19937_BYTES = 624 * 4 + 4  # numpy's struct of it: the words, and the place in them
_MARKS = {"random": _random_mark, "numpy": _numpy_mark, "torch": _torch_mark}
_Marks = dict[str, Any]


def _marks() -> _Marks:
    return {name: mark() for name, mark in _MARKS.items() if imported(name) is not None}


class Guard:
    """Finds out whether samples that threads make draw from the generators of the process.

    In the first batch of an epoch each thread looks after each sample, so a sample that sets a state and restores it is
    found in most epochs. It is not found if the samples restore in the reverse order of setting, so that each look
    finds the state before: then they may have wrong numbers, and nothing says so.

    Python's `random` is also drawn from by clients of servers, for the time that they wait before another try. So it is
    an error only if most samples of that batch have drawn, and otherwise a warning, once.
    """

    def __init__(self) -> None:
        self._before: _Marks = {}
        self._seen: list[_Marks] | None = []  # after each sample of the first batch; None: that is over
        self._has_warned = False

    def begin_epoch(self) -> None:
        self._seen = []

    def begin(self) -> None:
        """Called before samples are made, and after code that may draw, such as a collate function."""
        self._before = _marks()

    def look(self) -> None:
        """Called by a thread after a sample."""
        if (seen := self._seen) is not None:
            seen.append(_marks())

    def check(self, count: int) -> None:
        """Raises RuntimeError if samples of a batch of so many have used one of the generators since `begin`."""
        seen, self._seen = self._seen, None
        found = [*(seen or ()), _marks()]
        moved = [name for name in _MARKS if any(self._has_moved(name, marks) for marks in found)]
        if moved == ["random"] and not (seen and self._are_most(seen, count)):
            self._warn()
        elif moved:
            self._before = _marks()
            raise RuntimeError(_describe(moved) + help_on("sample-threads"))

    def _has_moved(self, name: str, marks: _Marks) -> bool:
        return name in self._before and name in marks and marks[name] != self._before[name]

    def _are_most(self, seen: list[_Marks], count: int) -> bool:
        """Returns True if most samples of the first batch have left `random` in a state of their own."""
        states = {marks["random"] for marks in seen} - {self._before["random"]}
        return 2 * len(states) >= count

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                _describe(["random"]) + ". If it was a library that waited before it asked a server again, nothing has "
                "to be done" + help_on("sample-threads")
            )


def _describe(moved: list[str]) -> str:
    calls = ", ".join(f'headrace.sample_generator("{name}")' for name in moved)
    return (
        f"headrace: while threads made samples, random numbers were drawn from the generator of {moved[0]} that all "
        "threads of the process share, so which sample has which numbers depends on the time that each takes. Take the "
        f"numbers of a sample from {calls} in the dataset; or draw them in collate_fn; or leave out sample_threads"
    )
