# SPDX-License-Identifier: Apache-2.0
"""headrace.Mixture: a sampler that mixes datasets by weights, to the sample."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._base import lookup
from headrace._samples.mixed import MixedDataset, is_mixed, mixed
from headrace.sampling import _mixture_inputs as inputs
from headrace.sampling import _mixture_ranks as ranks
from headrace.sampling._index_sequence import MASK, IndexSequence
from headrace.sampling._mixture_algorithm import ALGORITHM, check_algorithm
from headrace.sampling._mixture_report import MixtureReport, report_of
from headrace.sampling._state import StateError

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

_UNTIL = {"first": _core.MIXTURE_FIRST, "all": _core.MIXTURE_ALL, "length": _core.MIXTURE_LENGTH}


class _Whole:
    """The whole order of an epoch, which is made when it is first read. A Mixture and its slices share it."""

    __slots__ = ("_described", "_made", "end", "epoch", "names", "seed", "sizes", "weights")

    def __init__(
        self, names: list[str], sizes: list[int], weights: list[int], end: tuple[str, int], seed: int, epoch: int
    ) -> None:
        self.names, self.sizes, self.weights = names, sizes, weights
        self.end, self.seed, self.epoch = end, seed, epoch
        self._made: _core.Order | None = None
        self._described: Any = None

    def get(self) -> _core.Order:
        if self._made is None:
            until, length = self.end
            sources = tuple(zip((name.encode() for name in self.names), self.sizes, self.weights, strict=True))
            self._made = _core.Order.mixture(sources, _UNTIL[until], length, self.seed & MASK, self.epoch)
        return self._made

    def look(self) -> tuple[int, int, int, tuple[tuple[int, int, int], ...]]:
        """Returns the length of the epoch, the number of all samples, the period, and for each source its share, what
        earlier epochs have read of it, and what this one reads."""
        if self._described is None:
            self._described = self.get().look()
        return self._described  # type: ignore[no-any-return]

    def with_epoch(self, epoch: int) -> _Whole:
        return _Whole(self.names, self.sizes, self.weights, self.end, self.seed, epoch)

    def settings(self) -> tuple[Any, ...]:
        return self.names, self.sizes, self.weights, self.end, self.seed, self.epoch

    def describe(self) -> str:
        """Returns the sources as they are in a state: names, sizes and shares."""
        parts = zip(self.names, self.sizes, self.look()[3], strict=True)
        return ", ".join(f"{name!r}: {size} x {share}" for name, size, (share, *_) in parts)

    def key(self) -> tuple[Any, ...]:
        return "Mixture", self.describe(), self.look()[0], self.seed, self.epoch


class Mixture(IndexSequence):
    """A sampler that mixes datasets by weights: `DataLoader(mix.dataset, 64, sampler=mix)`.

    `mix.dataset` has the datasets laid end to end, and the mixture is a sequence of its indices: iteration gives ints,
    `mix[i]` is one, `mix[rank::world_size]` is the part of a rank, which computes nothing until it is read, and
    `headrace.torch.per_rank(mix)` deals it. `headrace.Plan(mix.lengths, order=mix)` makes batches of it by length.

    After each 64 samples of an epoch, and at its end, each source has come as often as its weight says since the
    beginning of epoch 0, to the sample: the difference is at most 1 - 1 / (2k - 2) for k sources. Within these runs of
    64 the samples are shuffled. Each source has an order of its own, by seed and name, which is another one in
    each pass over it; a pass has each sample once before the next one begins, and an epoch goes on where the one before
    it has ended. If a source is read again in the same epoch,
    `len(mix.dataset)` is added to its indices, once for each time: they have the same samples, and with rng="sample"
    other random numbers.

    Args:
        sources: datasets by name, with `__getitem__` and `__len__`. Their order is that of `mix.dataset`.
        weights: a number above 0 for each name. They count as they are written (0.7 is 7/10), if the sources' shares of
            a period of at most 65,536 samples can be exact; else the nearest shares are taken, at least 1, which
            `mix.report()` has.
        seed: an int of 64 bits. epoch: an int from 0 on; `set_epoch` begins another one.
        until: an epoch ends when one source was read once ("first", the default), or when all were ("all"); all epochs
            are as long as the first one. length: or after so many samples.

    All of it depends on names, sizes, weights, seed and epoch only, so it is the same on each rank. Raises TypeError
    and ValueError for arguments that are wrong. The algorithms and their sources are in headrace/sampler.h
    (hr_mixture_new).
    """

    __slots__ = ("_begin", "_newest", "dataset")
    headrace_order_by_epoch = True  # its state is not needed to make the order again
    _whole: _Whole
    dataset: MixedDataset

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, Any],
        *,
        seed: int = 0,
        epoch: int = 0,
        until: str | None = None,
        length: int | None = None,
    ) -> None:
        datasets = inputs.check_sources(sources)
        names = list(datasets)
        numbers = inputs.check_weights(weights, names)
        end = inputs.check_end(until, length)
        seed, epoch = inputs.check_seed(seed), inputs.check_epoch(epoch)
        sizes = [len(one) for one in datasets.values()]
        self._whole = _Whole(names, sizes, numbers, end, seed, epoch)
        self._positions = range(self._whole.look()[0])
        self.dataset = mixed(datasets)
        self._forget()

    def _forget(self) -> None:
        self._begin = 0  # where the next iterator begins, after load_state_dict
        self._newest: Any = None

    # ---- the epoch ----

    @property
    def n(self) -> int:
        """The number of samples of the whole epoch; that of a slice is its len()."""
        return self._whole.look()[0]

    def set_epoch(self, epoch: int) -> None:
        """Changes the order to that of another epoch. Slices and iterators that exist stay as they are."""
        number = inputs.check_epoch(epoch)
        if number != self.epoch:
            whole = self._whole.with_epoch(number)
            whole.get()  # raises ValueError if the positions of all epochs do not fit into 63 bits
            self._whole = whole
            self._forget()

    def _with(self, positions: range) -> Self:
        other = super()._with(positions)
        other.dataset = self.dataset
        other._forget()
        return other

    def __iter__(self) -> Iterator[int]:
        self.dataset.check_sizes()
        if self._newest is not None and self._given() != self._begin:
            self._begin = 0
        ranks.warn_of_single_source(self)
        rest = self._positions[self._begin :]
        self._newest = self._whole.get().iterate(rest.start if rest else 0, rest.step, len(rest))
        return self._newest  # type: ignore[no-any-return]

    def __contains__(self, value: object) -> bool:
        """Returns True if an index is in this epoch, or in this slice of it. It is searched from the beginning, and is
        no iteration that a state counts."""
        return any(index == value for index in self._iterate(self._positions))

    def count(self, value: Any) -> int:
        """Returns 1 if an index is in this epoch, or in this slice of it, otherwise 0."""
        return int(value in self)

    # ---- what it has ----

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """The length of each sample of `mix.dataset`, int64, shape (len(mix.dataset),), from the sources' `lengths`.
        Raises ValueError if a source has none."""
        import numpy as np

        parts = []
        for name, dataset, size in zip(self._whole.names, self.dataset.datasets, self._whole.sizes, strict=True):
            found = lookup.attribute(dataset, "lengths")
            if found is None or np.shape(found) != (size,):
                raise ValueError(
                    f"Mixture: source {name!r}, a {type(dataset).__name__}, has no `lengths` with the length of each "
                    "sample; headrace.lengths(mix.dataset) measures them"
                )
            parts.append(np.asarray(found).astype(np.int64))
        return np.concatenate(parts)

    def report(self) -> MixtureReport:
        """Returns what this epoch has of each source: see MixtureReport, which prints as a table."""
        whole = self._whole
        return report_of(whole.look(), whole.names, whole.sizes, whole.weights, whole.epoch)

    def describe_sources(self) -> str:
        """Returns the names, sizes and shares of the sources, as a part of a state."""
        return self._whole.describe()

    def check_dataset(self, dataset: Any) -> None:
        """Raises ValueError for the dataset of another mixture. Any index from 0 on has a sample there, so no
        IndexError would say so."""
        mine = self.dataset
        parts = [(one.names, one.cumulative_sizes) for one in (mine, dataset) if is_mixed(one)]
        if len(parts) == 2 and parts[0] != parts[1]:
            raise ValueError(
                f"headrace: the indices of this Mixture are those of {mine!r}, but the loader has {dataset!r}; give "
                "it the `dataset` of the same Mixture"
            )

    # ---- its state ----

    def _given(self) -> int:
        """Returns how many indices the next iterator would leave out to go on after the newest one."""
        if self._newest is None:
            return self._begin
        return 0 if self._newest.has_ended else len(self) - operator.length_hint(self._newest)

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, and how many of its indices the newest iterator has given. A loader takes indices ahead of
        its batches, so save the state of headrace's loaders (`loader.state_dict()`), which counts batches."""
        whole = self._whole
        given = {"epoch": whole.epoch, "given": self._given(), "length": self.n}
        return {**given, "seed": whole.seed, "sources": whole.describe(), "algorithm": ALGORITHM}

    def check_begins(self, reader: str) -> None:
        """Raises ValueError if a state was loaded that only an iterator over this sequence would continue, but `reader`
        reads it from its first index on."""
        if self._begin:
            raise ValueError(
                f"headrace: the Mixture has loaded a state (load_state_dict) to go on after {self._begin:,} indices, "
                f"but {reader} begins at the first one and would give them again; headrace's loaders go on from one "
                "of their own (loader.load_state_dict); without one, make the Mixture again, and call set_epoch and "
                "loader.skip(steps)"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the epoch of a state, and lets the next iterator begin where the state was taken. Raises StateError if
        the state is that of another mixture."""
        mine = self.state_dict()
        if not isinstance(state, Mapping) or {*state, "algorithm"} != mine.keys():
            raise StateError("headrace: this is not a state of a Mixture, as its state_dict() returns it")
        check_algorithm(state.get("algorithm", 1))
        for name in ("seed", "sources", "length"):  # an epoch begins in the sources where those before it have ended
            if state[name] != mine[name]:
                raise StateError(
                    f"headrace: this state was taken with {name} {state[name]!r}, and this Mixture has {mine[name]!r}; "
                    "make it of the same sources, with the same weights, seed and length"
                )
        epoch, given = inputs.check_epoch(state["epoch"]), inputs.check_int("given", state["given"], 0, len(self))
        self.set_epoch(epoch)
        self._forget()
        self._begin = given

    def __repr__(self) -> str:
        sources = f"{{{self._whole.describe()}}}"
        settings = f"length={self.n}, seed={self.seed}, epoch={self.epoch}, algorithm={ALGORITHM}"
        text = f"headrace.Mixture({sources}, {settings})"  # states of plans and of per_rank know the order by it
        return text + self._describe_slice(self.n)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._whole.settings(), self._positions, self.dataset, self._begin

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        settings, self._positions, self.dataset, begin = state
        self._whole = _Whole(*settings)
        self._forget()
        self._begin = begin
