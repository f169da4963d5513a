# SPDX-License-Identifier: Apache-2.0
"""Reads torch's random samplers as lists of indices, with torch's random numbers.

An exception of a signal's handler that is raised inside a generator ends it, and with it the epoch. So these samplers
are not iterated: the lists are made when torch's generator would make them, and the indices and the random numbers are
the same. If the making of a list is interrupted, the random numbers that it took are put back, and it is made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from headrace.torch._own import loaders
from headrace.torch._own.classes import RandomSampler
from headrace.torch._samplers import generators

_DRAWN = 32  # numbers that RandomSampler draws at a time with replacement


class Lists:
    """Lists of a sampler's indices, without the first `skipped` indices, to be iterated once.

    size: of the sampler's data; None: as it is when a list is made. seeds: what an earlier epoch has drawn; None: it is
    drawn. `drawn` is what this one has drawn: `seed` of a RandomSampler without a generator; otherwise the state before
    the first list of the sampler's `generator`, or of torch's own (`torch`).
    """

    def __init__(self, sampler: Any, size: int | None, skipped: int = 0, seeds: dict[str, Any] | None = None) -> None:
        self.drawn: dict[str, Any] = {}
        self._sampler = sampler
        self._size = size
        self._skipped = skipped
        self.skipped: list[Any] = []  # the indices that were left out until now
        self._seeds = seeds or {}
        self._done = 0  # lists that were made
        self._given = 0  # lists without those that were skipped
        self._last: list[Any] = []
        self._seeded: torch.Generator | None = None  # of a RandomSampler without a generator of the user's

    def expected(self) -> dict[str, Any]:
        """Returns what will be drawn for the first list, if nothing else draws before. Draws nothing."""
        if self._done or self._seeds:
            return dict(self._seeds)
        own = getattr(self._sampler, "generator", None)
        state = (own or torch.default_generator).get_state()
        if own is not None or type(self._sampler) is not RandomSampler:
            return {"torch" if own is None else "generator": state}
        copy = torch.Generator()
        copy.set_state(state)
        return {"seed": _draw_seed(copy)}

    def state_at_end(self) -> torch.Tensor:
        """Returns the state that the sampler's own generator has when the lists that are left were made. Draws nothing:
        RandomSampler makes one more list after the last index, as torch does."""
        own = self._sampler.generator
        copy = torch.Generator(own.device)
        copy.set_state(own.get_state())
        if type(self._sampler) is RandomSampler:
            number = self._done
            with contextlib.suppress(StopIteration):
                while True:
                    self._make_random(self._sampler, number, copy)
                    number += 1
        final: torch.Tensor = copy.get_state()
        return final

    def __getitem__(self, number: int) -> list[Any]:
        """Returns the list with this number, which is the next one, or the last one again: Python's iterator over a
        sequence asks again for a list if an exception came between."""
        if number < self._given:
            return self._last
        generator = getattr(self._sampler, "generator", None) or self._seeded or torch.default_generator
        before, place = generator.get_state(), (self._done, self._skipped, self._seeded, self._given)
        count_skipped = len(self.skipped)
        try:
            self._last = self._next_list(generator)
            self._given = number + 1
        except StopIteration:
            raise IndexError from None  # the end of a sequence
        except BaseException as error:
            generator.set_state(before)
            self._done, self._skipped, self._seeded, self._given = place
            del self.skipped[count_skipped:]
            if isinstance(error, IndexError):
                raise RuntimeError(f"{type(self._sampler).__name__} raised IndexError: {error}") from error
            raise
        return self._last

    def _next_list(self, generator: torch.Generator) -> list[Any]:
        while True:
            made = self._make_seeded(generator, self._done)
            self._done += 1
            count = min(len(made), self._skipped)
            self._skipped -= count
            self.skipped += made[:count]
            if count < len(made) or not count:
                return made[count:] if count else made

    def _make_seeded(self, generator: torch.Generator, number: int) -> list[Any]:
        """Makes a list. Before the first one, the generator is put into the state of the epoch that is repeated."""
        is_own = getattr(self._sampler, "generator", None) is not None
        name = "generator" if is_own else "torch"
        if number or (type(self._sampler) is RandomSampler and not is_own):
            return self._make(number)
        if name not in self._seeds:
            self.drawn[name] = generator.get_state()
            return self._make(number)
        with contextlib.nullcontext() if is_own else _restored(generator):
            generators.set_state(generator, self._seeds[name])
            self.drawn[name] = generator.get_state()
            return self._make(number)

    def _make(self, number: int) -> list[Any]:
        if type(self._sampler) is RandomSampler:
            return self._make_random(self._sampler, number, self._generator_of(self._sampler))
        if number:
            raise StopIteration
        return list(self._sampler)

    def _make_random(self, sampler: Any, number: int, generator: torch.Generator) -> list[int]:
        """Does what RandomSampler.__iter__ does between two lists."""
        size = len(sampler.data_source) if self._size is None else self._size
        wanted = size if loaders.given_count(sampler) is None else sampler.num_samples
        whole, rest = divmod(wanted, _DRAWN if sampler.replacement else size)
        if number > whole:
            raise StopIteration
        if sampler.replacement:
            shape = (_DRAWN if number < whole else rest,)
            return torch.randint(high=size, size=shape, dtype=torch.int64, generator=generator).tolist()
        indices: list[int] = torch.randperm(size, generator=generator).tolist()
        return indices if number < whole else indices[:rest]

    def _generator_of(self, sampler: Any) -> Any:
        if sampler.generator is not None:
            return sampler.generator
        if self._seeded is None:
            seed = self._seeds.get("seed")
            if seed is None:
                seed = _draw_seed(torch.default_generator)
            generator = torch.Generator()
            generator.manual_seed(seed)
            self._seeded, self.drawn["seed"] = generator, seed
        return self._seeded


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@contextlib.contextmanager
def _restored(generator: torch.Generator) -> Iterator[None]:
    before = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(before)
