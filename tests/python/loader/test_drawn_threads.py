# SPDX-License-Identifier: Apache-2.0
"""Loaders that are drawn at random do the same with sample_threads and without (lib/drawn_threads.py). The same cases
find faults that are put into the threads. `make soak DRAWN=1h` draws others for an hour; HEADRACE_SEED=7 too."""

from __future__ import annotations

import os
from typing import Any

import drawn_threads
import pytest
from drawn import draws
from headrace._samples import threaded, threads
from loaders import only_headrace
from processes import until

pytestmark = only_headrace

SEED = os.environ.get("HEADRACE_SEED", "0")
PARTS = 6
CASES = draws(180)
DEADLINE_S = 60.0


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_loader_is_the_same_with_threads(part: int) -> None:
    for number in range(part, CASES, PARTS):
        drawn_threads.check(SEED, number)
        assert until(lambda: not drawn_threads.threads_of_samples(), DEADLINE_S)


# ---- faults are found ----


def _take_another(batch: Any, place: int) -> Any:
    """In place of Batch.take: two samples of a batch have changed places."""
    outcome = batch._outcomes[place ^ 1 if place ^ 1 < len(batch.indices) else place]
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _is_over_early(batch: Any) -> bool:
    """In place of Batch.is_over: true when all samples are begun."""
    return bool(batch.is_cut or batch.next >= len(batch.indices))


def _begin_without_context(batch: Any, place: int) -> None:
    """In place of Batch.make: a sample whose thread takes it for the one before."""
    try:
        batch._outcomes[place] = batch._make(max(0, place - 1)), None, 1
    except Exception as error:
        batch._outcomes[place] = None, error, 1
        batch.cut()


def _begun_of_another_task(worker: Any) -> Any:
    """In place of InWorker._begun_before: the batch that was begun last."""
    return worker._begun.pop()[1] if worker._begun else None


FAULTS: dict[str, tuple[type, str, Any]] = {
    "places": (threads.Batch, "take", _take_another),
    "numbers": (threads.Batch, "make", _begin_without_context),
    "over": (threads.Batch, "is_over", property(_is_over_early)),
    "tasks": (threaded.InWorker, "_begun_before", _begun_of_another_task),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_threads_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, function = FAULTS[fault]
    monkeypatch.setattr(owner, name, function)
    for number in range(CASES):
        case = drawn_threads.draw(SEED, number)
        try:
            found = drawn_threads.compare(case)
        except Exception as error:
            found = repr(error)
        if found:
            return
    raise AssertionError(f"{CASES} cases do not find it")
