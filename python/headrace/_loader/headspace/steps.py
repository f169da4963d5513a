# SPDX-License-Identifier: Apache-2.0
"""The iterator that a loop gets while its loader may be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace._loader.headspace.measure import Measure


class Measuring(Protocol):
    """Knows which loader is measured: the session."""

    @property
    def has_other_ranks(self) -> bool: ...

    def measures(self, measure: Measure) -> bool: ...


class Steps:
    """Iterates over an epoch of a loader, and in between over kept batches. Each epoch has as many steps as without a
    measurement, because learning rates, progress bars and other ranks count on it.

    make: begins the epoch. An epoch that begins while batches are repeated is begun when its first batch is needed.
    """

    def __init__(
        self, session: Measuring, measure: Measure, loader: Any, make: Callable[[], Iterator[Any]], is_iterable: bool
    ) -> None:
        self.is_counted = False
        self._session, self._measure = session, measure
        self._loader, self._make, self._is_iterable = loader, make, is_iterable
        self._iterator: Any = None
        self._length: int | None = None
        self._step_count = self._free_count = 0
        if not (session.measures(measure) and measure.is_free):
            self._begin()

    def _begin(self) -> Any:
        if self._iterator is None:
            self._iterator = self._make()
        return self._iterator

    def __iter__(self) -> Steps:
        return self

    def __len__(self) -> int:
        return len(self._begin())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._begin(), name)

    def __next__(self) -> Any:
        if not self._session.measures(self._measure):
            return next(self._begin())
        self._measure.arrive(self)
        batch = self._next_batch()
        self._step_count += 1
        self.is_counted = self._step_count > 1
        return batch

    def _next_batch(self) -> Any:
        if self._measure.is_free:
            if self._free_count == 0:
                self._length = self._count()
            self._check_length()
            self._free_count += 1
            return self._measure.give()
        self._check_length()
        batch = next(self._begin())
        self._measure.take(batch)
        return batch

    def _count(self) -> int | None:
        """Returns how many steps this epoch has, or None if that is not known."""
        if self._is_iterable:
            return None
        if self._iterator is not None and hasattr(self._loader, "steps_left"):  # torch's own loaders do not have it
            left = self._loader.steps_left
            return None if left is None else self._step_count + left
        try:
            return len(self._loader)
        except TypeError:  # a sampler without a length
            return None

    def _check_length(self) -> None:
        """Ends an epoch in which batches were repeated: its own iterator has more."""
        if self._length is not None and self._step_count >= self._length:
            raise StopIteration

    def drop(self, count: int) -> None:
        """Takes batches that the loop does not get: at most as many as it got again, so that the epoch keeps its
        length. If that is not known, ranks might not end together, so one that has others keeps them."""
        if self._iterator is None or (self._length is None and self._session.has_other_ranks):
            return
        for _ in range(min(count, self._free_count)):
            next(self._iterator)
