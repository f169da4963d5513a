# SPDX-License-Identifier: Apache-2.0
"""headrace.Plan: batches by token budgets, buckets or packing, with the same number of steps on every rank."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._ranks import accelerate_shards, where
from headrace.sampling._plan_indices import BatchIterator
from headrace.sampling._plan_inputs import order_of
from headrace.sampling._plan_lengths import check_lengths
from headrace.sampling._plan_limits import check_int
from headrace.sampling._plan_report import PlanReport, report_of
from headrace.sampling._plan_settings import Longest, PlanSettings
from headrace.sampling._plan_table import Division, Rest, Samples, check_digest, rest_of

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

    from headrace.sampling._plan_lengths import SampleLengths

_LEAST, _END = -(2**63), 2**64  # of seeds and epochs, as in Order
_KEPT = 4  # plans of an epoch, whose places in a state are asked for again


def _place_of(world_size: Any, rank: Any) -> where.RankPlace:
    """Returns the place that the arguments say, or that is found around this process. Raises TypeError, ValueError."""
    if world_size is not None:
        world_size = check_int("world_size", world_size, 1, 2**24)
    if rank is not None:
        rank = check_int("rank", rank, 0, (world_size or 2**24) - 1)
    if world_size is not None and rank is not None:
        return where.find(world_size, rank)
    found = where.find()
    for name, given, seen in (("world_size", world_size, found.world_size), ("rank", rank, found.rank)):
        if given not in (None, seen):
            raise ValueError(
                f"Plan: {name}={given} is given alone, but this process is rank {found.rank} of {found.world_size} "
                f"(found in: {found.source}); give both world_size and rank"
            )
    return found


class Plan:
    """The batches of an epoch, by the lengths of the samples: each sample once, and as many steps on every rank.

    A plan is the batch sampler of the rank that it is in: `DataLoader(dataset, batch_sampler=plan)`, also of
    headrace.Loader and of torch's own loader. `plan.rank(r)` is that of rank r. Iteration gives lists of indices, and
    `len(plan)` is the number of steps of the epoch. All ranks make the same plan, because it depends on the arguments,
    the seed and the epoch only.

    Args:
        lengths: the length of each sample, shape (n,): an array, a list or a tensor of ints from 0 to 2**31 - 1. Or a
            dict of one to four such arrays by name, such as {"text": tokens, "patches": patches}. max_sum, max_padded
            and pack are dicts then, with limits by the same names; a batch keeps each of them. A length without a limit
            only costs.
        max_sum: the most that the lengths of a batch add up to, for batches without padding.
        max_padded: the most that the longest length of a batch times its number of samples is (fairseq's max_tokens).
        max_batch: the most samples of a batch; alone, or with max_sum, max_padded or pack.
        buckets: pairs (longest, batch size) such as [(100, 32), (220, 24), (None, 16)]: 32 samples of lengths up to
            100, 24 of lengths up to 220, and 16 of any length. The lengths rise, and the batch sizes do not.
        pack: the capacity of a row: a batch is a row of samples laid end to end, which is filled as well as possible.
        order: None: all samples, shuffled in each epoch. An array or list of indices: these samples, shuffled. A
            headrace.Order or a Mixture: its order. A sampler (an object with __iter__ and without __getitem__): what it
            gives in each epoch; random numbers are seeded by seed and epoch while it draws. The state of a loader
            contains that of the sampler: its generators, and its own if it has state_dict and load_state_dict.
        cost_linear, cost_quadratic: a sample of length L costs cost_linear * L + cost_quadratic * L**2. The costs of
            the ranks are balanced within each step.
        cost: of several lengths, a dict of pairs (linear, quadratic) by name, such as {"text": (1, 0), "patches":
            (64, 1)}; a sample costs the sum, and a name that is not given costs nothing. None: (1, 0) for each name. Or
            what each sample costs, measured: an array of finite numbers above 0, shape (n,).
        balance: "micro_batch": the batches of the ranks cost about the same, one by one. "optimizer_step": the
            `accumulate` batches of each rank do, together, for ranks that meet only at the end of an optimizer step.
        window: so many samples of the order, or of a bucket, are sorted by length together. None: 2,500 for each batch
            of a step, and 20,000 at least; with pack: all samples. With several lengths and pack, or max_sum alone: a
            batch is filled from so many samples; None: 2,048. Smaller windows give batches that differ more from
            epoch to epoch, with more padding. 1: the batches of a bucket are random ones of its samples.
        world_size, rank: the number of data-parallel ranks, and the rank of this process. None: they are found as
            headrace.torch.per_rank finds them.
        accumulate: micro-batches of an optimizer step. The number of steps is a multiple of it, and an optimizer step
            has the same samples on any number of ranks if world_size * accumulate is the same.
        tail: what becomes of the samples at the end that do not suffice for a full step. "drop": they are left out.
            "exact": they are a shorter step; a rank that would have no sample gets one again. "pad": as "exact", but
            samples come again until all ranks of the last step can have equally many: fewer than
            world_size * accumulate samples. headrace's loaders give repeats the weight 0 (`loader.last.weights`).
        oversized: a sample that is longer than max_sum, max_padded, pack or the longest bucket is an "error", or it is
            left out ("skip"), or it is a batch of its own ("alone").
        seed, epoch: ints of 64 bits; the shuffled order depends on them. `set_epoch` begins another epoch.

    `settings` and `place` are what was given and found, after checks. Raises TypeError and ValueError for arguments
    that are wrong. The algorithms and their sources are in headrace/sampler.h (hr_plan_new).
    """

    def __init__(
        self,
        lengths: Any,
        *,
        max_sum: int | Mapping[str, int] | None = None,
        max_padded: int | Mapping[str, int] | None = None,
        max_batch: int | None = None,
        buckets: Sequence[tuple[int | None, int]] | None = None,
        pack: int | Mapping[str, int] | None = None,
        order: Any = None,
        cost_linear: int = 1,
        cost_quadratic: int = 0,
        cost: Any = None,
        balance: str = "micro_batch",
        window: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        accumulate: int = 1,
        tail: str = "pad",
        oversized: str = "error",
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in PlanSettings.__dataclass_fields__}
        is_measured = cost is not None and not isinstance(cost, Mapping)
        self._lengths, names = check_lengths(lengths, cost if is_measured else None)
        given["cost"] = self._lengths.all.cost_digest if is_measured else cost
        self.settings = PlanSettings.checked({**given, "names": names}, names)
        self.n = self._lengths.all.n
        self.seed = check_int("seed", seed, _LEAST, _END - 1)
        self._epoch = check_int("epoch", epoch, _LEAST, _END - 1)
        check_int("seed + epoch", self.seed + self._epoch, _LEAST, _END - 1)
        self.place = _place_of(world_size, rank)
        self._order = order_of(order, self.n, self.seed)
        if self._order.is_constant:
            self._check_oversized(self._order.constant())
        self._forget()

    def _forget(self) -> None:
        self._samples: Samples | None = None
        self._rests: dict[Any, Rest] = {}
        self._seconds = 0.0

    def _check_oversized(self, samples: np.ndarray[Any, Any] | None) -> None:
        """Raises ValueError if some of the samples of an epoch are too long. None: of all."""
        import numpy as np

        if self.settings.oversized == "alone":
            return
        lengths = self._lengths.all if samples is None else self._lengths.all.of(samples)
        longer = [np.flatnonzero(lengths.arrays[limit.name] > limit.most) for limit in self.settings.longest]
        exceed = np.unique(np.concatenate(longer)) if longer else np.zeros(0, np.int64)
        if not len(exceed) or (self.settings.oversized == "skip" and len(exceed) < lengths.n):
            return
        raise ValueError(_describe_oversized(self.settings.longest, longer, lengths, len(exceed), samples))

    # ---- the epoch ----

    @property
    def epoch(self) -> int:
        """The epoch; set_epoch changes it."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch. Call it before each epoch, with the same number on every rank."""
        number = check_int("epoch", epoch, _LEAST, _END - 1)
        check_int("seed + epoch", self.seed + number, _LEAST, _END - 1)
        if number != self._epoch:
            self._epoch = number
            self._forget()

    def rank(self, rank: int) -> Self:
        """Returns the plan of another rank, which is planned once for both."""
        other = copy.copy(self)
        other.place = where.RankPlace(
            check_int("rank", rank, 0, self.place.world_size - 1), self.place.world_size, None, None, "Plan.rank"
        )
        return other

    @property
    def num_replicas(self) -> int:
        """The number of ranks, by the name that torch's DistributedSampler has for it."""
        return self.place.world_size

    @property
    def sampler(self) -> Self:
        """This plan: frameworks call `loader.batch_sampler.sampler.set_epoch`."""
        return self

    @property
    def drop_last(self) -> bool:
        """True if tail is "drop"."""
        return self.settings.tail == "drop"

    # ---- planning ----

    def rest(self, epoch: int, earlier: list[Division], division: Division) -> Rest:
        """Returns what earlier divisions of an epoch have left for another one. Raises StateError."""
        before = ((one.world, one.settings, one.steps, one.digest) for one in earlier)
        key = (epoch, *before, division.world, division.settings)
        if key not in self._rests:
            begin = time.perf_counter()
            found = rest_of(self._samples_of(epoch), earlier, division)
            while len(self._rests) >= _KEPT:
                del self._rests[next(iter(self._rests))]
            self._rests[key] = found
            self._seconds = time.perf_counter() - begin
        check_digest(division, self._rests[key].table)
        return self._rests[key]

    def state_of_order(self, epoch: int) -> str | None:
        """Returns the state of the sampler that gives the order, before it gave that of an epoch, or None."""
        return self._order.state(epoch)

    def state_of_next_order(self) -> str | None:
        """Returns the state of the sampler that gives the order, before its next epoch, or None."""
        return self._order.state_of_next()

    def continue_order(self, epoch: int, state: Any, following: Any = None) -> None:
        """Lets an epoch have the order that it had when state_of_order was this. following: state_of_next_order at its
        end. Raises StateError."""
        self._order.continue_from(epoch, state, following)
        self._forget()

    def _samples_of(self, epoch: int) -> Samples:
        if self._samples is None or self._samples.epoch != epoch:
            order = self._order.samples(epoch)
            if not self._order.is_constant:
                self._check_oversized(order)
            lengths = self._lengths.all.of(self._order.numbers(order))
            self._samples = Samples(order, lengths, self.seed, epoch)
        return self._samples

    def _whole(self) -> Rest:
        return self.rest(self._epoch, [], Division(self.place.world_size, self.settings))

    def check_dataset(self, dataset: Any) -> None:
        """Raises ValueError if a dataset has fewer samples than there are lengths. Warns if it has more. Loaders call
        it."""
        if not lookup.has_special(dataset, "__len__"):
            return
        count = len(dataset)
        text = f"the plan has the lengths of {self.n:,} samples, but the dataset has {count:,}"
        if count < self.n:
            raise ValueError(f"headrace: {text}; give the plan the lengths of this dataset")
        if count > self.n:
            warn_user(f"headrace: {text}; the others are never read")

    def begin_epoch(self) -> None:
        """Raises RuntimeError if there are ranks now, but were none when this plan was made, and ValueError if the
        sources of a mixture have changed."""
        self._order.check_sizes()
        if self.place.source != where.NOWHERE:
            return
        now = where.find()
        if now.world_size != self.place.world_size:
            raise RuntimeError(
                "headrace.Plan: this plan was made when nothing said that there are several ranks, but now this is "
                f"rank {now.rank} of {now.world_size} ({now.source}); make it after "
                "torch.distributed.init_process_group() "
                "(with Lightning: in the hook that makes the loader), or give world_size and rank"
                + help_on("rank-unknown")
            )

    def __iter__(self) -> Iterator[list[int]]:
        return _Iterator(self)

    def batches(self) -> Iterator[list[int]]:
        """Returns an iterator over the batches of this rank, or of all ranks if accelerate deals them. Raises
        RuntimeError if accelerate divides each batch."""
        self.begin_epoch()
        rest = self._whole()
        dealing = self._dealing()
        if dealing is None:
            return BatchIterator(rest, self.place.rank)
        return iter([rest.table.batch(number) for number in range(rest.table.batch_count)])

    def _dealing(self) -> accelerate_shards.Dealing | None:
        dealing = accelerate_shards.find() if self.place.world_size > 1 else None
        if dealing is not None and not dealing.is_whole_batches:
            raise RuntimeError(
                f"headrace: accelerate's prepare() divides each batch of this plan among its {dealing.processes} "
                "processes, so the batches of a rank would not be those that were planned; use "
                "DataLoaderConfiguration(dispatch_batches=False, split_batches=False), or call "
                "headrace.torch.install() before prepare()" + help_on("accelerate")
            )
        return dealing

    def __len__(self) -> int:
        rest = self._whole()
        return rest.count_steps() if self._dealing() is None else rest.table.batch_count

    # ---- what it is ----

    def report(self) -> PlanReport:
        """Returns what the plan of this epoch costs: see PlanReport, which prints as a table."""
        rest = self._whole()
        return report_of(rest.table, self.settings, self.place.world_size, self._seconds)

    def digest_of(self, n: int) -> str | dict[str, str]:
        """Returns a digest of the lengths of the first n samples (BLAKE2b, 64 bits), for each name if there are
        several."""
        return self._lengths.digest(n)

    def digest_of_costs(self, n: int) -> str | None:
        """Returns a digest of the measured costs of the first n samples, or None."""
        return self._lengths.first(n).all.cost_digest

    def identity(self) -> dict[str, Any]:
        """Returns what the order of this epoch is made from, as a part of a state."""
        return {
            "kind": "Plan",
            "n": self.n,
            "seed": self.seed,
            "epoch": self._epoch,
            "lengths": self.digest_of(self.n),
            "order": self._order.describe(),
        }

    def of_first(self, n: int) -> Plan | None:
        """Returns the plan of the first n samples, or None if its order is not known for them."""
        order = self._order.of_first(n) if n <= self.n else None
        if order is None:
            return None
        other = copy.copy(self)
        other._lengths, other.n = self._lengths.first(n), n
        if self._lengths.measured is not None:
            other.settings = replace(self.settings, cost=other._lengths.all.cost_digest)
        other._order = order
        other._forget()
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None, "_rests": {}}

    def __repr__(self) -> str:
        fields = {name: value for name, value in self.settings.as_fields().items() if name != "algorithm"}
        place = {"world_size": self.place.world_size, "rank": self.place.rank, "seed": self.seed, "epoch": self._epoch}
        text = ", ".join(f"{name}={value!r}" for name, value in {**fields, **place}.items())
        return f"headrace.Plan({self.n:,} lengths, {text})"


def _describe_oversized(
    limits: list[Longest], longer: list[Any], lengths: SampleLengths, count: int, samples: Any
) -> str:
    """Returns what says that samples are too long: how many of which length, and the first one of each."""
    n, found = lengths.n, []
    for limit, exceed in zip(limits, longer, strict=True):
        if not len(exceed):
            continue
        array, what = lengths.arrays[limit.name], f"{limit.name} " if limit.name else "length "
        first = int(exceed[0] if samples is None else samples[exceed[0]])
        how_many = "all" if len(exceed) == n else f"{len(exceed):,} of {n:,}"
        found.append(
            f"{how_many} samples are longer than {limit.text} ({limit.most:,}): sample {first} has {what}"
            f"{int(array[exceed[0]]):,}, the longest one {int(array.max()):,}"
        )
    together = f"; all {n:,} together" if count == n and len(found) > 1 else ""
    return (
        f"Plan: {'; '.join(found)}{together}; raise it, or give oversized='skip' to leave them out or 'alone' for "
        "batches of their own" + help_on("plan-too-long")
    )


class _Iterator:
    """Plans when the first batch is asked for, because torch makes iterators that it does not use."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._batches: Iterator[list[int]] | None = None

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> list[int]:
        if self._batches is None:
            self._batches = self._plan.batches()
        return next(self._batches)
