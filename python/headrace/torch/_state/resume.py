# SPDX-License-Identifier: Apache-2.0
"""The state of torch's loaders: state_dict, load_state_dict and skip.

`load` checks a state against the loader and keeps it for the next iterator; nothing is drawn, and no worker is started.
_beginning.py begins the epoch that continues it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from headrace import _options
from headrace._ranks import callers, where
from headrace.sampling import _iterable, _next_start, _state, _windows
from headrace.sampling._epoch import Epoch, Last
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State
from headrace.sampling._windows import Windows
from headrace.torch._own import loaders, table
from headrace.torch._own.loaders import is_iterable
from headrace.torch._own.table import position_of, take_position
from headrace.torch._samplers import find, generators
from headrace.torch._samplers.foreign import has_set_epoch, samplers_of
from headrace.torch._state import past_draws


def indices_of(loader: Any) -> tuple[EpochIndices, int]:
    """Returns the EpochIndices of a loader, and how many steps at the beginning of an epoch are skipped."""
    indices, skipped = find.indices_of(loaders.index_sampler(loader), loader.dataset, where.rank_or_zero())
    indices.is_batched = loaders.is_batched(loader)
    indices.counts_draws = table.option(loader, "rng") == "sample"
    return indices, skipped


def set_sampler_epoch(loader: Any, order: dict[str, Any]) -> None:
    """Sets the samplers of a loader to the epoch of an order, if it has one."""
    for one in samplers_of(loaders.index_sampler(loader)) if "epoch" in order else []:
        if has_set_epoch(one):
            one.set_epoch(order["epoch"])


# ---- taking a state ----


def state_dict(loader: Any) -> dict[str, str]:
    """Returns the state of a loader, after the batches that were delivered."""
    windows = position_of(loader).windows
    state = _iterable_state(loader) if is_iterable(loader) else _state_of(loader)
    tuning = table.tunings.get(loader)
    if tuning is not None and position_of(loader).continued_workers is None:  # else the loaded state has it
        state.seeds = {**state.seeds, **tuning.as_seeds(state.steps == 0)}
    if windows is not None:
        state = windows.add_to(state, windows.steps_left() < windows.steps and callers.epoch_was_ended())
    return _state.encode(state)


def _state_of(loader: Any) -> State:
    position = position_of(loader)
    start, epoch = position.next_start, position.progress
    is_running = isinstance(epoch, Epoch) and not epoch.has_ended
    if start is not None and (start.state is not None or not is_running):
        return _state_to_begin(loader, start)
    if not isinstance(epoch, Epoch):
        return _fresh_state(loader)
    seeds = epoch.indices.seeds
    seeds.update({name: _text(value) for name, value in seeds.items()})  # encoded once
    is_left = position.windows is None and epoch.has_delivered() and callers.epoch_was_ended()  # else a pass goes on
    state = (
        epoch.state_after_leaving() if is_left else epoch.state(position.held_back(table.option(loader, "held_back")))
    )
    state.seeds = {name: _text(value) for name, value in state.seeds.items()} | past_draws.as_seeds(loader)
    if state.steps == 0 and "base" not in state.seeds:
        state.seeds = {**_end_seeds(loader, epoch), **_as_loaders(loader, epoch, state.seeds)}
    return state


def _as_loaders(loader: Any, epoch: Epoch, seeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the seeds of the next epoch. If the sampler draws from the loader's own generator, that is as the sampler
    leaves it at its end, which it may not have reached."""
    shares = loader.generator is not None and getattr(epoch.indices, "generator", None) is loader.generator
    return {**seeds, "next_loader": seeds["next_generator"]} if shares and "next_generator" in seeds else seeds


def _iterable_state(loader: Any) -> State:
    position = position_of(loader)
    start, epoch = position.next_start, position.progress
    order = _iterable.order_of(loader.dataset, loader.num_workers)
    fresh = _iterable.state_at_start(position.number, order, where.rank_or_zero())
    if start is not None:
        state = start.state or fresh
    else:
        state = fresh if epoch is None else epoch.state(position.held_back(table.option(loader, "held_back")))
    if not state.steps and "base" not in state.seeds:
        state.seeds = _end_seeds(loader) | state.seeds
    return state


def _text(value: Any) -> Any:
    return generators.encode(value) if isinstance(value, torch.Tensor) else value


def _fresh_state(loader: Any) -> State:
    """Returns the state before the first iterator."""
    indices, _ = indices_of(loader)
    state = State(position_of(loader).number, 0, 0, indices.order, [indices.segment])
    state.seeds = {name: _text(value) for name, value in indices.end_seeds().items()} | _end_seeds(loader)
    return state


def _end_seeds(loader: Any, epoch: Epoch | None = None) -> dict[str, Any]:
    """Returns what the next epoch begins with: the state of the loader's generator, and the base seed of workers that
    persist, because torch draws none for their further epochs."""
    seeds: dict[str, Any] = {}
    if loader.generator is not None:
        seeds["next_loader"] = generators.encode(loader.generator.get_state())
    if epoch is not None and loader.persistent_workers and "base" in epoch.indices.seeds:
        seeds["next_base"] = epoch.indices.seeds["base"]
    return seeds


def _state_to_begin(loader: Any, start: NextStart) -> State:
    state = start.state or _fresh_state(loader)
    return _next_start.skipped(state, start.skipped, indices_of(loader)[0]) if start.skipped else state


def last(loader: Any) -> Last | None:
    """Returns the batch that a loader delivered last, or None before the first one."""
    found = position_of(loader).last()
    return None if found is None else found._replace(weights=torch.tensor(found.weights))


# ---- loading a state ----


def load(loader: Any, given: Any) -> None:
    """Checks a state and keeps it for the next iterator. Workers that persist are ended, because they have the seeds of
    the old epoch. Raises TypeError and StateError, and then changes nothing."""
    state = _state.decode(given)
    position, window = position_of(loader), state.window
    _windows.check(state, position.windows)
    if is_iterable(loader):
        state = _iterable.fitting(state, loader.dataset, loader.num_workers, where.rank_or_zero())
    else:
        state = _next_start.fitting(state, indices_of(loader)[0], table.option(loader, "on_changed"))
    position.will_continue(state, window)
    past_draws.load(loader, state.seeds)
    loaders.drop_iterator(loader)
    if is_iterable(loader) and "epoch" in state.order:
        loader.dataset.set_epoch(state.order["epoch"])
    elif not is_iterable(loader):
        set_sampler_epoch(loader, state.order)


class AsPositionOwner:
    """A loader of torch as headrace.sampling._position sees it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def is_iterable(self) -> bool:
        """True if the dataset gives no samples by index."""
        return is_iterable(self._loader)

    def indices(self) -> tuple[EpochIndices, int]:
        """Returns the EpochIndices of the loader, and the steps that are skipped."""
        return indices_of(self._loader)

    def state_to_begin(self, start: NextStart) -> State:
        """Returns the state before the next iterator."""
        return _state_to_begin(self._loader, start)

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to an epoch, if they have set_epoch."""
        for one in (*samplers_of(loaders.index_sampler(self._loader)), self._loader.dataset):
            if has_set_epoch(one):
                one.set_epoch(epoch)

    def go_on_from_state(self) -> None:
        """Loads the state of now."""
        load(self._loader, state_dict(self._loader))


def set_epoch(loader: Any, epoch: int) -> None:
    """Sets the number of a loader's next epoch: see EpochPosition."""
    position = position_of(loader)
    number = operator.index(epoch) if position.windows is None else _options.check_count("epoch", epoch)
    position.set_epoch(AsPositionOwner(loader), number)


_POSITION = "_headrace_position"  # in the attributes of a copy


def with_position(loader: Any) -> dict[str, Any]:
    """Returns the attributes of a loader, with what it continues next, and without the workers that persist: a copy
    that has them would begin its epochs with the iterator of the loader."""
    position = position_of(loader)
    found = {name: None if name == "_iterator" else value for name, value in vars(loader).items()}
    is_new = position.next_start is None and position.windows is None
    return found if is_new else {**found, _POSITION: position.copy(0)}


def taking_position(loader: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Keeps what a copy of a loader continues next. Returns its other attributes."""
    found = dict(attributes)
    if _POSITION in found:
        take_position(loader, found.pop(_POSITION))
    elif "_headrace_steps" in found:  # a subclass has its own __getstate__
        position_of(loader).windows = Windows(found["_headrace_steps"])
    return found
