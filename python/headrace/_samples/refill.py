# SPDX-License-Identifier: Apache-2.0
"""Chooses the samples that can take the place of bad ones.

A replacement is always a sample that the loader's own sampler gave in this epoch, so that no sample of another split or
of another rank arrives. The trainer, which draws the samples, sends a few of them with each task. They depend on the
seed, the epoch and the order of the samples only, so they are the same with any number of workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace import _core
from headrace._base import signals
from headrace._options import Settings
from headrace._samples.names import samples_of
from headrace._samples.random_numbers import key_of

TRIES = 10  # how many other samples are tried in the place of a bad one
_LOOKED_AHEAD = 100  # how many later samples are tried, if there are fewer than TRIES earlier ones
_KEPT = 64  # how many earlier samples the trainer remembers
_KEPT_PER_BATCH = 16


class Refillable(NamedTuple):
    """A task with what only the trainer knows: the samples that can take the place of a bad one, and how often its
    indices were drawn before.

    position: the place of its first sample in the epoch. earlier: samples that were given before it, in random order.
    later: the next samples in the order of the sampler, if there are fewer than TRIES earlier ones; the first good one
    is taken. draws: for each sample; empty if all are drawn for the first time in this epoch.
    """

    indices: Any
    position: int
    earlier: list[Any]
    later: list[Any]
    draws: Sequence[int] = ()


def indices_of(task: Any) -> Any:
    """Returns the indices of a task, without the replacements."""
    return task.indices if type(task) is Refillable else task


def draws_of(task: Any) -> Sequence[int]:
    """Returns how often each index of a task was drawn before in its epoch; empty: all for the first time."""
    return task.draws if type(task) is Refillable else ()


def wrap_of(
    settings: Settings,
    tasks: _core.Tasks,
    is_batched: bool,
    seed: int,
    epoch: int,
    count_draws: Callable[[Any], Sequence[int]] | None,
) -> Callable[[Any], Any] | None:
    """Returns a function that adds to the indices of a task what the settings need, or None if it needs nothing.
    count_draws: returns how often each index of the next task was drawn before; None for an iterable dataset."""
    if count_draws is None:  # its worker finds replacements itself, and takes the batch size from the indices
        return None
    refills = Refills(tasks, is_batched, seed, epoch) if settings.on_bad_sample != "raise" else None
    if not settings.is_keyed:
        return None if refills is None else refills.wrap

    def wrap(indices: Any) -> Any:
        draws = count_draws(indices)
        draws = draws if any(draws) else ()
        if refills is not None:
            return refills.wrap(indices)._replace(draws=draws)
        return Refillable(indices, 0, [], [], draws) if draws else indices

    return wrap


class Refills:
    """Adds replacements to the tasks of one epoch, in the order of the tasks. It runs in the trainer."""

    def __init__(self, tasks: _core.Tasks, is_batched: bool, seed: int, epoch: int) -> None:
        self._tasks = tasks
        self._is_batched = is_batched
        self._seed = seed
        self._epoch = epoch
        self._kept: list[Any] = []
        # The task that was wrapped last: its number, its position, the samples remembered before it, and its own. All
        # four are set in one step, so that they fit together if the handler of a signal raises an exception.
        self._state: tuple[int, int, list[Any], list[Any]] = (-1, 0, [], [])

    def wrap(self, indices: Any) -> Refillable:
        """Returns the task of these indices. May be called again for the same task."""
        number, position, kept, last = self._state
        if number != self._tasks.handed_count:
            kept = self._with_some_of(last, kept, position)
            number, position, last = self._tasks.handed_count, position + len(last), self._samples(indices)
            self._state = (number, position, kept, last)
        earlier = self._random(position).sample(kept, min(TRIES, len(kept)))
        return Refillable(indices, position, earlier, self._later(_LOOKED_AHEAD) if len(earlier) < TRIES else [])

    def _samples(self, indices: Any) -> list[Any]:
        return samples_of(indices, self._is_batched)

    def _random(self, position: int) -> random.Random:
        return random.Random(key_of(self._seed, self._epoch, "refill", position))

    def _with_some_of(self, last: list[Any], kept: list[Any], position: int) -> list[Any]:
        numbers = self._random(position)
        kept = kept[:]
        for sample in numbers.sample(last, min(_KEPT_PER_BATCH, len(last))):
            if len(kept) < _KEPT:
                kept.append(sample)
            else:
                kept[numbers.randrange(_KEPT)] = sample
        return kept

    def _later(self, count: int) -> list[Any]:
        samples: list[Any] = []
        tasks = 0
        while len(samples) < count:
            tasks += 1
            ahead = self._look(tasks)
            if len(ahead) < tasks:
                break
            samples += self._samples(ahead[-1])
        return samples[:count]

    def _look(self, count: int) -> list[Any]:
        """Returns the next tasks, as many as there are. What the sampler raises comes when it is its turn."""
        try:
            return self._tasks.look(count)
        except Exception as error:
            if signals.is_from_signal(error):
                raise
            trace = error.__traceback__  # without this frame, which would hold the error in a cycle
            self._tasks.keep_error(error.with_traceback(trace.tb_next if trace is not None else None))
        return self._tasks.look(count)
