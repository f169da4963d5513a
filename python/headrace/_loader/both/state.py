# SPDX-License-Identifier: Apache-2.0
"""The state of a loader: takes it, and checks and keeps one for the next iterator.

`load` draws nothing and starts no worker. beginning.py begins the epoch that continues the state.
"""

from __future__ import annotations

from typing import Any

from headrace._loader.both.any_loader import AnyLoader
from headrace._ranks import where
from headrace.sampling import _iterable, _next_start, _state, _windows
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State


def state_dict(loader: AnyLoader) -> dict[str, str]:
    """Returns the state of a loader, after the batches that were delivered."""
    position, tuning = loader.kept.position, loader.kept.tuning
    state = loader.add_seeds(_state_of(loader))
    if tuning is not None and position.continued_workers is None:  # else the loaded state has it
        state.seeds = {**state.seeds, **tuning.as_seeds(state.steps == 0)}
    windows = position.windows
    if windows is not None:
        state = windows.add_to(state, windows.steps_left() < windows.steps and loader.was_left())
    return _state.encode(state)


def _state_of(loader: AnyLoader) -> State:
    position = loader.kept.position
    start, progress = position.next_start, position.progress
    is_running = start is None or (start.state is None and loader.goes_on(progress))
    if progress is None or not is_running:
        return state_to_begin(loader, start or NextStart(None))
    return loader.state_in(progress, position.held_back(loader.option("held_back")))


def state_to_begin(loader: AnyLoader, start: NextStart) -> State:
    """Returns the state before the next iterator, which continues `start`."""
    if start.state is not None and not (start.skipped and not loader.is_iterable):
        return start.state
    if loader.is_iterable:
        order = _iterable.order_of(loader.dataset, loader.num_workers)
        return _iterable.state_at_start(loader.kept.position.number, order, where.rank_or_zero())
    indices, _ = loader.indices()
    state = start.state or loader.fresh_state(indices)
    return _next_start.skipped(state, start.skipped, indices) if start.skipped else state


def load(loader: AnyLoader, given: Any) -> None:
    """Checks a state and keeps it for the next iterator. Raises TypeError and StateError, and then changes nothing."""
    state = _state.decode(given)
    position, window = loader.kept.position, state.window
    _windows.check(state, position.windows)
    with loader.as_in_state(state):
        if loader.is_iterable:
            state = _iterable.fitting(state, loader.dataset, loader.num_workers, where.rank_or_zero())
        else:
            state = _next_start.fitting(state, loader.indices()[0], loader.option("on_changed"))
    position.will_continue(state, window)
    loader.was_loaded(state)
