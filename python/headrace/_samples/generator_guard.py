# SPDX-License-Identifier: Apache-2.0
"""Finds out whether samples that threads make use the random number generators of the process.

All threads share these (random, numpy.random, torch), so the numbers of a sample would depend on the time that each
sample takes. sample_generators.py has generators that belong to a sample.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import sys
from types import FrameType
from typing import Any

from headrace._base.help_key import help_on
from headrace._base.lookup import imported
from headrace._base.warn import warn_user


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
_WATCHED = 4  # samples of an epoch; a trace takes 1 us for each line of Python
_SETTERS = {"seed", "setstate", "manual_seed", "set_state", "set_offset"}  # of random.Random and torch.Generator


def _marks() -> _Marks:
    return {name: mark() for name, mark in _MARKS.items() if imported(name) is not None}


class _FirstBatch:
    """Keeps what was seen of the samples of the first batch of an epoch."""

    def __init__(self) -> None:
        self.marks: list[_Marks] = []  # after each sample
        self.begun = itertools.count()
        self.used: list[str] = []  # a generator that was used within a watched sample, at most once for each of them


class _Look:
    """Notes the states of the generators after the block of a `with`."""

    def __init__(self, first: _FirstBatch) -> None:
        self._first = first

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self._first.marks.append(_marks())


class _Watch(_Look):
    """Sees in the block of a `with` that this thread uses a generator of the process, also if it restores the state.

    A call of a C function that sets the state of `random` or torch is seen by itself. Functions of numpy.random are not
    shown to profilers, so the state of that generator is compared at each line of Python. The first is left out while
    the user's own profiler watches this thread, the second while a debugger or `coverage` does.
    """

    def __init__(self, guard: Guard, first: _FirstBatch, before: _Marks) -> None:
        super().__init__(first)
        self._guard = guard
        self._before = before
        self._used: set[str] = set()
        self._generators = [(random._inst, "random")]
        if (torch := imported("torch")) is not None:
            self._generators.append((torch.default_generator, "torch"))

    def __enter__(self) -> None:
        self._profiles, self._traces = sys.getprofile() is None, sys.gettrace() is None and "numpy" in self._before
        if self._profiles:
            sys.setprofile(self._see_call)
        if self._traces:
            sys.settrace(self._see_line)

    def __exit__(self, *exception: object) -> None:
        if self._traces and sys.gettrace() == self._see_line:  # the sample may have set another one
            sys.settrace(None)
        if self._profiles and sys.getprofile() == self._see_call:
            sys.setprofile(None)
        self._first.used += self._used
        super().__exit__(*exception)

    def _see_call(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in _SETTERS:
            self._used.update(name for generator, name in self._generators if function.__self__ is generator)

    def _see_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._guard.is_first(self._first) and _numpy_mark() != self._before["numpy"]:
            self._used.add("numpy")
        return self._see_line


class Guard:
    """Finds out whether samples that threads make use the generators of the process.

    After each batch it compares their states. In the first batch of an epoch it does so after each sample, and within
    the first few samples it also sees that the state is set, so that a sample is found which restores it. It sees only
    what Python code calls: not a C function that sets and restores a state by itself, and not what is within one line
    that sets and restores the state of numpy.random.

    Python's `random` is also drawn from by clients of servers, for the time that they wait before another try. So it is
    an error only if most samples of that batch have used it, and otherwise a warning, once.
    """

    def __init__(self) -> None:
        self._before: _Marks = {}
        self._first: _FirstBatch | None = _FirstBatch()  # None: that batch is over
        self._has_warned = False

    def begin_epoch(self) -> None:
        self._first = _FirstBatch()

    def begin(self) -> None:
        """Called before samples are made, and after code that may draw, such as a collate function."""
        if self._first is not None:
            self._first.marks.clear()  # of a batch that has raised
        self._before = _marks()

    def watch(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which a thread makes a sample."""
        if (first := self._first) is None:
            return contextlib.nullcontext()
        return _Watch(self, first, self._before) if next(first.begun) < _WATCHED else _Look(first)

    def is_first(self, batch: _FirstBatch) -> bool:
        """Returns True as long as this first batch is not over."""
        return self._first is batch

    def check(self, count: int) -> None:
        """Raises RuntimeError if samples of a batch of so many have used one of the generators since `begin`."""
        first, self._first = self._first, None
        looked = [*(first.marks if first else ()), _marks()]
        used = [] if first is None else first.used
        found = [name for name in _MARKS if name in used or any(self._has_moved(name, marks) for marks in looked)]
        if found == ["random"] and not (first and self._are_most(first, count)):
            self._warn()
        elif found:
            self._before = _marks()
            raise RuntimeError(_describe(found) + help_on("sample-threads"))

    def _has_moved(self, name: str, marks: _Marks) -> bool:
        return name in self._before and name in marks and marks[name] != self._before[name]

    def _are_most(self, first: _FirstBatch, count: int) -> bool:
        """Returns True if most watched samples have set `random`, or most samples of the first batch have left it in a
        state of their own."""
        states = {marks["random"] for marks in first.marks} - {self._before["random"]}
        return 2 * len(states) >= count or 2 * first.used.count("random") >= min(count, _WATCHED)

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                _describe(["random"]) + ". If it was a library that waited before it asked a server again, nothing has "
                "to be done" + help_on("sample-threads")
            )


def _describe(names: list[str]) -> str:
    calls = ", ".join(f'headrace.sample_generator("{name}")' for name in names)
    return (
        f"headrace: while threads made samples, random numbers were drawn from the generator of {names[0]} that all "
        "threads of the process share, so which sample has which numbers depends on the time that each takes. Take the "
        f"numbers of a sample from {calls} in the dataset; or draw them in collate_fn; or leave out sample_threads. If "
        "another thread of this program draws them, give the loader a worker (num_workers=1)"
    )
