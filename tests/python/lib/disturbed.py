# SPDX-License-Identifier: Apache-2.0
"""Loaders of datasets in which deaths and errors happen, and the undisturbed epochs to compare with."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import headrace
import headrace.torch
import pytest
from for_torch import ForTorch
from mishaps import DEADLINE_S, Marks, Numbers, Plan, Replayable, Resumable, Stream, Together, epoch

HERE: dict[str, Any] = {"num_workers": 0, "multiprocessing_context": None}  # torch takes no context then
SLOW_METHODS = ("forkserver", "spawn")
BOTH = pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader], ids=["torch", "numpy"])
COUNT = 41  # samples; with batches of 3 the last one is smaller


def load(kind: Any, dataset: Any, **options: Any) -> Any:
    if isinstance(dataset, Stream) and kind is not headrace.Loader:
        dataset = ForTorch(dataset)
    standard = {"batch_size": 3, "num_workers": 2, "multiprocessing_context": "fork", "max_restarts": 3}
    never = {"stall_after": 10 * DEADLINE_S}  # a slow machine is no stall, of which there would be a warning
    return kind(dataset, **{**standard, **never, **options})


@functools.cache
def undisturbed(kind: Any, name: str, **options: Any) -> list[Any]:
    """An epoch in which nothing happens."""
    nothing = Plan(Marks(pathlib.Path("/nowhere")))
    return epoch(load(kind, DATASETS[name](nothing), **options, max_restarts=0))


def in_some_order(batches: list[Any]) -> list[Any]:
    return sorted(batches, key=repr)


def pids(loader: Any) -> list[int]:
    return [one["pid"] for one in loader.report()["per_worker"]]


def starts(loader: Any) -> list[int]:
    return [one["starts"] for one in loader.report()["per_worker"]]


def as_sum(samples: list[Any]) -> int:
    return sum(samples)


DATASETS: dict[str, Callable[[Plan], Any]] = {
    "map": lambda plan: Numbers(COUNT, plan),
    "getitems": lambda plan: Together(COUNT, plan),
    "replayed": lambda plan: Replayable(COUNT, plan),
    "resumed": lambda plan: Resumable(COUNT, plan),
}
