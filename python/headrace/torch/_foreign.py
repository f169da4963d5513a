# SPDX-License-Identifier: Apache-2.0
"""A sampler of the user's as a source of indices. To continue it in the middle of an epoch, it is put back to where it
was at the epoch's beginning, and its indices are drawn again; no samples are made for that.

It is put back by its own state_dict and load_state_dict, if it has them, by the states of its random number generators,
and, if it draws from the generators that all code shares, by their states.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from headrace._inspect import lookup
from headrace._samples import random_numbers
from headrace.sampling import _values
from headrace.sampling._sampler_state import generators_of
from headrace.sampling._source import Drawn, Source
from headrace.torch import _generators


def samplers_of(sampler: Any) -> list[Any]:
    """Returns a sampler and those that it is around: those of BatchSampler, and of accelerate's and Lightning's."""
    found: list[Any] = []
    while sampler is not None and not any(sampler is one for one in found):
        found.append(sampler)
        inner = (lookup.attribute(sampler, name) for name in ("batch_sampler", "_batch_sampler", "sampler", "_sampler"))
        sampler = next((one for one in inner if one is not None), None)
    return found


def has_set_epoch(sampler: Any) -> bool:
    """Returns True if a sampler has a method set_epoch."""
    return callable(lookup.attribute(sampler, "set_epoch"))


def own_states(sampler: Any) -> dict[str, Any]:
    """Returns the states of a sampler's own generators, by the names of the attributes."""
    return {name: _generators.state_of(one) for name, one in generators_of(sampler).items()}


def changed_states(sampler: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Returns those of the states that own_states has returned which the sampler has drawn from since, as JSON can
    contain them."""
    own = generators_of(sampler)
    return texts_of({name: one for name, one in before.items() if name in own and _differs(one, own[name])})


def texts_of(states: dict[str, Any]) -> dict[str, Any]:
    """Returns states of generators as JSON can contain them."""
    return {name: _generators.text_of(one) for name, one in states.items()}


def restore_states(sampler: Any, states: dict[str, Any]) -> None:
    """Sets a sampler's own generators to what changed_states has returned. Raises StateError."""
    own = generators_of(sampler)
    for name, text in states.items():
        if name in own:
            _generators.restore(own[name], text)


def next_seeds(sampler: Any) -> dict[str, Any]:
    """Returns what a sampler's next epoch begins with: the states of its own generators, and its own state."""
    seeds: dict[str, Any] = {}
    if own := own_states(sampler):
        seeds["next_own"] = {name: _generators.text_of(one) for name, one in own.items()}
    if lookup.has_state(sampler):
        seeds["next_sampler"] = _values.encode(sampler.state_dict())
    return seeds


def begin_with(sampler: Any, seeds: dict[str, Any]) -> None:
    """Sets a sampler to what next_seeds has returned. Raises StateError."""
    restore_states(sampler, seeds.get("next_own", {}))
    if "next_sampler" in seeds:
        sampler.load_state_dict(_values.decode(seeds["next_sampler"]))


class Before:
    """The states of a sampler and of the generators at the beginning of an epoch, before torch's iterator is made."""

    def __init__(self, sampler: Any) -> None:
        self.globals = _generators.Globals()
        self.own = own_states(sampler)
        self.sampler = _values.encode(sampler.state_dict()) if lookup.has_state(sampler) else None
        self._after = self.globals

    def iterator_was_made(self, draws_from_default: bool) -> None:
        """Looks whether the sampler drew numbers when torch's iterator was made, which draws a base seed itself."""
        after = _generators.Globals()
        expected = self.globals.after_base_seed() if draws_from_default else self.globals
        if not after.differs_from(expected):
            self.globals = after
        self._after = after

    def encode(self) -> dict[str, Any]:
        """Returns everything as seeds of a source."""
        sampler = {} if self.sampler is None else {"sampler": self.sampler}
        return {"own": texts_of(self.own), "globals": self.globals.encode(), **sampler}

    def has_drawn(self) -> bool:
        """Returns True if the sampler has drawn from the shared generators until now."""
        return self._after is not self.globals or bool(self.globals.drawn_from())


class ForeignSource(Source):
    """See above. iterator: torch's over the sampler, for an epoch that begins at its beginning."""

    def __init__(self, sampler: Any, size: int | None, batch_size: int, drop_last: bool, rank: int) -> None:
        super().__init__(sampler, type(sampler).__name__, size, batch_size, drop_last)
        epochs = (lookup.attribute(one, "epoch") for one in samplers_of(sampler) if has_set_epoch(one))
        epoch = next((one for one in epochs if type(one) is int), None)
        if epoch is not None:
            self.order["epoch"] = epoch
        self.rank = rank
        self.before: Before | None = None
        self.iterator: Any = None

    def note_before(self) -> Before:
        """Notes what the sampler is at the beginning of an epoch."""
        self.before = Before(self._sampler)
        return self.before

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if seeds is None:
            items = self._sampler if self.iterator is None or self._batch_size else self.iterator
            return Drawn(items, self._batch_size, self._drop_last), steps
        with random_numbers.generators_kept():
            if "globals" in seeds:
                _generators.set_globals(seeds["globals"])
            self._put_back(seeds)
            self.seeds = dict(seeds)
            drawn = Drawn(iter(self._sampler), self._batch_size, self._drop_last)
            count = steps * (self._batch_size or 1)
            drawn.items = itertools.chain(list(itertools.islice(drawn.items, count + 1)), drawn.items)
            return drawn, steps

    def _put_back(self, seeds: dict[str, Any]) -> None:
        restore_states(self._sampler, seeds.get("own", {}))
        if "sampler" in seeds:
            self._sampler.load_state_dict(_values.decode(seeds["sampler"]))

    def end_seeds(self) -> dict[str, Any]:
        return next_seeds(self._sampler)

    def begin_with(self, seeds: dict[str, Any]) -> None:
        begin_with(self._sampler, seeds)

    def was_drawn(self) -> None:
        """Called after the first indices of an epoch that was not continued: notes what the sampler draws from."""
        before = self.before
        if before is None:
            return
        self.before = None
        if before.own:  # it may draw from them later
            self.seeds["own"] = texts_of(before.own)
        if before.has_drawn():
            self.seeds["globals"] = before.globals.encode()
        if before.sampler is not None:
            self.seeds["sampler"] = before.sampler

    def start_seeds(self) -> dict[str, Any]:
        """Returns all that the sampler may draw from, as long as it has not drawn."""
        return {**self.seeds, **(self.before.encode() if self.before is not None else {})}


def _differs(state: Any, generator: Any) -> bool:
    now = _generators.state_of(generator)
    if isinstance(state, torch.Tensor):
        return not torch.equal(state, now)
    return bool(_generators.text_of(state) != _generators.text_of(now))
