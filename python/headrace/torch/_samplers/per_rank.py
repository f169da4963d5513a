# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.per_rank: deals the order of any sampler or batch sampler to the ranks. It needs no engine."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from headrace._base import warn
from headrace._base.help_key import help_on
from headrace._ranks import where
from headrace.sampling import _deal
from headrace.torch._frameworks import dealt_again
from headrace.torch._samplers import rank_places, whole_order
from headrace.torch._samplers.distributed_sampler import DistributedSampler

TAILS = ("pad", "drop", "exact")


class PerRank(DistributedSampler[Any]):
    """The part of this rank of the order of another sampler: see `per_rank`, which makes it.

    It is a subclass of torch's DistributedSampler, and of headrace's, which a script may put in the place of torch's.
    Frameworks recognise by that class, and by its attributes, that a sampler has been dealt already. `dataset` is the
    sampler that is dealt, `tail` and `place` are what per_rank was given and found, after its checks. stay: the number
    of ranks of a machine, if each machine keeps its samples; otherwise None.
    """

    def __init__(self, sampler: Any, tail: str, place: where.RankPlace, seed: int | None, stay: int | None) -> None:
        self.is_seeded, self.seed = seed is not None, seed or 0
        self.place, self.stay = place, stay
        self.num_replicas, self.rank = place.world_size, place.rank
        self.dataset, self.epoch = sampler, 0
        self.tail, self.drop_last = tail, tail == "drop"
        self.shuffle = self._follows_epoch()
        self._drawn: Sequence[Any] | None = None  # the whole order
        self._drawn_for: int | None = None  # the epoch in which an iterator used it
        self._drawn_in: int | None = None  # the epoch that a headrace.Order or a Mixture had when it was drawn
        self._warned: set[str] = set()

    # ---- the epoch ----

    @property
    def epoch(self) -> int:  # torch's class sets it
        """The epoch: that of the headrace.Order or the Mixture that is dealt, or else the one that was set, 0 before
        that."""
        found = whole_order.epoch_of(self.dataset)
        return self._epoch if found is None else found

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, of the sampler that is dealt too if it has set_epoch. Call it before each epoch."""
        self._epoch = operator.index(epoch)
        whole_order.set_epoch(self.dataset, self._epoch)
        if self._follows_epoch():  # another sampler gives the order that is drawn already in its next epoch
            self._drawn = None

    def _follows_epoch(self) -> bool:
        """Returns whether set_epoch changes the order."""
        return self.is_seeded or whole_order.has_epochs(self.dataset)

    def draw(self) -> Sequence[Any]:
        """Returns the whole order of the epoch: the entries of all ranks, each of which is an index or a batch. Later
        calls return the same one until an epoch has used it, or set_epoch changes it."""
        if self._drawn is None or self._drawn_in != whole_order.epoch_of(self.dataset):
            self._drawn = whole_order.draw(self.dataset, self.seed if self.is_seeded else None, self.epoch)
            self._drawn_for, self._drawn_in = None, whole_order.epoch_of(self.dataset)
            self._check_length(len(self._drawn))
        return self._drawn

    def begin_epoch(self) -> Sequence[Any]:
        """Returns the whole order of the epoch that begins now. It is drawn again if an epoch has used it."""
        self._check_place()
        dealt_again.check(self)
        before, before_for = self._drawn, self._drawn_for
        if before_for is not None:
            self._drawn = None
        entries = self.draw()
        self._drawn_for = self.epoch
        if before is not None and before_for == self.epoch:
            self._check_set_epoch(before, entries)
        return entries

    def _check_place(self) -> None:
        """Raises RuntimeError if there are ranks now, but were none when this sampler was made."""
        if self.place.source != where.NOWHERE:
            return
        now = where.find()
        if now.world_size != self.num_replicas:
            raise RuntimeError(
                "headrace.torch.per_rank: this sampler was made when nothing said that there are several ranks, but "
                f"now this is rank {now.rank} of {now.world_size} ({now.source}); call per_rank after "
                "torch.distributed.init_process_group() (with Lightning: in the hook that makes the loader), or give "
                "num_replicas and rank" + help_on("rank-unknown")
            )

    def _check_set_epoch(self, before: Sequence[Any], entries: Sequence[Any]) -> None:
        if self.shuffle and self.num_replicas > 1 and "set_epoch" not in self._warned and before == entries:
            self._warn_once(
                "set_epoch",
                f"epoch {self.epoch} begins again, in the same order; call set_epoch(epoch) of {self!r} before each "
                "epoch" + help_on("set-epoch"),
            )

    def _check_length(self, count: int) -> None:
        size = whole_order.length_of(self.dataset)
        if size is not None and size != count:
            self._warn_once(
                "__len__",
                f"{type(self.dataset).__name__} has a __len__ of {size}, but gave {count} entries; len() of this "
                "sampler and of its loader is wrong before an epoch begins; correct its __len__",
            )

    def _warn_once(self, subject: str, text: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warn.warn_user(f"headrace.torch.per_rank: {text}")

    # ---- the part of this rank ----

    @property
    def machines(self) -> list[int] | None:
        """The numbers of ranks and of ranks of a machine, if each machine keeps its samples; otherwise None."""
        return None if self.stay is None else [self.num_replicas, self.stay]

    def arrange(self, entries: Sequence[Any], machines: list[int] | None) -> Sequence[Any]:
        """Returns the whole order as it is dealt. machines: the attribute of that name when the epoch began, because an
        epoch that goes on with other machines keeps the order that it began with."""
        if machines is None:
            return entries
        from headrace.sampling._machines import arranged

        return arranged(entries, *machines)

    def deal(self, n: int, position: int = 0) -> _deal.Deal:
        """Deals an order of n entries from a position on, and returns (first, step, count, once): this rank has `count`
        entries, at the positions first, first + step, ... modulo n. The first `once` of them are no repeats."""
        return _deal.deal(n, position, self.num_replicas, self.rank, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        # A generator, because torch makes iterators that it does not use: the first next() draws the order.
        entries = self.arrange(self.begin_epoch(), self.machines)
        n = len(entries)
        first, step, count, once = self.deal(n)
        yield from entries[first : first + once * step : step]
        yield from (entries[(first + k * step) % n] for k in range(once, count))

    def __len__(self) -> int:
        return self.num_samples

    @property
    def num_samples(self) -> int:  # type: ignore[override] # torch's class sets it once
        """The number of entries of each rank."""
        return self.deal(self._count_entries())[2]

    @property
    def total_size(self) -> int:  # type: ignore[override] # torch's class sets it once
        """The number of entries of all ranks, with those that are repeated."""
        return self.num_samples * self.num_replicas

    @property
    def repeats(self) -> int:
        """The number of entries, at the end of the part of this rank, that another rank or this one has already."""
        _, _, count, once = self.deal(self._count_entries())
        return count - once

    @property
    def sampler(self) -> PerRank:
        """This sampler: frameworks call `loader.batch_sampler.sampler.set_epoch`."""
        return self

    def _count_entries(self) -> int:
        size = None if self._drawn is not None else whole_order.length_of(self.dataset)
        return len(self.draw()) if size is None else size

    def __repr__(self) -> str:
        place = f"num_replicas={self.num_replicas}, rank={self.rank}"
        seed = f", seed={self.seed}" if self.is_seeded else ""
        stay = "" if self.stay is None else f", stay={self.stay}"
        return f"headrace.torch.per_rank({type(self.dataset).__name__}, tail={self.tail!r}, {place}{seed}{stay})"


def _check_seed(seed: Any) -> int | None:
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        raise TypeError(f"headrace.torch.per_rank: seed should be an int or None, but got {seed!r}") from None


def _check_stay(stay: Any, place: where.RankPlace, sampler: Any) -> int | None:
    """Returns how many ranks a machine has, or None."""
    if stay is None:
        return None
    whole_order.check_has_each_once(sampler)
    count = rank_places.ranks_of_machine(place) if stay == "machine" else stay
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(
            f'headrace.torch.per_rank: stay should be "machine", the number of ranks of a machine, or None, but got '
            f"{stay!r}"
        ) from None
    if number < 1 or place.world_size % number:
        raise ValueError(
            f"headrace.torch.per_rank: stay={number} should be the number of ranks of a machine, the same on each, and "
            f"divide the number of all ranks, {place.world_size}"
        )
    return number


def per_rank(
    sampler: Any,
    *,
    tail: str = "pad",
    num_replicas: int | None = None,
    rank: int | None = None,
    seed: int | None = None,
    group: Any = None,
    mesh: Any = None,
    stay: str | int | None = None,
) -> PerRank:
    """Returns a sampler that gives each rank its part of the order of another sampler, and all ranks equally many.

    Use it as `sampler=per_rank(sampler)`, or as `batch_sampler=per_rank(batch_sampler)`: entry k * num_replicas + rank
    of the order is entry k of the rank, whether it is an index or a batch. The whole order is drawn on each rank at the
    start of an epoch, so it has to be the same on each rank, and to have an end.

    Args:
        sampler: a sampler or batch sampler that gives the order of all ranks. Batches are dealt whole, and may have
            different sizes.
        tail: "pad": ranks that have one entry less get one more, from the head of the order. "drop": the entries that
            do not suffice for all ranks are left out. "exact": each entry counts once. Some ranks still get one more,
            so that all ranks make the same number of steps, but the sampler knows that it is a repeat (`repeats`).
        num_replicas, rank: the number of ranks and the rank of this process. If they are not given, they are found in
            torch.distributed's default group, or in the variables of torchrun, Slurm, Open MPI and MPICH. Without
            them, it is rank 0 of 1.
        seed: seeds, together with the epoch, the random numbers that the sampler draws. Without it, a sampler that
            draws from the random numbers of the process raises ValueError.
        group, mesh: the data-parallel ranks as a group or a DeviceMesh of torch.distributed, in place of num_replicas
            and rank.
        stay: "machine": each machine gets the same samples in every epoch, in another order, so that it reads and keeps
            only its part of the files. Machine m has neighbouring samples: of n, those from about m / machines * n on.
            The samples of a machine then come together in no batch with those of another one. The sampler has to give
            each of the samples 0, 1, ..., n - 1 once. A number says how many ranks a machine has, if that is not found;
            ranks of a machine follow each other. After a resume with another number of ranks or machines, what is left
            of the epoch is dealt to all ranks as it is, and the next epoch to the machines that there are then.

    Raises TypeError and ValueError for arguments that are wrong, and for samplers that are dealt already.
    """
    if tail not in TAILS:
        raise ValueError(f"headrace.torch.per_rank: tail should be one of {TAILS}, but got {tail!r}")
    number = _check_seed(seed)
    whole_order.check(sampler, is_seeded=number is not None)
    place = rank_places.find(num_replicas, rank, group, mesh)
    return PerRank(sampler, tail, place, number, _check_stay(stay, place, sampler))
