# SPDX-License-Identifier: Apache-2.0
"""EpochIndices of orders that are known, for the loaders with torch and without it."""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from headrace._base.help_key import help_on
from headrace.sampling._epoch_indices import Dealt, Drawn, EpochIndices, WholeOrder, check_same_order, count_batches
from headrace.sampling._mixture_algorithm import ALGORITHM, check_algorithm
from headrace.sampling._state import OrderChangedError, Segment, State


def segment_of(batch_size: int, drop_last: bool, world: int = 1, tail: str = "pad") -> Segment:
    """Returns how an order is divided into batches; without batches (batch_size 0), each entry is one."""
    return Segment(world, batch_size or 1, drop_last, tail)


class RepeatedIndices(EpochIndices):
    """A sampler that gives the same indices again for the same settings and epoch, the same on each rank: its indices
    are drawn again up to the place."""

    is_known = True
    is_numbered = True

    def __init__(self, sampler: Any, order: dict[str, Any], batch_size: int, drop_last: bool) -> None:
        super().__init__(sampler, order["kind"], order["n"], batch_size, drop_last)
        self.order = order
        self.segment = segment_of(batch_size, drop_last)
        self.n = len(sampler)

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        place = position + steps * self.segment.batch
        items = self._sampler
        if place:
            is_sequence = isinstance(items, Sequence)  # a slice of an Order or of a Mixture
            items = items[place:] if is_sequence else itertools.islice(iter(items), place, None)
        return Drawn(items, self._sizes(), self.segment.drop_last), 0

    def count_steps(self, position: int) -> int | None:
        return count_batches((self.n or 0) - position, self.segment.batch, self.segment.drop_last)


def _indices_of_slice(
    order: Any,
    identity: dict[str, Any],
    batch_size: int,
    drop_last: bool,
    kind: type[WholeOrder],
    kind_of_other: type[RepeatedIndices],
) -> EpochIndices:
    """Returns the EpochIndices of an IndexSequence. A slice order[r::w] is the part of rank r of w."""
    positions = order._positions
    world, rank = (positions.step, positions.start) if len(positions) > 1 else (1, 0)
    if not 0 <= rank < world or positions != range(order.n)[rank::world]:
        world, rank = 1, 0
    whole, part = order._with(range(order.n)), order._with(positions)  # copies, because set_epoch changes an order
    if world == 1 and positions != range(order.n):
        return kind_of_other(part, {**identity, "slice": repr(positions)}, batch_size, drop_last)
    segment = segment_of(batch_size, drop_last, world, "slice" if world > 1 else "pad")
    return kind(whole, identity, order.n, segment, rank, batch_size)


def order_indices(order: Any, batch_size: int, drop_last: bool) -> EpochIndices:
    """Returns the EpochIndices of a headrace.Order, or of a slice of one."""
    identity = {"kind": f"Order({order.kind})", "n": order.n, "seed": order.seed, "epoch": order.epoch}
    return _indices_of_slice(order, identity, batch_size, drop_last, WholeOrder, RepeatedIndices)


class _OfMixture(EpochIndices):
    """A headrace.Mixture. `mix`: it, or its slice, which may have loaded a state of its own."""

    mix: Any = None

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if not position and not steps:
            self.mix.check_begins("a loader of headrace")
        return super().draw(position, steps, seeds)

    def check_order(self, state: State) -> None:
        self._check_algorithm(state)
        super().check_order(state)

    def _check_algorithm(self, state: State) -> None:
        if state.order["kind"] == self.order["kind"]:
            check_algorithm(state.order.get("algorithm", 1))

    def check_dataset(self, dataset: Any) -> None:
        self.mix.check_dataset(dataset)


class _MixtureSlice(_OfMixture, RepeatedIndices):
    """A slice that is not the part of a rank."""


class _MixtureOrder(_OfMixture, WholeOrder):
    """The order of a headrace.Mixture, in which no index comes twice."""

    def draw_numbers(self, position: int, step: int) -> Sequence[int] | None:
        return ()  # each is drawn for the first time

    def check_order(self, state: State) -> None:
        self._check_algorithm(state)
        theirs, ours = state.order, self.order
        check_same_order(state, {**ours, "sources": theirs.get("sources", ours["sources"])})
        if theirs["n"] != ours["n"] or theirs.get("sources") != ours["sources"]:
            raise OrderChangedError(
                f"headrace: this state was taken with a Mixture of {theirs['n']:,} samples an epoch, of the sources "
                f"{theirs.get('sources')}, and now it has {ours['n']:,} of {ours['sources']} (each with its number of "
                "samples and its share); make it as it was, or use on_changed='next_epoch' to leave the rest of the "
                "epoch out" + help_on("order-changed")
            )


def mixture_indices(mix: Any, batch_size: int, drop_last: bool) -> EpochIndices:
    """Returns the EpochIndices of a headrace.Mixture, or of a slice of one."""
    identity = {"kind": "Mixture", "n": mix.n, "seed": mix.seed, "epoch": mix.epoch, "sources": mix.describe_sources()}
    identity["algorithm"] = ALGORITHM
    found: Any = _indices_of_slice(mix, identity, batch_size, drop_last, _MixtureOrder, _MixtureSlice)
    found.mix = mix
    return found  # type: ignore[no-any-return]


class _RangeIndices(Dealt):
    is_numbered = True

    def entries(self) -> Any:
        return range(self.n or 0)

    def with_size(self, n: int) -> EpochIndices:
        other = range_indices(self.order["kind"], n, self._batch_size, self.segment.drop_last)
        other.sizes = self.sizes
        return other


def range_indices(kind: str, n: int, batch_size: int, drop_last: bool) -> EpochIndices:
    """Returns the EpochIndices of 0, 1, ..., n - 1."""
    return _RangeIndices({"kind": kind, "n": n}, n, segment_of(batch_size, drop_last), 0, batch_size)


class ShuffledIndices(Dealt):
    """numpy's permutation of n indices by a seed and an epoch, which headrace.Loader shuffles by."""

    counts_epochs = True
    is_numbered = True

    def __init__(self, n: int, seed: int, epoch: int, batch_size: int, drop_last: bool) -> None:
        order = {"kind": "shuffle=True", "n": n, "seed": seed, "epoch": epoch}
        super().__init__(order, n, segment_of(batch_size, drop_last), 0, batch_size)

    def part(self, position: int) -> Iterable[Any]:
        return array.array("q", self.entries()[position:].tobytes())

    def entries(self) -> Any:
        import numpy as np

        generator = np.random.default_rng([self.order["seed"], self.order["epoch"]])
        return generator.permutation(self.n or 0)

    def with_size(self, n: int) -> EpochIndices:
        return ShuffledIndices(n, self.order["seed"], self.order["epoch"], self._batch_size, self.segment.drop_last)
