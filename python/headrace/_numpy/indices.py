# SPDX-License-Identifier: Apache-2.0
"""Chooses the EpochIndices of a headrace.Loader by its arguments: shuffle, sampler and batch_sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._base import lookup
from headrace._options.settings import keys_samples
from headrace.sampling import _exact, _sampler_state
from headrace.sampling._epoch_indices import (
    REPLAY,
    Drawn,
    EpochIndices,
    begun,
)
from headrace.sampling._known import ShuffledIndices, mixture_indices, order_indices, range_indices
from headrace.sampling._mixture import Mixture
from headrace.sampling._order import Order
from headrace.sampling._plan import Plan
from headrace.sampling._plan_indices import PlanIndices
from headrace.sampling._sampler_parts import SamplerParts
from headrace.sampling._users_sampler import UsersSampler

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class SamplerIndices(UsersSampler):
    """A sampler of the user's. It is put back to the epoch's beginning by the states of its generators, and by its own
    state_dict and load_state_dict, if it has them."""

    _parts_before: SamplerParts | None = None  # at that of the epoch before

    def follows(self, before: EpochIndices) -> None:
        if isinstance(before, SamplerIndices):
            self._parts_before = before._parts

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if seeds and REPLAY in seeds:
            ended = seeds[REPLAY]
            if "sampler" in ended:
                _sampler_state.put_back(self._sampler, ended["sampler"])
            drawn = self._drawn()
            if "entries" in ended:
                drawn.batch_size = 0
            self._replay_to_end(drawn.tasks(), ended)
        elif seeds and "sampler" in seeds:
            _sampler_state.put_back(self._sampler, seeds["sampler"])
        if not steps:  # otherwise the indices are compared
            _sampler_state.warn_of_changed(self._sampler, seeds or {})
        self._parts = _sampler_state.parts_of(self._sampler)
        if (state := _sampler_state.state_of(self._sampler)) is not None:
            self.seeds["sampler"] = state
        return self._drawn(), steps

    def _drawn(self) -> Drawn:
        return Drawn(begun(iter(self._sampler)), self._batch_size, self._drop_last)

    def end_seeds(self) -> dict[str, Any]:
        return self._seeds_of_now(self._parts)

    def start_seeds(self) -> dict[str, Any]:
        if self._parts is None:
            return self._seeds_of_now(None)
        return {**self.seeds, **_sampler_state.changed_seeds(self._parts, self._parts_before)}

    def _seeds_of_now(self, before: SamplerParts | None) -> dict[str, Any]:
        state = _sampler_state.state_of(self._sampler)
        changed = _sampler_state.changed_seeds(_sampler_state.parts_of(self._sampler), before)
        return {**changed, **({} if state is None else {"sampler": state})}


def indices_of(loader: Loader) -> EpochIndices:
    """Returns the indices of a loader's next epoch. Raises ValueError for the part of one rank in which
    a repeat cannot be told from other samples."""
    indices = _indices_of(loader)
    indices.check_dataset(loader.dataset)
    indices.is_batched = loader._batched
    indices.counts_draws = keys_samples(loader.rng, loader.sample_threads)
    return indices


def _indices_of(loader: Loader) -> EpochIndices:
    sampler, batch_size = loader.sampler, loader.batch_size or 0
    if type(loader.batch_sampler) is Plan:
        return PlanIndices(loader.batch_sampler)
    for one in (sampler, loader.batch_sampler):
        _exact.check(loader, [one, lookup.attribute(one, "sampler")], "use headrace.torch.DataLoader")
    if loader.batch_sampler is not None:
        return SamplerIndices(loader.batch_sampler, type(loader.batch_sampler).__name__, _size_of(loader.dataset))
    if sampler is None:
        n = len(loader.dataset)
        if loader.shuffle:
            return ShuffledIndices(n, loader.seed, loader._kept.position.number, batch_size, loader.drop_last)
        return range_indices("shuffle=False", n, batch_size, loader.drop_last)
    if type(sampler) is Mixture:
        return mixture_indices(sampler, batch_size, loader.drop_last)
    if type(sampler) is Order:
        return order_indices(sampler, batch_size, loader.drop_last)
    if type(sampler) is range and sampler == range(len(sampler)):
        return range_indices("range", len(sampler), batch_size, loader.drop_last)
    return SamplerIndices(sampler, type(sampler).__name__, _size_of(loader.dataset), batch_size, loader.drop_last)


def _size_of(dataset: Any) -> int | None:
    return len(dataset) if lookup.has_special(dataset, "__len__") else None
