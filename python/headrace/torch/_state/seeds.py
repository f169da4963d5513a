# SPDX-License-Identifier: Apache-2.0
"""Gives torch's part of a state: the base seed of an epoch, the states of generators, and what earlier epochs were
drawn from. headrace._loader.both.state takes and loads the whole."""

from __future__ import annotations

from typing import Any

import torch

from headrace._options.settings import keys_samples
from headrace._ranks import callers, where
from headrace.sampling._epoch import Epoch
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._state import State
from headrace.torch._own import loaders, table
from headrace.torch._samplers import find, generators
from headrace.torch._samplers.foreign import has_set_epoch, samplers_of
from headrace.torch._state import past_draws


def indices_of(loader: Any) -> tuple[EpochIndices, int]:
    """Returns the EpochIndices of a loader, and how many steps at the beginning of an epoch are skipped."""
    indices, skipped = find.indices_of(loaders.index_sampler(loader), loader.dataset, where.rank_or_zero())
    indices.is_batched = loaders.is_batched(loader)
    indices.counts_draws = keys_samples(table.option(loader, "rng"), table.option(loader, "sample_threads"))
    return indices, skipped


def set_sampler_epoch(loader: Any, order: dict[str, Any]) -> None:
    """Sets the samplers of a loader to the epoch of an order, if it has one."""
    for one in samplers_of(loaders.index_sampler(loader)) if "epoch" in order else []:
        if has_set_epoch(one):
            one.set_epoch(order["epoch"])


def fresh_state(loader: Any, indices: EpochIndices) -> State:
    """Returns the state before the first iterator."""
    state = State(table.kept(loader).position.number, 0, 0, indices.order, [indices.segment])
    state.seeds = {name: _text(value) for name, value in indices.end_seeds().items()} | end_seeds(loader)
    return state


def state_in(loader: Any, epoch: Epoch, held_back: int) -> State:
    """Returns the state in an epoch of a map-style dataset."""
    seeds = epoch.indices.seeds
    seeds.update({name: _text(value) for name, value in seeds.items()})  # encoded once
    goes_on = table.kept(loader).position.windows is not None  # a pass does
    is_left = not goes_on and epoch.has_delivered() and callers.epoch_was_ended()
    state = epoch.state_after_leaving() if is_left else epoch.state(held_back)
    state.seeds = {name: _text(value) for name, value in state.seeds.items()} | past_draws.as_seeds(loader)
    if state.steps == 0 and "base" not in state.seeds:
        state.seeds = {**end_seeds(loader, epoch), **_as_loaders(loader, epoch, state.seeds)}
    return state


def _as_loaders(loader: Any, epoch: Epoch, seeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the seeds of the next epoch. If the sampler draws from the loader's own generator, that is as the sampler
    leaves it at its end, which it may not have reached."""
    shares = loader.generator is not None and getattr(epoch.indices, "generator", None) is loader.generator
    return {**seeds, "next_loader": seeds["next_generator"]} if shares and "next_generator" in seeds else seeds


def _text(value: Any) -> Any:
    return generators.encode(value) if isinstance(value, torch.Tensor) else value


def end_seeds(loader: Any, epoch: Epoch | None = None) -> dict[str, Any]:
    """Returns what the next epoch begins with: the state of the loader's generator, and the base seed of workers that
    persist, because torch draws none for their further epochs."""
    seeds: dict[str, Any] = {}
    if loader.generator is not None:
        seeds["next_loader"] = generators.encode(loader.generator.get_state())
    if epoch is not None and loader.persistent_workers and "base" in epoch.indices.seeds:
        seeds["next_base"] = epoch.indices.seeds["base"]
    return seeds
