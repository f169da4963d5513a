# SPDX-License-Identifier: Apache-2.0
"""Changes one thing at one moment of a loop, and compares what torch's loader and headrace's do (lib/moments.py).

The cells without processes are all drawn. Of those that need a process for each program, each case of the test draws a
part; `make soak DRAWN=1h` draws all of them, again and again. HEADRACE_SEED=7 draws other programs.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Callable

import moments
import pytest
import side_by_side
from drawn import draws
from loaders import Headrace, Torch, only_headrace

pytestmark = only_headrace

SEED = os.environ.get("HEADRACE_SEED", "0")
PARTS = 16
FORKED = draws(320)  # cells with a process
IN_THREADS = draws(160)  # cells with sample_threads, and as many with a process
VIEWS = """
import torch
data = torch.arange(40.0)
def collate(rows):
    data.add_(100)
    return data[3:9]
for batch in list(DataLoader(data, batch_size=4, num_workers=1, collate_fn=collate)):
    take(batch)
"""
CONFORMANCE = pathlib.Path(__file__).parents[3] / "docs/conformance.md"


def _part(cells: list[moments.Cell], number: int) -> list[moments.Cell]:
    return random.Random(SEED).sample(cells, len(cells))[number::PARTS]


def _check(
    cells: list[moments.Cell], compare: Callable[[moments.Case], str | None] = side_by_side.compare_case
) -> None:
    drawn = moments.drawn(SEED, cells)
    for case in [next(drawn) for _ in cells]:
        try:
            found = compare(case)
        except side_by_side.NoCase:
            continue
        assert found is None, side_by_side.script_of(case, found or "")


@pytest.mark.parametrize("part", range(PARTS))
def test_change_of_an_object(part: int) -> None:
    """All cells whose programs run in this process."""
    _check(_part([cell for cell in moments.cells() if not cell.needs_process], part))


@pytest.mark.parametrize("part", range(PARTS))
def test_change_of_the_process_or_with_workers(part: int) -> None:
    _check(_part([cell for cell in moments.cells() if cell.needs_process], part)[: FORKED // PARTS])


def _is_same_in_threads(cell: moments.Cell) -> bool:
    """Returns False for changes that samples of the same batch, or of one that was begun early, meet at another moment;
    for methods of items that come after they were looked at; and for torch's fetcher, which does not make single
    samples."""
    change, moment = moments.CHANGES[cell.change].text, moments.MOMENTS[cell.moment]
    if moment.place in ("sample", "thread") or (cell.workers and moment.place == "collate") or "fetch" in change:
        return False
    return moment.place in ("before loader", "after loader") or not ("__getitem" in change or "__getattr__" in change)


@pytest.mark.parametrize("part", range(PARTS))
def test_change_with_threads_that_make_samples(part: int) -> None:
    cells = [cell for cell in moments.cells() if _is_same_in_threads(cell)]
    here = _part([cell for cell in cells if not cell.needs_process], part)[: IN_THREADS // PARTS]
    forked = _part([cell for cell in cells if cell.needs_process], part)[: IN_THREADS // PARTS]
    _check(here + forked, side_by_side.compare_with_threads)


def test_differences_on_purpose_are_documented() -> None:
    text = CONFORMANCE.read_text()
    assert [key for key in side_by_side.KNOWN if f"`{key}`" not in text] == []


def test_memory_that_torch_shares_with_batches_is_known() -> None:
    """sent-memory-is-shared: torch's batches change after they were made, so that all are the last one."""
    cell = next(cell for cell in moments.cells() if cell.workers == 1)
    ours, theirs = side_by_side.observe(Headrace, VIEWS), side_by_side.observe(Torch, VIEWS)
    assert theirs.events[0] == theirs.events[-1] and ours.events[0] != ours.events[-1]
    assert side_by_side.difference(ours, theirs, 1) is not None
    assert side_by_side.compare_case(moments.Case(cell, VIEWS)) is None
