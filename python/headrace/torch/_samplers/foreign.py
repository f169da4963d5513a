# SPDX-License-Identifier: Apache-2.0
"""The EpochIndices of a sampler of the user's. To continue it in the middle of an epoch, it is put back to where it
was at the epoch's beginning, and its indices are drawn again; no samples are made for that.

It is put back by its own state_dict and load_state_dict, if it has them, by the states of its random number generators,
and, if it draws from the generators that all code shares, by their states.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from headrace._base import lookup
from headrace._samples import generator_kinds, random_numbers
from headrace.sampling import _values
from headrace.sampling._epoch_indices import (
    REPLAY,
    Drawn,
    EpochIndices,
    begun,
)
from headrace.sampling._sampler_parts import SamplerParts
from headrace.sampling._sampler_state import (
    changed_seeds,
    generators_of,
    load_state_dicts,
    parts_of,
    state_dicts,
    warn_of_changed,
)
from headrace.sampling._state import StateError
from headrace.sampling._users_sampler import UsersSampler
from headrace.torch._samplers import generators


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
    return SamplerParts(sampler).states()


def changed_states(sampler: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Returns those of the states that own_states has returned which the sampler has drawn from since, as JSON can
    contain them."""
    own = generators_of(sampler)
    return texts_of({name: one for name, one in before.items() if name in own and _differs(one, own[name])})


def texts_of(states: dict[str, Any]) -> dict[str, Any]:
    """Returns states of generators as JSON can contain them."""
    return {name: generators.text_of(one) for name, one in states.items()}


def restore_states(sampler: Any, states: dict[str, Any]) -> None:
    """Sets a sampler's own generators to what changed_states has returned. Raises StateError."""
    own = generators_of(sampler) if states else {}
    if missing := sorted(states.keys() - own.keys()):
        raise StateError(
            f"headrace: this state has that of the generator {missing[0]!r} of the sampler, and this "
            f"{type(sampler).__name__} has no such generator; give the loader the same kind of sampler"
        )
    for name, text in states.items():
        generators.restore(own[name], text)


def next_seeds(sampler: Any, before: SamplerParts | None) -> dict[str, Any]:
    """Returns what a sampler's next epoch begins with: the states of its own generators, its own state, and, if it has
    none, the values that it has changed since the epoch began (`before`)."""
    parts = parts_of(sampler)
    seeds = changed_seeds(parts, before)
    if parts.generators:
        seeds["next_own"] = texts_of(own_states(sampler))
    if parts.stateful:
        seeds["next_sampler"] = _values.encode(state_dicts(parts))
    return seeds


def begin_with(sampler: Any, seeds: dict[str, Any]) -> None:
    """Sets a sampler to what next_seeds has returned. Raises StateError. Warns of values that it has here before it
    begins the epoch, and that are not those at the end of the epoch before."""
    restore_states(sampler, seeds.get("next_own", {}))
    if "next_sampler" in seeds:
        load_state_dicts(sampler, parts_of(sampler), _values.decode(seeds["next_sampler"]))
    warn_of_changed(sampler, seeds)


def sampler_states(parts: SamplerParts) -> dict[str, str]:
    """Returns the states of the samplers that have one, as seeds of an EpochIndices."""
    return {"sampler": _values.encode(state_dicts(parts))} if parts.stateful else {}


def put_back(sampler: Any, seeds: dict[str, Any]) -> None:
    """Sets a sampler to where it was at the beginning of an epoch. Raises StateError."""
    restore_states(sampler, seeds.get("own", {}))
    if "sampler" in seeds:
        load_state_dicts(sampler, parts_of(sampler), _values.decode(seeds["sampler"]))


class Before:
    """The states of a sampler and of the generators at the beginning of an epoch, before torch's iterator is made."""

    def __init__(self, sampler: Any) -> None:
        self.globals = generators.Globals()
        self.parts = parts_of(sampler)
        self.own = self.parts.states()
        self.states = sampler_states(self.parts)
        self._after = self.globals

    def iterator_was_made(self, loaders: torch.Generator | None) -> None:
        """Looks whether the sampler drew numbers when torch's iterator was made, which draws a base seed itself: from
        the generator of the loader, if that has one."""
        self._note_base_seed(loaders)
        after = generators.Globals()
        expected = self.globals.after_base_seed() if loaders is None else self.globals
        if not after.differs_from(expected):
            self.globals = after
        self._after = after

    def _note_base_seed(self, loaders: torch.Generator | None) -> None:
        """If the sampler has the generator of the loader, and has drawn nothing yet, its draws begin after the base
        seed."""
        names = [name for name, one in self.parts.generators.items() if one is loaders]
        for name in names:
            now = self.parts.generators[name].get_state()
            if torch.equal(generators.after_base_seed(self.own[name]), now):
                self.own[name] = now

    def encode(self) -> dict[str, Any]:
        """Returns everything as seeds of an EpochIndices."""
        return {"own": texts_of(self.own), "globals": self.globals.encode(), **self.states}

    def has_drawn(self) -> bool:
        """Returns True if the sampler has drawn from the shared generators until now."""
        return self._after is not self.globals or bool(self.globals.drawn_from())


class ForeignIndices(UsersSampler):
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
        self._changed: dict[str, Any] = {}  # see changed_seeds, between the beginnings of the epoch before and this one

    def follows(self, before: EpochIndices) -> None:
        if isinstance(before, ForeignIndices) and self._parts is not None:
            self._changed = changed_seeds(self._parts, before._parts)

    def replaces(self, before: EpochIndices) -> None:
        super().replaces(before)
        if isinstance(before, ForeignIndices) and before._sampler is self._sampler:
            self.before, self.iterator, self._parts = before.before, before.iterator, before._parts
            self._changed = before._changed
        else:
            self.note_before()

    def note_before(self) -> Before:
        """Notes what the sampler is at the beginning of an epoch."""
        self.before = Before(self._sampler)
        self._parts = self.before.parts
        return self.before

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if seeds is None:
            is_begun = self.iterator is not None and not self._batch_size
            items = begun(self.iterator) if is_begun else self._sampler
            return Drawn(items, self._sizes(), self._drop_last), steps
        with random_numbers.generators_kept():
            if "globals" in seeds:
                generators.set_globals(seeds["globals"])
            put_back(self._sampler, seeds)
            if not steps:  # otherwise the indices are compared
                warn_of_changed(self._sampler, seeds)
            self._parts = parts_of(self._sampler)
            self.seeds = dict(seeds)
            items = begun(iter(self._sampler))
            first = list(itertools.islice(items, position + steps * (self._batch_size or 1) + 1))
            return Drawn(itertools.chain(first[position:], items), self._sizes(), self._drop_last), steps

    def end_seeds(self) -> dict[str, Any]:
        return next_seeds(self._sampler, self._parts)

    def begin_with(self, seeds: dict[str, Any]) -> None:
        if REPLAY in seeds:
            ended = seeds[REPLAY]
            drawn, _ = self.draw(0, ended.get("steps", 0), ended)
            if "entries" in ended:
                drawn.batch_size = 0
            self._replay_to_end(drawn.tasks(), ended, compares=ended.get("by") == self.rank)
        else:
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
        self.seeds |= before.states

    def start_seeds(self) -> dict[str, Any]:
        """Returns all that the sampler may draw from, as long as it has not drawn."""
        return {**self._changed, **self.seeds, **(self.before.encode() if self.before is not None else {})}


def _differs(state: Any, generator: Any) -> bool:
    now = generator_kinds.state_of(generator)
    if isinstance(state, torch.Tensor):
        return not torch.equal(state, now)
    return bool(generators.text_of(state) != generators.text_of(now))
