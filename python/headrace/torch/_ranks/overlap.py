# SPDX-License-Identifier: Apache-2.0
"""Warns if the samplers of several ranks, which deal the samples themselves, give some of them to several ranks.

Such a sampler shuffles by random numbers that differ from rank to rank, for example. Its ranks read as many samples as
there are, but some come on several ranks and others on none. That is looked for in two ways, and no rank waits for
another one:

- A rank shows the others its first indices (_ranks/first_indices.py) in the store of torch.distributed, or on the
  board. The last rank compares them.
- When a rank has drawn its last index of an epoch, it adds the sum of its squared indices to a number in the store. The
  last rank compares the sum with that of all samples.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from headrace._base import lookup, signals
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
from headrace._ranks.first_indices import FirstIndices, count_shared
from headrace._ranks.job import attempt
from headrace.sampling._epoch_indices import Drawn
from headrace.torch._own import groups, loaders, table
from headrace.torch._samplers.foreign import ForeignIndices, samplers_of
from headrace.torch._samplers.whole_order import length_of

try:
    from headrace.torch._ranks import agree
except ImportError:  # the extension cannot be loaded: then no ranks are compared
    agree = None  # type: ignore[assignment]

_EPOCHS = 2  # so many epochs of a loader are looked at: another order on each rank shows in the first one
_MOST_SAMPLES = 1 << 24  # a byte is needed for each
_MODULUS = 1 << 40  # the sums of all ranks together fit into the 64 bits of a number in the store
_SIZES = ("num_replicas", "world_size")
_REPEATS = ("num_repeats", "repetitions")  # how often samplers of repeated augmentation give each sample


class Cover:
    """The indices that this rank has drawn in an epoch."""

    def __init__(self, samples: int) -> None:
        self.count = self.squares = 0
        self.is_known = True  # all indices were positions in the dataset, each once
        self._seen = bytearray(samples)

    def note(self, index: Any) -> None:
        if type(index) is int and 0 <= index < len(self._seen) and not self._seen[index]:
            self._seen[index] = 1
            self.count += 1
            self.squares += index * index
        else:
            self.is_known = False


class _Noted:
    """Iterates over items, calls `note` with each, and `finish` at their end."""

    def __init__(self, items: Iterable[Any], note: Callable[[Any], Any], finish: Callable[[], None]) -> None:
        self._items, self._note, self._finish = items, note, finish

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(map(self._note, self._items), _AtEnd(self._finish))


class _AtEnd:
    """An iterator without items, which calls a function when it is asked for one."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._function()
        raise StopIteration


def dealing_of(sampler: Any) -> tuple[Any, int, int] | None:
    """Returns the sampler that gives the part of one of several ranks, the rank and the number of ranks; or None. It is
    None for samplers that repeat samples on purpose."""
    found = samplers_of(sampler)
    if any(_repeats(one) for one in found):
        return None
    for one in found:
        sizes = (lookup.attribute(one, name) for name in _SIZES)
        rank, size = lookup.attribute(one, "rank"), next((size for size in sizes if type(size) is int), 1)
        if type(rank) is int and size > 1:
            return one, rank, size
    return None


def _repeats(sampler: Any) -> bool:
    if lookup.attribute(sampler, "replacement") or lookup.has_attribute(sampler, "weights"):
        return True
    counts = (lookup.attribute(sampler, name) for name in _REPEATS)
    return any(type(count) is int and count > 1 for count in counts)


class _Part:
    """Notes what this rank draws in an epoch, and compares it. key: of the loader in the store. epoch: names the epoch
    there. batch_size: 0: the sampler gives batches."""

    def __init__(
        self, position: Any, dealing: tuple[Any, int, int], samples: int, batch_size: int, key: str, epoch: str
    ) -> None:
        self._sampler, self._rank, self._ranks = dealing
        self._samples = samples
        self._told, self._key = f"headrace/overlap/{key}/told", f"headrace/overlap/{key}/{epoch}"
        self._position = weakref.ref(position)  # the position has the epoch, which has this part
        self._begun = 0 if position.agreement is None else position.agreement.begun_count
        self._has_store = groups.default_group_size() >= self._ranks
        self._cover = Cover(samples) if self._has_store and samples <= _MOST_SAMPLES else None
        self._first = FirstIndices(samples, self._ranks, batch_size, self._show_first)
        self._is_alone = True  # no other process has the same part, as with tensor parallelism

    def note(self, index: Any) -> Any:
        """Notes an index, and returns it."""
        self._first.note(index)
        if self._cover is not None:
            self._cover.note(index)
        return index

    def note_batch(self, batch: Any) -> Any:
        """Does the same with the indices of a batch."""
        self._first.begin_batch()
        for index in batch if isinstance(batch, (list, tuple)) else [None]:
            self.note(index)
        return batch

    def end(self) -> None:
        """Called when there are no more indices."""
        self._first.end()
        if self._cover is not None:
            self._with_store(self._compare_all)

    def _with_store(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # of the store, such as a connection that is closed
            if signals.is_from_signal(error):
                raise

    # ---- the first indices ----

    def _show_first(self, digests: list[int]) -> None:
        position = self._position()
        if self._has_store:
            self._with_store(self._show_in_store, digests)
        elif position is not None and position.agreement is not None:
            position.agreement.show_first(self._begun, digests, lambda parts: self._compare_first(parts.values()))

    def _show_in_store(self, digests: list[int]) -> None:
        store, name = groups.default_store(), f"{self._key}/first"
        self._is_alone = store.add(f"{name}/rank{self._rank}", 1) == 1
        if not self._is_alone:
            return
        store.append(name, json.dumps(digests) + "\n")
        if store.add(f"{name}/ranks", 1) == self._ranks:
            self._compare_first([json.loads(line) for line in store.get(name).decode().splitlines()])

    def _compare_first(self, parts: Collection[Sequence[int]]) -> None:
        if shared := count_shared(parts):
            self._warn(
                f"among the first {max(map(len, parts))} indices that each of the {self._ranks} ranks drew, {shared} "
                "came on several ranks, which is no padding"
            )

    # ---- all indices ----

    def _compare_all(self) -> None:
        """Adds what this rank has drawn to that of the others. Warns if this is the last rank, and the ranks have drawn
        as many indices as there are samples, but not each sample."""
        assert self._cover is not None
        store, samples = groups.default_store(), self._samples
        if not self._is_alone:
            return
        own = {
            "unknown": int(not self._cover.is_known),
            "count": self._cover.count,
            "squares": self._cover.squares % _MODULUS,
        }
        for what, number in own.items():
            store.add(f"{self._key}/{what}", number)
        if store.add(f"{self._key}/ranks", 1) < self._ranks:
            return
        unknown, count, squares = (store.add(f"{self._key}/{what}", 0) for what in own)  # those of all ranks now
        whole = (samples - 1) * samples * (2 * samples - 1) // 6
        if not unknown and count == samples and (squares - whole) % _MODULUS:
            self._warn(
                f"the {self._ranks} ranks have drawn {samples} indices in this epoch, as many as the dataset has "
                "samples, but not each once: some samples came on several ranks, and others on none"
            )

    def _warn(self, what: str) -> None:
        """Warns, once for all ranks and epochs if there is a store."""
        if self._has_store and groups.default_store().add(self._told, 1) > 1:
            return
        if (position := self._position()) is not None:
            position.overlap_looks = _EPOCHS
        name = type(self._sampler).__name__
        warn_user(
            f"headrace: {what}. Each rank has its own {name}; it has to draw the same order on each rank, and take "
            "another part of it: shuffle by a generator that is seeded by the epoch alone, or write it for one process "
            "and use headrace.torch.per_rank. If it is meant so, give the loader compare_ranks=False"
            + help_on("ranks-overlap")
        )


def watch(loader: Any, indices: Any, number: int) -> None:
    """Makes the EpochIndices of an epoch note what it draws, if its sampler deals to ranks in a way that headrace does
    not know. number: of the epoch."""
    dealing = dealing_of(loaders.index_sampler(loader)) if isinstance(indices, ForeignIndices) else None
    position = table.kept(loader).position
    samples, looked = length_of(loader.dataset), position.overlap_looks
    if dealing is None or looked >= _EPOCHS or not samples or _draws_all(dealing, samples):
        return
    if position.made_by is None or agree is None or not agree.compares(loader):
        return
    position.overlap_looks = looked + 1
    key = f"{attempt()}/{position.made_by.key(type(dealing[0]).__name__)}/{dealing[2]}"
    epoch = f"{number}/{indices.order.get('epoch')}"
    draw, owner = indices.draw, weakref.ref(position)

    def draw_noted(start: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        drawn, dropped = draw(start, steps, seeds)
        position = owner()
        if seeds is None and not dropped and position is not None:
            part = _Part(position, dealing, samples, _size_of(drawn), key, epoch)
            drawn.items = _Noted(drawn.items, part.note if drawn.batch_size else part.note_batch, part.end)
        return drawn, dropped

    indices.draw = draw_noted


def _draws_all(dealing: tuple[Any, int, int], samples: int) -> bool:
    """Returns True if each rank draws as many indices as the dataset has samples, on purpose."""
    length = length_of(dealing[0])
    return length is not None and length >= samples


def _size_of(drawn: Drawn) -> int:
    """Returns the batch size, 0 if the items are batches."""
    size = getattr(drawn.batch_size, "batch_size", drawn.batch_size)
    return size if type(size) is int else 0
