# SPDX-License-Identifier: Apache-2.0
"""Reads torch's random samplers as lists of indices, with torch's random numbers.

An exception of a signal's handler that is raised inside a generator ends it, and with it the epoch. So these samplers
are not iterated: the lists are made when torch's generator would make them, and the indices and the random numbers are
the same. If the making of a list is interrupted, the random numbers that it took are put back, and it is made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from headrace._base import signals
from headrace.torch._own import loaders
from headrace.torch._own.classes import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from headrace.torch._samplers import generators

_iterate_weighted = WeightedRandomSampler.__iter__  # a program may replace it while an epoch runs
_DRAWN = 32  # numbers that RandomSampler draws at a time with replacement


class _Began(NamedTuple):
    """The values that a sampler has read when its generator began. generator: that of the sampler, or one that
    RandomSampler has made; None: torch's own. whole: the full lists of a RandomSampler, whose last one may be
    shorter."""

    n: int
    generator: torch.Generator | None
    replacement: bool = False
    whole: int = 0


class Lists:
    """Lists of what a sampler gives, without the first `skipped` indices.

    kind: the class that the sampler had when it was iterated. size: of the sampler's data; None: as it is when the
    first list is made. seeds: what an earlier epoch has drawn; None: it is drawn. `drawn` is what this one has drawn:
    `seed` of a RandomSampler without a generator; otherwise the state before the first list of the sampler's
    `generator`, or of torch's own (`torch`).
    """

    def __init__(
        self, sampler: Any, kind: type, size: int | None, skipped: int = 0, seeds: dict[str, Any] | None = None
    ) -> None:
        self.drawn: dict[str, Any] = {}
        # The lists of a SubsetRandomSampler have places in its `indices`, which are looked up when they are drawn.
        self.picks = sampler if kind is SubsetRandomSampler else None
        self._sampler = sampler
        self._is_random = kind is RandomSampler
        self._size = size
        self._skipped = skipped
        self.skipped: list[Any] = []  # the indices that were left out until now
        self._seeds = seeds or {}
        self._done = 0  # lists that were made
        self._given = 0  # lists without those that were skipped
        self._last: list[Any] | None = []
        self._began: _Began | None = None
        self._rest: int | None = None  # entries of the last list of a RandomSampler

    def count(self) -> int | None:
        """Returns how many entries a RandomSampler that has begun gives; None: it has not, or it is another sampler.
        Torch reads `num_samples` again for the last list."""
        if self._began is None or not self._is_random:
            return None
        full = _DRAWN if self._began.replacement else self._began.n
        rest = self._wanted() % full if self._rest is None else self._rest
        return self._began.whole * full + rest

    @property
    def _own(self) -> torch.Generator | None:
        """The sampler's generator, if the user gave it one."""
        return getattr(self._sampler, "generator", None)

    def expected(self) -> dict[str, Any]:
        """Returns what will be drawn for the first list, if nothing else draws before. Draws nothing."""
        if self._done or self._seeds:
            return dict(self._seeds)
        state = (self._own or torch.default_generator).get_state()
        if self._own is not None or not self._is_random:
            return {"torch" if self._own is None else "generator": state}
        copy = torch.Generator()
        copy.set_state(state)
        return {"seed": _draw_seed(copy)}

    def state_at_end(self) -> torch.Tensor:
        """Returns the state that the sampler's own generator has when the lists that are left were made. Draws nothing:
        RandomSampler makes one more list after the last index, as torch does."""
        own = self._own
        assert own is not None
        copy = torch.Generator(own.device)
        copy.set_state(own.get_state())
        if self._is_random:
            began = self._begin_random(copy) if self._began is None else self._began._replace(generator=copy)
            for number in range(self._done, began.whole + 1):
                self._random_list(began, number)
        final: torch.Tensor = copy.get_state()
        return final

    def at(self, number: int) -> list[Any] | None:
        """Returns the list with this number, which is the next one, or the last one again, if an exception came
        between; None: there are no more. Raises what the sampler raises."""
        if number < self._given:
            return self._last
        generator = self._began.generator if self._began is not None else self._own
        generator = generator or torch.default_generator
        before, place = generator.get_state(), (self._done, self._skipped, self._began, self._given)
        count_skipped = len(self.skipped)
        try:
            self._last = self._next_list()
            self._given = number + 1
        except BaseException as error:
            if isinstance(error, Exception) and not signals.is_from_signal(error):
                raise  # torch's generator has ended then, after its draws
            generator.set_state(before)
            self._done, self._skipped, self._began, self._given = place
            del self.skipped[count_skipped:]
            raise
        return self._last

    def _next_list(self) -> list[Any] | None:
        while True:
            made = self._make(self._done)
            if made is None:
                return None
            self._done += 1
            count = min(len(made), self._skipped)
            self._skipped -= count
            self.skipped += made[:count] if self.picks is None else (self.picks.indices[at] for at in made[:count])
            if count < len(made) or not count:
                return made[count:] if count else made

    def _make(self, number: int) -> list[Any] | None:
        """Makes a list. Before the first one, the generator is put into the state of the epoch that is repeated."""
        if number:
            return self._later_list(number)
        own = self._own
        if self._is_random and own is None:
            return self._first_list()
        generator, name = (torch.default_generator, "torch") if own is None else (own, "generator")
        if name not in self._seeds:
            self.drawn[name] = generator.get_state()
            return self._first_list()
        with _restored(generator) if own is None else contextlib.nullcontext():
            generators.set_state(generator, self._seeds[name])
            self.drawn[name] = generator.get_state()
            return self._first_list()

    def _first_list(self) -> list[Any]:  # shortcut: lists-of-indices
        sampler = self._sampler
        if self._is_random:
            self._began = self._begin_random(sampler.generator)
            return self._random_list(self._began, 0)
        self._began = _Began(0, self._own)
        if self.picks is None:
            return list(_iterate_weighted(sampler))
        indices: list[Any] = torch.randperm(len(sampler.indices), generator=sampler.generator).tolist()
        return indices

    def _later_list(self, number: int) -> list[Any] | None:
        if not self._is_random or self._began is None or number > self._began.whole:
            return None
        return self._random_list(self._began, number)

    # ---- RandomSampler ----

    def _wanted(self) -> int:
        is_of_size = self._size is not None and loaders.given_count(self._sampler) is None
        return self._size if is_of_size else self._sampler.num_samples  # type: ignore[return-value]

    def _begin_random(self, generator: torch.Generator | None) -> _Began:
        """Reads what RandomSampler.__iter__ reads when it begins."""
        n = len(self._sampler.data_source) if self._size is None else self._size
        generator = self._new_generator() if generator is None else generator
        replacement = self._sampler.replacement
        return _Began(n, generator, replacement, self._wanted() // (_DRAWN if replacement else n))

    def _random_list(self, began: _Began, number: int) -> list[int]:
        """Does what RandomSampler.__iter__ does between two lists."""
        is_whole = number < began.whole
        if began.replacement:
            shape = (_DRAWN if is_whole else self._wanted() % _DRAWN,)
            drawn = torch.randint(high=began.n, size=shape, dtype=torch.int64, generator=began.generator).tolist()
        else:
            drawn = torch.randperm(began.n, generator=began.generator).tolist()
            drawn = drawn if is_whole else drawn[: self._wanted() % began.n]
        if not is_whole and began is self._began:
            self._rest = len(drawn)
        return drawn

    def _new_generator(self) -> torch.Generator:
        seed = self._seeds.get("seed")
        if seed is None:
            seed = _draw_seed(torch.default_generator)
        generator = torch.Generator()
        generator.manual_seed(seed)
        self.drawn["seed"] = seed
        return generator


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@contextlib.contextmanager
def _restored(generator: torch.Generator) -> Iterator[None]:
    before = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(before)
