# SPDX-License-Identifier: Apache-2.0
"""Warns if the samplers of several ranks, which deal the samples themselves, give some of them to several ranks.

Such a sampler shuffles by random numbers that differ from rank to rank, for example. Its ranks read as many samples as
there are, but some come on several ranks and others on none. When a rank has drawn its last index of an epoch, it adds
the sum of its squared indices to a number in the store of torch.distributed, and does not wait. The last rank compares
the sum with that of all samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace._base import lookup, signals
from headrace._base.help_key import help_on
from headrace._base.warn import warn_user
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


class Cover:
    """The indices that this rank has drawn in an epoch. Called with each index, it returns it."""

    def __init__(self, samples: int) -> None:
        self.count = self.squares = 0
        self.is_known = True  # all indices were positions in the dataset, each once
        self._seen = bytearray(samples)

    def __call__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < len(self._seen) and not self._seen[index]:
            self._seen[index] = 1
            self.count += 1
            self.squares += index * index
        else:
            self.is_known = False
        return index

    def add_all(self, batch: Any) -> Any:
        """Does the same with the indices of a batch."""
        for index in batch if isinstance(batch, (list, tuple)) else [None]:
            self(index)
        return batch


class _Counted:
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
    None for samplers that draw with replacement."""
    found = samplers_of(sampler)
    if any(lookup.attribute(one, "replacement") or lookup.has_attribute(one, "weights") for one in found):
        return None
    for one in found:
        sizes = (lookup.attribute(one, name) for name in _SIZES)
        rank, size = lookup.attribute(one, "rank"), next((size for size in sizes if type(size) is int), 1)
        if type(rank) is int and size > 1:
            return one, rank, size
    return None


def watch(loader: Any, indices: Any, number: int) -> None:
    """Makes the EpochIndices of an epoch count what it draws, if its sampler deals to ranks in a way that headrace does
    not know. number: of the epoch."""
    dealing = dealing_of(loaders.index_sampler(loader)) if isinstance(indices, ForeignIndices) else None
    position = table.kept(loader).position
    samples, looked = length_of(loader.dataset), position.overlap_looks
    if dealing is None or looked >= _EPOCHS or samples is None or not 0 < samples <= _MOST_SAMPLES:
        return
    if (
        position.made_by is None
        or agree is None
        or not agree.compares(loader)
        or groups.default_group_size() < dealing[2]
    ):
        return
    position.overlap_looks = looked + 1
    made_by = position.made_by.key(type(dealing[0]).__name__)
    key = f"{attempt()}/{made_by}/{dealing[2]}/{number}/{indices.order.get('epoch')}"
    draw = indices.draw

    def draw_counted(position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        drawn, dropped = draw(position, steps, seeds)
        if seeds is None and not dropped:
            cover = Cover(samples)
            note = cover if drawn.batch_size else cover.add_all
            drawn.items = _Counted(drawn.items, note, lambda: _finish(cover, dealing, samples, key))
        return drawn, dropped

    indices.draw = draw_counted


def _finish(cover: Cover, dealing: tuple[Any, int, int], samples: int, key: str) -> None:
    try:
        has_overlap = _compare(cover, dealing, samples, key)
    except Exception as error:  # of the store, such as a connection that is closed
        if signals.is_from_signal(error):
            raise
        return
    if has_overlap:
        name = type(dealing[0]).__name__
        warn_user(
            f"headrace: the {dealing[2]} ranks have drawn {samples} indices in this epoch, as many as the dataset has "
            f"samples, but not each once: some samples came on several ranks, and others on none. Each rank has its "
            f"own {name}; it has to draw the same order on each rank, and take another part of it: shuffle by a "
            "generator that is seeded by the epoch alone, or write it for one process and use "
            "headrace.torch.per_rank. If it is meant so, give the loader compare_ranks=False" + help_on("ranks-overlap")
        )


def _compare(cover: Cover, dealing: tuple[Any, int, int], samples: int, key: str) -> bool:
    """Adds what this rank has drawn to that of the others. Returns True if this is the last rank, and the ranks have
    drawn as many indices as there are samples, but not each sample."""
    _, rank, size = dealing
    store, name = groups.default_store(), f"headrace/overlap/{key}"
    if store.add(f"{name}/rank{rank}", 1) > 1:  # another process with the same part, as with tensor parallelism
        return False
    own = {"unknown": int(not cover.is_known), "count": cover.count, "squares": cover.squares % _MODULUS}
    for what, number in own.items():
        store.add(f"{name}/{what}", number)
    if store.add(f"{name}/ranks", 1) < size:
        return False
    unknown, count, squares = (store.add(f"{name}/{what}", 0) for what in own)  # those of all ranks now
    whole = (samples - 1) * samples * (2 * samples - 1) // 6
    return not unknown and count == samples and bool((squares - whole) % _MODULUS)
