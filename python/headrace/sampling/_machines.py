# SPDX-License-Identifier: Apache-2.0
"""Orders in which each machine keeps its samples, for per_rank with `stay`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from headrace import _core
from headrace.sampling._index_sequence import MASK, IndexSequence
from headrace.sampling._order import Order

_WHO = "headrace: per_rank"


class _Whole:
    """The whole order, which is made when it is first read. A MachineOrder and its slices share it."""

    __slots__ = ("_made", "epoch", "is_shuffled", "machine_ranks", "n", "seed", "world_size")

    def __init__(self, n: int, world_size: int, machine_ranks: int, is_shuffled: bool, seed: int, epoch: int) -> None:
        self.n, self.world_size, self.machine_ranks = n, world_size, machine_ranks
        self.is_shuffled, self.seed, self.epoch = is_shuffled, seed, epoch
        self._made: _core.Order | None = None

    def get(self) -> _core.Order:
        if self._made is None:
            seeds = self.seed & MASK, self.epoch & MASK
            self._made = _core.Order.machines(self.n, self.world_size, self.machine_ranks, self.is_shuffled, *seeds)
        return self._made

    def key(self) -> tuple[Any, ...]:
        return "machines", self.n, self.world_size, self.machine_ranks, self.is_shuffled, self.seed, self.epoch


class MachineOrder(IndexSequence):
    """An order of n samples in which each machine keeps its part: see hr_order_machines in headrace/sampler.h. It takes
    no memory for the indices."""

    __slots__ = ()
    _whole: _Whole

    def __init__(self, n: int, world_size: int, machine_ranks: int, is_shuffled: bool, seed: int, epoch: int) -> None:
        self._whole = _Whole(n, world_size, machine_ranks, is_shuffled, seed, epoch)
        self._positions = range(n)

    def __repr__(self) -> str:
        return f"MachineOrder{self._whole.key()[1:]}{self._describe_slice(self._whole.n)}"


def arranged(entries: Sequence[Any], world_size: int, machine_ranks: int) -> Sequence[Any]:
    """Returns the entries of an order in another order, in which ranks that are dealt to by stride get samples of the
    part of their machine: rank r is on machine r // machine_ranks. A headrace.Order and a range are not copied.

    Raises TypeError for batches, and ValueError if the order has not each of the samples 0, 1, ..., n - 1 once.
    """
    n = len(entries)
    if isinstance(entries, Order) and entries == Order(n, kind=entries.kind, seed=entries.seed, epoch=entries.epoch):
        if entries.kind != "torch":
            return MachineOrder(n, world_size, machine_ranks, entries.kind == "stream", entries.seed, entries.epoch)
    if isinstance(entries, range) and entries == range(n):
        return MachineOrder(n, world_size, machine_ranks, False, 0, 0)
    target = array("q", bytes(8 * n))
    try:
        _core.deal_machines(_as_table(entries), world_size, machine_ranks, target)
    except ValueError as error:
        raise ValueError(f"{_WHO}: {error}; use stay=None for it") from None
    return target


def _as_table(entries: Sequence[Any]) -> Any:
    if isinstance(entries, array):
        return entries
    if isinstance(entries, IndexSequence):
        table = array("q", bytes(8 * len(entries)))
        if entries:
            positions = entries._positions
            entries._whole.get().fill(positions.start, positions.step, table)
        return table
    if isinstance(entries, range) or not entries:
        return array("q", entries)
    raise TypeError(
        f"{_WHO}: stay deals samples to machines, and this sampler gives entries such as {entries[0]!r}; let it give "
        "indices (per_rank as sampler=, not as batch_sampler=), or use stay=None"
    )
