# SPDX-License-Identifier: Apache-2.0
"""Chooses the EpochIndices of a loader by its sampler: torch's, headrace's, accelerate's, or one of the user's.

A sampler is known by its exact class, because a subclass may give other indices.
"""

from __future__ import annotations

import array
import copy
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from headrace._base import signals
from headrace._samples.names import samples_of
from headrace.sampling import _exact
from headrace.sampling._draws import DrawCounts
from headrace.sampling._epoch_indices import (
    Dealt,
    Drawn,
    EpochIndices,
    count_batches,
    describe_change,
    hash_of,
    part_of,
)
from headrace.sampling._known import RepeatedIndices, mixture_indices, order_indices, range_indices, segment_of
from headrace.sampling._sampler_parts import SamplerParts
from headrace.sampling._sampler_state import changed_seeds, parts_of, warn_of_changed
from headrace.sampling._state import Segment, StateError
from headrace.torch import _accelerate, _generators, _internals, _torchs
from headrace.torch._distributed_sampler import DistributedSampler
from headrace.torch._foreign import (
    ForeignIndices,
    begin_with,
    changed_states,
    next_seeds,
    own_states,
    put_back,
    sampler_states,
    samplers_of,
    texts_of,
)
from headrace.torch._lists import Lists
from headrace.torch._per_rank import PerRank
from headrace.torch._predicting import noting, wrapped_by_lightning
from headrace.torch._torchs import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.torch._whole_order import length_of

try:
    from headrace import _core
    from headrace.sampling._mixture import Mixture
    from headrace.sampling._order import Order
    from headrace.sampling._plan import Plan
    from headrace.sampling._plan_indices import PlanIndices
except ImportError:
    _core = Mixture = Order = Plan = None  # type: ignore[assignment, misc]

_make_batches = BatchSampler.__iter__  # a user may put another in its place


class RandomIndices(EpochIndices):
    """RandomSampler, SubsetRandomSampler or WeightedRandomSampler of torch: the same order on each rank."""

    is_known = True

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        super().__init__(sampler, type(sampler).__name__, _count_of(sampler), batch_size, drop_last)
        self.segment = segment_of(batch_size, drop_last)
        self.n = len(sampler)
        if type(sampler) is RandomSampler:
            self.order |= {"replacement": sampler.replacement, "num_samples": _internals.given_count(sampler) or -1}
        elif type(sampler) is WeightedRandomSampler:
            self.order |= {"replacement": sampler.replacement, "num_samples": sampler.num_samples}
        self._lists: Lists | None = None

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave to the sampler."""
        return self._sampler.generator  # type: ignore[no-any-return]

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        place = position + steps * self.segment.batch
        size = None if seeds is None else self.order["n"]
        self._lists = Lists(self._sampler, size, min(place, self.n or 0), seeds)
        self.seeds = self._lists.drawn
        return Drawn(self._lists, self._batch_size, self.segment.drop_last, has_lists=True), 0

    def count_steps(self, position: int) -> int | None:
        return count_batches((self.n or 0) - position, self.segment.batch, self.segment.drop_last)

    def start_seeds(self) -> dict[str, Any]:
        return {**(self._lists.expected() if self._lists is not None else {}), **self.seeds}

    def last_task(self, segments: list[Segment], rank: int, seeds: dict[str, Any]) -> Any:
        *earlier, last = segments
        place = self.position_after(earlier) + (last.steps - 1) * last.batch
        lists = Lists(self._sampler, self.order["n"], min(place, self.n or 0), seeds)
        return next(Drawn(lists, self._batch_size and last.batch, False, has_lists=True).tasks(), None)

    def end_seeds(self) -> dict[str, Any]:
        if self._sampler.generator is None or self._lists is None:
            return self.left_seeds()
        return {"next_generator": self._lists.state_at_end()}

    def left_seeds(self) -> dict[str, Any]:
        generator = self._sampler.generator
        return {} if generator is None else {"next_generator": generator.get_state()}

    def begin_with(self, seeds: dict[str, Any]) -> None:
        if "next_generator" in seeds and self._sampler.generator is not None:
            _generators.set_state(self._sampler.generator, seeds["next_generator"])

    def with_size(self, n: int) -> EpochIndices:
        if type(self._sampler) is not RandomSampler:
            return super().with_size(n)
        other = copy.copy(self)
        other.order = {**self.order, "n": n}
        other.n = n if _internals.given_count(self._sampler) is None else self.n
        return other


def _count_of(sampler: Any) -> int:
    if type(sampler) is RandomSampler:
        return len(sampler.data_source)
    return len(sampler.indices if type(sampler) is SubsetRandomSampler else sampler.weights)


class DistributedIndices(Dealt):
    """DistributedSampler, torch's or headrace's."""

    is_numbered = True

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


class PerRankIndices(Dealt):
    """headrace.torch.per_rank. Its order is drawn when the first index is needed."""

    warns_of_epochs = True

    def __init__(self, sampler: PerRank, batch_size: int, drop_last: bool) -> None:
        n = sampler._count_entries()
        order = {"kind": f"per_rank({type(sampler.dataset).__name__})", "n": n}
        if sampler.is_seeded:
            order["seed"] = sampler.seed
        if sampler.shuffle:
            order["epoch"] = sampler.epoch
        segment = segment_of(batch_size, drop_last, sampler.num_replicas, sampler.tail)
        super().__init__(order, n, segment, sampler.rank, batch_size)
        self._sampler = sampler
        self._entries: Any = None
        self._numbers: list[Any] | None = None  # how often each entry's index is in the order before it
        self._dealt: tuple[int, Any] = (-1, ())  # the part of them from a position on
        self._parts: SamplerParts | None = None  # of the sampler that is dealt, at the beginning of the epoch
        self._parts_before: SamplerParts | None = None  # at the beginning of the epoch before

    def follows(self, before: EpochIndices) -> None:
        if isinstance(before, PerRankIndices):
            self._parts_before = before._parts

    def entries(self) -> Any:
        if self._entries is None:
            self._parts = parts_of(self._sampler.dataset)
            before = self._parts.states()
            states = sampler_states(self._parts)
            self._entries = self._sampler.begin_epoch()
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


class ShardIndices(EpochIndices):
    """accelerate's BatchSamplerShard over a known sampler. accelerate itself chooses the batches of this rank."""

    is_known = True

    def __init__(self, shard: Any, whole: EpochIndices) -> None:
        super().__init__(shard, whole.order["kind"], None)
        self.order, self.n, self._whole = whole.order, whole.n, whole
        self.counts_epochs = whole.counts_epochs
        world, batch = shard.num_processes, shard.batch_size
        tail = "pad" if shard.even_batches else "slice"
        batch = batch // world if shard.split_batches else batch
        self.segment = Segment(world, batch, bool(shard.drop_last), tail)
        self.rank = shard.process_index

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if position == 0 and not steps and seeds is None and not isinstance(self._whole, RandomIndices):
            return Drawn(self._sampler, 0, False), 0
        whole, _ = self._whole.draw(position, 0, seeds)
        self.seeds = self._whole.seeds
        shard = copy.copy(self._sampler)
        left = self.n - position  # type: ignore[operator]
        shard.batch_sampler = _Batches(whole, left, self._sampler.batch_sampler)
        return Drawn(shard, 0, False), steps

    def count_steps(self, position: int) -> int | None:
        shard = copy.copy(self._sampler)
        whole = Drawn((), self._sampler.batch_sampler.batch_size, False)
        shard.batch_sampler = _Batches(whole, self.n - position, self._sampler.batch_sampler)  # type: ignore[operator]
        return len(shard)

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave to the sampler."""
        return getattr(self._whole, "generator", None)

    def start_seeds(self) -> dict[str, Any]:
        return self._whole.start_seeds()

    def end_seeds(self) -> dict[str, Any]:
        return self._whole.end_seeds()

    def left_seeds(self) -> dict[str, Any]:
        return self._whole.left_seeds()

    def begin_with(self, seeds: dict[str, Any]) -> None:
        self._whole.begin_with(seeds)


class _Batches:
    """The rest of an order as a batch sampler with a length."""

    def __init__(self, drawn: Drawn, left: int, like: Any) -> None:
        self._drawn = drawn
        self._left = left
        self.batch_size = like.batch_size
        self.drop_last = like.drop_last

    def __iter__(self) -> Any:
        return self._drawn.tasks()

    def __len__(self) -> int:
        return count_batches(self._left, self.batch_size, self.drop_last)


# ---- finding it ----


def _is_accelerates(sampler: Any, name: str) -> bool:
    module = sys.modules.get("accelerate.data_loader")
    return module is not None and type(sampler) is getattr(module, name, None)


def _seedable_indices(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices:
    order = {"kind": "SeedableRandomSampler", "n": len(sampler.data_source)}
    order |= {"seed": sampler.initial_seed, "epoch": sampler.epoch}
    indices = RepeatedIndices(sampler, order, batch_size, drop_last)
    indices.counts_epochs = True
    return indices


_MAKERS: dict[type, Callable[[Any, int, bool], EpochIndices]] = {
    SequentialSampler: lambda sampler, *batches: range_indices("SequentialSampler", len(sampler.data_source), *batches),
    RandomSampler: RandomIndices,
    SubsetRandomSampler: RandomIndices,
    WeightedRandomSampler: RandomIndices,
    _torchs.DistributedSampler: DistributedIndices,
    DistributedSampler: DistributedIndices,
    PerRank: PerRankIndices,
}
if Order is not None:
    _MAKERS[Order] = order_indices
    _MAKERS[Mixture] = mixture_indices
    _MAKERS[Plan] = lambda plan, *batches: PlanIndices(plan)


def known_indices(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices | None:
    """Returns the EpochIndices of a sampler that is known, or None."""
    if _is_accelerates(sampler, "SeedableRandomSampler"):
        return _seedable_indices(sampler, batch_size, drop_last)
    maker = _MAKERS.get(type(sampler))
    if maker is DistributedIndices and not _deals_as_torch(sampler):
        return None
    return None if maker is None else maker(sampler, batch_size, drop_last)


def _deals_as_torch(sampler: Any) -> bool:
    """Returns False if an attribute or the size of the dataset was changed after the sampler was made, so that torch
    raises an error."""
    world, rank = sampler.num_replicas, sampler.rank
    if type(world) is not int or type(rank) is not int or not 0 <= rank < world:
        return False
    n = len(sampler.dataset)
    count = n // world if sampler.drop_last else -(-n // world)
    return (sampler.num_samples, sampler.total_size) == (count, count * world)


def _find_known(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices | None:
    try:
        return known_indices(sampler, batch_size, drop_last)
    except Exception as error:  # of the dataset's own __len__: torch meets it when it draws the first index
        if signals.is_from_signal(error):
            raise
        return None


def indices_of(index_sampler: Any, dataset: Any, rank: int) -> tuple[EpochIndices, int]:
    """Returns the EpochIndices of a loader, and how many batches at the beginning of each epoch are skipped."""
    if _is_accelerates(index_sampler, "SkipBatchSampler"):
        indices, skipped = indices_of(index_sampler.batch_sampler, dataset, rank)
        return indices, skipped + index_sampler.skip_batches
    wrapped = wrapped_by_lightning(index_sampler)
    if wrapped is not None:
        indices, skipped = indices_of(wrapped, dataset, rank)
        if indices.is_known:
            return noting(indices, index_sampler), skipped
    is_shard = _is_accelerates(index_sampler, "BatchSamplerShard")
    if is_shard and _accelerate.is_left_as_it_is(index_sampler):
        return indices_of(index_sampler.batch_sampler, dataset, rank)
    if is_shard and type(index_sampler.batch_sampler) is BatchSampler:
        whole, _ = indices_of(index_sampler.batch_sampler, dataset, rank)
        if whole.is_known and whole.segment.world == 1:
            return ShardIndices(index_sampler, whole), 0
    sampler, size, drop_last = _inner_of(index_sampler)
    known = _find_known(sampler, size, drop_last)
    if known is not None:
        known.check_dataset(dataset)
        return known, 0
    _exact.check(sampler, samplers_of(sampler))
    return ForeignIndices(sampler, length_of(dataset), size, drop_last, rank), 0


def _inner_of(index_sampler: Any) -> tuple[Any, int, bool]:
    """Returns the sampler inside torch's BatchSampler, its batch size (0: no batches) and drop_last."""
    is_torchs = type(index_sampler) is BatchSampler and BatchSampler.__iter__ is _make_batches
    size = index_sampler.batch_size if is_torchs else 0
    if type(size) is int and size > 0:
        return index_sampler.sampler, size, bool(index_sampler.drop_last)
    return index_sampler, 0, False
