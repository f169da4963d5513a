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
from headrace.sampling import _iterable, _pending, _state, _windows
from headrace.sampling._epoch import Epoch, Last
from headrace.sampling._pending import Pending
from headrace.sampling._source import Source
from headrace.sampling._state import State
from headrace.torch import _generators, _internals, _past_draws, _per_loader, _sources
from headrace.torch._foreign import has_set_epoch, samplers_of
from headrace.torch._internals import is_iterable


def option(loader: Any, name: str) -> Any:
    """Returns one of headrace's options of a loader, which may be torch's own."""
    others = _per_loader.installed_options.get(name, _options.DEFAULTS[name])
    return _options.own(loader, name, others) if hasattr(type(loader), "steps_left") else others


def source_of(loader: Any) -> tuple[Source, int]:
    """Returns the source of a loader's indices, and how many steps at the beginning of an epoch are skipped."""
    source, skipped = _sources.source_of(_internals.index_sampler(loader), loader.dataset, where.rank_or_zero())
    source.is_batched = _internals.is_batched(loader)
    source.counts_draws = option(loader, "rng") == "sample"
    return source, skipped


def set_sampler_epoch(loader: Any, order: dict[str, Any]) -> None:
    """Sets the samplers of a loader to the epoch of an order, if it has one."""
    for one in samplers_of(_internals.index_sampler(loader)) if "epoch" in order else []:
        if has_set_epoch(one):
            one.set_epoch(order["epoch"])


# ---- taking a state ----


def state_dict(loader: Any) -> dict[str, str]:
    """Returns the state of a loader, after the batches that were delivered."""
    windows = _per_loader.windows.get(loader)
    state = _iterable_state(loader) if is_iterable(loader) else _state_of(loader)
    if windows is not None:
        state = windows.add_to(state, windows.steps_left() < windows.steps and callers.epoch_was_ended())
    return _state.encode(state)


def _held_back(loader: Any) -> int:
    held_back: int = option(loader, "held_back")
    windows = _per_loader.windows.get(loader)
    return held_back if windows is None else windows.held_back(held_back)


def _state_of(loader: Any) -> State:
    pending, epoch = _per_loader.pending_of(loader), _per_loader.progress.get(loader)
    is_running = isinstance(epoch, Epoch) and not epoch.has_ended
    if pending is not None and (pending.state is not None or not is_running):
        return _pending_state(loader, pending)
    if not isinstance(epoch, Epoch):
        return _fresh_state(loader)
    seeds = epoch.source.seeds
    seeds.update({name: _text(value) for name, value in seeds.items()})  # encoded once
    has_windows = _per_loader.windows.get(loader) is not None  # then a pass goes on after the epoch
    is_left = not has_windows and epoch.has_delivered() and callers.epoch_was_ended()
    state = epoch.state_after_leaving() if is_left else epoch.state(_held_back(loader))
    state.seeds = {name: _text(value) for name, value in state.seeds.items()} | _past_draws.as_seeds(loader)
    if state.steps == 0 and "base" not in state.seeds:
        state.seeds = {**_end_seeds(loader, epoch), **_as_loaders(loader, epoch, state.seeds)}
    return state


def _as_loaders(loader: Any, epoch: Epoch, seeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the seeds of the next epoch. If the sampler draws from the loader's own generator, that is as the sampler
    leaves it at its end, which it may not have reached."""
    shares = loader.generator is not None and getattr(epoch.source, "generator", None) is loader.generator
    return {**seeds, "next_loader": seeds["next_generator"]} if shares and "next_generator" in seeds else seeds


def _iterable_state(loader: Any) -> State:
    pending, epoch = _per_loader.pending_of(loader), _per_loader.progress.get(loader)
    number, rank = _per_loader.epochs.get(loader) or 0, where.rank_or_zero()
    order = _iterable.order_of(loader.dataset, loader.num_workers)
    fresh = _iterable.state_at_start(number, order, rank)
    if pending is not None:
        state = pending.state or fresh
    else:
        state = fresh if epoch is None else epoch.state(_held_back(loader))
    if not state.steps and "base" not in state.seeds:
        state.seeds = _end_seeds(loader) | state.seeds
    return state


def _text(value: Any) -> Any:
    return _generators.encode(value) if isinstance(value, torch.Tensor) else value


def _fresh_state(loader: Any) -> State:
    """Returns the state before the first iterator."""
    source, _ = source_of(loader)
    state = State(_per_loader.epochs.get(loader) or 0, 0, 0, source.order, [source.segment])
    state.seeds = {name: _text(value) for name, value in source.end_seeds().items()} | _end_seeds(loader)
    return state


def _end_seeds(loader: Any, epoch: Epoch | None = None) -> dict[str, Any]:
    """Returns what the next epoch begins with: the state of the loader's generator, and the base seed of workers that
    persist, because torch draws none for their further epochs."""
    seeds: dict[str, Any] = {}
    if loader.generator is not None:
        seeds["next_loader"] = _generators.encode(loader.generator.get_state())
    if epoch is not None and loader.persistent_workers and "base" in epoch.source.seeds:
        seeds["next_base"] = epoch.source.seeds["base"]
    return seeds


def _pending_state(loader: Any, pending: Pending) -> State:
    state = pending.state or _fresh_state(loader)
    return _pending.skipped(state, pending.skipped, source_of(loader)[0]) if pending.skipped else state


def steps_left(loader: Any) -> int | None:
    """Returns how many batches the running epoch has left, or the next one if none runs; None if that is not known."""
    if (windows := _per_loader.windows.get(loader)) is not None:
        return windows.steps_left()
    pending = _per_loader.pending_of(loader)
    epoch = _per_loader.progress.get(loader)
    if pending is None and epoch is not None:
        return epoch.steps_left()
    if is_iterable(loader):
        return None
    source, skipped = source_of(loader)
    state = _pending_state(loader, pending) if pending is not None else None
    return _pending.count_left(source, state, skipped)


def length(loader: Any, count: int) -> int:
    """Returns the number of batches of the running epoch, or of the one that is continued next: those that are done,
    before a resume too, and those left. `count`: of any other epoch."""
    pending = _per_loader.pending_of(loader)
    if pending is None or pending.state is None or is_iterable(loader):
        return _pending.length_of(None if pending is not None else _per_loader.progress.get(loader), count)
    return _pending.length_to_be(pending.state, source_of(loader)[0], count)


def last(loader: Any) -> Last | None:
    """Returns the batch that a loader delivered last, or None before the first one."""
    epoch = _per_loader.progress.get(loader)
    found = None if epoch is None else epoch.last()
    if (windows := _per_loader.windows.get(loader)) is not None:
        found = windows.last(found)
    return None if found is None else found._replace(weights=torch.tensor(found.weights))


# ---- loading a state ----


def load(loader: Any, given: Any) -> None:
    """Checks a state and keeps it for the next iterator. Workers that persist are ended, because they have the seeds of
    the old epoch. Raises TypeError and StateError, and then changes nothing."""
    state = _state.decode(given)
    windows, window = _per_loader.windows.get(loader), state.window
    _windows.check(state, windows)
    if is_iterable(loader):
        state = _iterable.fitting(state, loader.dataset, loader.num_workers, where.rank_or_zero())
    else:
        state = _pending.fitting(state, source_of(loader)[0], option(loader, "on_changed"))
    _per_loader.pending.set(loader, Pending(state))
    _per_loader.progress.drop(loader)
    if windows is not None:
        windows.load(window, state.epoch)
    _per_loader.epochs.set(loader, state.epoch)
    _past_draws.load(loader, state.seeds)
    _internals.drop_iterator(loader)
    if is_iterable(loader) and "epoch" in state.order:
        loader.dataset.set_epoch(state.order["epoch"])
    elif not is_iterable(loader):
        set_sampler_epoch(loader, state.order)


def skip(loader: Any, steps: int) -> None:
    """Lets the next iterator begin some steps later. Raises ValueError if the epoch has fewer."""
    pending = _per_loader.pending_of(loader) or Pending(None)
    if is_iterable(loader):
        _per_loader.pending.set(loader, Pending(pending.state, pending.skipped + steps))
        return
    _per_loader.pending.set(loader, _pending.with_skip(pending, steps, source_of(loader)[0]))


def pass_on(loader: Any, epoch: int) -> None:
    """Sets the samplers and the dataset of a loader to an epoch, if they have set_epoch."""
    for one in (*samplers_of(_internals.index_sampler(loader)), loader.dataset):
        if has_set_epoch(one):
            one.set_epoch(epoch)


def set_epoch(loader: Any, epoch: int) -> None:
    """Sets the number of a loader's next epoch, and passes it on. A state of another epoch is discarded, with a
    warning."""
    epoch = operator.index(epoch)
    pass_on(loader, epoch)
    if _pending.discards(_per_loader.pending_of(loader), epoch):
        _per_loader.pending.drop(loader)
    _per_loader.epochs.set(loader, epoch)


_COPIED, _WINDOWS = "_headrace_pending", "_headrace_windows"  # in the attributes of a copy


def with_pending(loader: Any) -> dict[str, Any]:
    """Returns the attributes of a loader, with what it continues next, and without the workers that persist: a copy
    that has them would begin its epochs with the iterator of the loader."""
    pending, windows = _per_loader.pending_of(loader), _per_loader.windows.get(loader)
    found = {name: None if name == "_iterator" else value for name, value in vars(loader).items()}
    if windows is not None:
        found[_WINDOWS] = windows.copied(pending)
    return found if pending is None else {**found, _COPIED: (pending.state, pending.skipped)}


def taking_pending(loader: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Keeps what a copy of a loader continues next. Returns its other attributes."""
    found = dict(attributes)
    if _WINDOWS in found:
        _per_loader.windows.set(loader, found.pop(_WINDOWS))
    if _COPIED in found:
        pending = Pending(*found.pop(_COPIED))
        _per_loader.pending.set(loader, pending)
        if pending.state is not None:
            _per_loader.epochs.set(loader, pending.state.epoch)
    return found
