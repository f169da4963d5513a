# SPDX-License-Identifier: Apache-2.0
"""Loaders over plans that are stopped and continued, and their states."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from headrace import Loader, Plan
from headrace.sampling import _state

State = dict[str, str] | None


class Numbers:
    """A dataset whose samples are their indices."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


def loader_of(plan: Plan, state: State = None, **options: Any) -> Loader:
    loader = Loader(Numbers(plan.n), batch_sampler=plan, seed=1, **options)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def run(plan: Plan, state: State, steps: int | None = None) -> tuple[list[list[list[int]]], list[int], State]:
    """Runs the ranks of a plan for some steps. Returns the batches of each step, the samples that are no repeats, and
    the state of rank 0."""
    of_ranks, once, first_state = [], [], None
    for rank in range(plan.place.world_size):
        loader = loader_of(plan.rank(rank), state)
        left = loader.steps_left
        assert left is not None and len(loader) >= left
        batches = []
        for batch in loader:
            assert loader.last is not None
            weights = loader.last.weights.tolist()
            batches.append(batch.tolist())
            once += [sample for sample, weight in zip(batches[-1], weights, strict=True) if weight]
            if len(batches) == steps:
                break
        assert len(batches) == (left if steps is None else min(left, steps))
        of_ranks.append(batches)
        first_state = first_state or loader.state_dict()
    return [list(step) for step in zip(*of_ranks, strict=True)], once, first_state


def stopped(plan: Plan) -> dict[str, str]:
    loader = loader_of(plan)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    return loader.state_dict()


def edited(state: dict[str, str], segment: dict[str, Any]) -> dict[str, str]:
    fields = json.loads(state["headrace"])
    fields["segments"][0].update(segment)
    fields.pop("checksum")
    fields["checksum"] = _state._checksum(fields)
    return {"headrace": json.dumps(fields)}
