# SPDX-License-Identifier: Apache-2.0
"""The part of a state that describes an iterable dataset, and the check whether it fits one."""

from __future__ import annotations

from typing import Any

from headrace._base import lookup
from headrace._base.help_key import help_on
from headrace.sampling._epoch_indices import check_same_order
from headrace.sampling._state import Segment, State, StateError


def order_of(dataset: Any, workers: int) -> dict[str, Any]:
    """Returns what has to be the same if a state is loaded."""
    order: dict[str, Any] = {"kind": f"iterable {type(dataset).__name__}", "n": -1, "workers": workers}
    epoch = lookup.attribute(dataset, "epoch")
    if type(epoch) is int and callable(lookup.attribute(dataset, "set_epoch")):
        order["epoch"] = epoch
    return order


def segment(steps: int = 0) -> Segment:
    """Returns how far an epoch is. headrace does not divide an iterable dataset among ranks."""
    return Segment(1, 1, False, "pad", steps)


def state_at_start(number: int, order: dict[str, Any], rank: int) -> State:
    """Returns the state before the first batch of an epoch."""
    return State(number, 0, -1, order, [segment()], rank=rank)


def fitting(state: State, dataset: Any, workers: int, rank: int) -> State:
    """Returns a state if it fits the loader. Raises StateError."""
    order = order_of(dataset, workers)
    if state.steps and state.order.get("workers") not in (None, workers):
        raise StateError(
            f"headrace: this state was taken with num_workers={state.order['workers']}, and this loader has "
            f"num_workers={workers}: each worker has its own part of an iterable dataset, so they have to be as many"
            + help_on("iterable-resume")
        )
    check_same_order(state, order)
    if state.steps and state.rank != rank:
        raise StateError(
            f"headrace: this state is that of rank {state.rank}, and this is rank {rank}: an iterable dataset is "
            "continued on each rank by its own state" + help_on("iterable-resume")
        )
    if any(isinstance(one, list) and one[:1] != [None] for one in state.workers) and not lookup.has_state(dataset):
        raise StateError(
            f"headrace: this state contains that of the dataset, but {type(dataset).__name__} has no state_dict and "
            "load_state_dict here"
        )
    return state
