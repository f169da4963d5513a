# SPDX-License-Identifier: Apache-2.0
"""Gives the indices of samplers that deal an order to ranks: DistributedSampler and per_rank."""

from __future__ import annotations

import array
import copy
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from headrace._samples.names import samples_of
from headrace.sampling._draws import DrawCounts
from headrace.sampling._epoch_indices import (
    Dealt,
    Drawn,
    EpochIndices,
    describe_change,
    hash_of,
    part_of,
)
from headrace.sampling._known import segment_of
from headrace.sampling._mixture_algorithm import ALGORITHM, check_algorithm
from headrace.sampling._sampler_parts import SamplerParts
from headrace.sampling._sampler_state import changed_seeds, parts_of, warn_of_changed
from headrace.sampling._state import Segment, State, StateError
from headrace.torch._samplers.foreign import (
    begin_with,
    changed_states,
    next_seeds,
    own_states,
    put_back,
    sampler_states,
    texts_of,
)
from headrace.torch._samplers.per_rank import PerRank

try:
    from headrace import _core
    from headrace.sampling._mixture import Mixture
except ImportError:
    _core = Mixture = None  # type: ignore[assignment, misc]


class DistributedIndices(Dealt):
    """DistributedSampler, torch's or headrace's. iterator: torch's over the sampler, for an epoch that begins at its
    beginning: without batches, it has read the sampler when the loader's iterator was made."""

    is_numbered = True
    iterator: Any = None

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        n = len(sampler.dataset)
        order = {"kind": "DistributedSampler", "n": n, "shuffle": bool(sampler.shuffle)}
        if sampler.shuffle:
            order |= {"seed": sampler.seed, "epoch": sampler.epoch}
        tail = "drop" if sampler.drop_last else "pad"
        super().__init__(
            order, n, segment_of(batch_size, drop_last, sampler.num_replicas, tail), sampler.rank, batch_size
        )
        self._sampler = sampler

    def entries(self) -> Any:
        n = self.n or 0
        if not self.order["shuffle"]:
            return range(n)
        if _core is not None:
            return _core.Order.torch(n, self._seed())
        return torch.randperm(n, generator=torch.Generator().manual_seed(self._seed())).tolist()

    def _seed(self) -> int:
        """Returns the seed of this epoch as torch's generator understands it."""
        return torch.Generator().manual_seed(self.order["seed"] + self.order["epoch"]).initial_seed()

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the sampler, whose epoch may have been set after the loader's iterator was made."""
        if self.iterator is not None and not self._batch_size:
            return self.iterator  # type: ignore[no-any-return]
        if "epoch" in self.order:
            self.order["epoch"] = self._sampler.epoch
        return iter(self._sampler)

    def part(self, position: int) -> Iterable[Any]:
        if position == 0 and len(self._sampler.dataset) == self.n and self._sampler.epoch == self.order.get("epoch", 0):
            return self
        if not self.order["shuffle"] or _core is None:
            return super().part(position)
        count = self.deal(position).size
        world, drops = self.segment.world, self.segment.tail == "drop"
        return _core.Order.torch(self.n or 0, self._seed(), world, self.rank, drops, position).iterate(0, 1, count)

    def with_size(self, n: int) -> EpochIndices:
        other = copy.copy(self)
        other.order, other.n = {**self.order, "n": n}, n
        return other


_MACHINES = "machines"  # the key of PerRank.machines in the order of a state


def _are_machines(value: Any) -> bool:
    """Returns True for a value that PerRank.machines can have, except for None."""
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(one) is int and one > 0 for one in value)
    return is_pair and value[0] < 1 << 32 and value[0] % value[1] == 0


class PerRankIndices(Dealt):
    """headrace.torch.per_rank. Its order is drawn when the first index is needed."""

    warns_of_epochs = True

    def __init__(self, sampler: PerRank, batch_size: int, drop_last: bool) -> None:
        n = sampler._count_entries()
        order = {"kind": f"per_rank({type(sampler.dataset).__name__})", "n": n}
        if Mixture is not None and isinstance(sampler.dataset, Mixture):
            order["algorithm"] = ALGORITHM
        if sampler.is_seeded:
            order["seed"] = sampler.seed
        if sampler.shuffle:
            order["epoch"] = sampler.epoch
        if sampler.machines is not None:
            order[_MACHINES] = sampler.machines
        segment = segment_of(batch_size, drop_last, sampler.num_replicas, sampler.tail)
        super().__init__(order, n, segment, sampler.rank, batch_size)
        self._sampler = sampler
        self._entries: Any = None
        self._numbers: list[Any] | None = None  # how often each entry's index is in the order before it
        self._dealt: tuple[int, Any] = (-1, ())  # the part of them from a position on
        self._parts: SamplerParts | None = None  # of the sampler that is dealt, at the beginning of the epoch
        self._parts_before: SamplerParts | None = None  # at the beginning of the epoch before

    def check_order(self, state: State) -> None:
        """The machines may be others: the epoch of the state goes on with those that it began with."""
        machines = state.order.get(_MACHINES)
        if machines is not None and not _are_machines(machines):
            raise StateError(f"headrace: this state is damaged: its machines are {machines!r}")
        state = replace(state, order={name: one for name, one in state.order.items() if name != _MACHINES})
        if "algorithm" in self.order and state.order["kind"] == self.order["kind"]:
            check_algorithm(state.order.get("algorithm", 1))
        super().check_order(state)

    def going_on(self, state: State) -> EpochIndices:
        other = copy.copy(self)
        other.order = {name: one for name, one in self.order.items() if name != _MACHINES}
        if _MACHINES in state.order:
            other.order[_MACHINES] = state.order[_MACHINES]
        return other

    def next_order(self) -> dict[str, Any]:
        order = super().next_order()
        order.pop(_MACHINES, None)
        machines = self._sampler.machines
        return order if machines is None else {**order, _MACHINES: machines}

    def follows(self, before: EpochIndices) -> None:
        if isinstance(before, PerRankIndices):
            self._parts_before = before._parts

    def replaces(self, before: EpochIndices) -> None:
        super().replaces(before)
        self.follows(before)
        if isinstance(before, PerRankIndices):
            self._parts_before = before._parts_before

    def entries(self) -> Any:
        if self._entries is None:
            self._parts = parts_of(self._sampler.dataset)
            before = self._parts.states()
            states = sampler_states(self._parts)
            self._entries = self._sampler.arrange(self._sampler.begin_epoch(), self.order.get(_MACHINES))
            self.n = len(self._entries)
            self.seeds["order"] = _digest_of(self._entries)
            self.has_batches = bool(self.n) and isinstance(self._entries[0], (list, tuple))
            if used := changed_states(self._sampler.dataset, before):
                self.seeds["own"] = used
            self.seeds |= states
            if "epoch" in self.order:
                self.order["epoch"] = self._sampler.epoch
        return self._entries

    def last_task(self, segments: list[Segment], rank: int, seeds: dict[str, Any]) -> Any:
        return None  # the whole order is compared when it is drawn

    @property
    def drawn_entries(self) -> Any:
        """The order, if it was drawn from another sampler."""
        return self._entries

    def __iter__(self) -> Iterator[Any]:
        self.entries()
        return iter(super().part(0))

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if seeds is not None or position or steps:
            put_back(self._sampler.dataset, seeds or {})
            if "order" not in (seeds or {}):
                warn_of_changed(self._sampler.dataset, seeds or {})
            self.entries()
            if (seeds or {}).get("order", self.seeds["order"]) != self.seeds["order"]:
                raise StateError(describe_change(self.order["kind"], "gives other entries than before"))
        return super().draw(position, steps, seeds)

    def part(self, position: int) -> Iterable[Any]:
        return self if self._entries is None else super().part(position)

    def check_dataset(self, dataset: Any) -> None:
        if isinstance(self._sampler.dataset, Mixture):
            self._sampler.dataset.check_dataset(dataset)

    def draw_numbers(self, position: int, step: int) -> Sequence[int] | None:
        if not isinstance(self._entries, (list, array.array)):  # in an Order, a Mixture or a range, each index is once
            return None
        if self._dealt[0] != position:
            dealt = self.deal(position)
            self._dealt = (position, part_of(self._all_numbers(), dealt, self._count(dealt)))
        numbers = self._dealt[1]
        if not self._batch_size:
            return numbers[step] if isinstance(numbers[step], list) else [numbers[step]]
        found: Sequence[int] = numbers[step * self._batch_size : (step + 1) * self._batch_size]
        return found

    def _all_numbers(self) -> list[Any]:
        if self._numbers is None:
            counts, numbers = DrawCounts(), []
            for entry in self._entries:
                samples = samples_of(entry, self.has_batches)
                draws = counts.look(samples)
                counts.put(samples, draws)
                numbers.append(draws if self.has_batches else draws[0])
            self._numbers = numbers
        return self._numbers

    def start_seeds(self) -> dict[str, Any]:
        is_drawn = self._entries is not None
        if is_drawn:
            return self.seeds
        parts = parts_of(self._sampler.dataset)
        own = {"own": texts_of(own_states(self._sampler.dataset)), **sampler_states(parts)}
        return {**self.seeds, **own, **changed_seeds(parts, self._parts_before)}

    def end_seeds(self) -> dict[str, Any]:
        return next_seeds(self._sampler.dataset, self._parts)

    def begin_with(self, seeds: dict[str, Any]) -> None:
        begin_with(self._sampler.dataset, seeds)


def _digest_of(entries: Any) -> int:
    """Returns a hash of a whole order."""
    if isinstance(entries, (array.array, range)):
        return zlib.crc32(entries.tobytes() if isinstance(entries, array.array) else repr(entries).encode())
    if isinstance(entries, list):
        return functools.reduce(lambda digest, entry: zlib.crc32(b"%d" % hash_of(entry), digest), entries, 0)
    return zlib.crc32(repr(entries).encode())  # a headrace.Order or a Mixture is known by its settings
