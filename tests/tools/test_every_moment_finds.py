# SPDX-License-Identifier: Apache-2.0
"""Puts faults back that headrace had, one at a time: drawing programs as tests/python/torch/test_every_moment.py does
finds each within 60 CPU seconds of a quiet core. So a fault of its kind that comes again is found, too. Those that need
a process for each program take minutes: HEADRACE_SOAK=1 (`make soak DRAWN=1h`) includes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import moments
import pytest
import side_by_side
from headrace.sampling import _sampler_parts, _sampler_state
from headrace.torch._batches import default_collate, rows
from headrace.torch._batches.worker import BatchMaker
from headrace.torch._own import iterators, originals
from headrace.torch._samplers import find, iterables
from headrace.torch._samplers.lists import Lists
from loaders import only_headrace
from torch.utils.data import BatchSampler, SubsetRandomSampler

pytestmark = [only_headrace, pytest.mark.timeout(900)]

BUDGET_S = 150.0  # of CPU: slow and busy cores take longer
Patch = pytest.MonkeyPatch


class Fault(NamedTuple):
    """A fault that can be put back. forked: it shows in programs that need a process."""

    put_back: Callable[[Patch], None]
    forked: bool = False


def _batch_size_once(patch: Patch) -> None:
    before = find._indices_in

    def indices_in(*arguments: Any) -> Any:
        found = before(*arguments)
        found.sizes = None
        return found

    patch.setattr(find, "_indices_in", indices_in)


def _sampler_at_iter(patch: Patch) -> None:
    patch.setattr(find, "may_change", lambda *_: False)


def _indices_at_begin(patch: Patch) -> None:
    init, first_list = Lists.__init__, Lists._first_list

    def new_init(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self.picks = None

    def new_first_list(self: Any) -> Any:
        is_subset = isinstance(self._sampler, SubsetRandomSampler)
        return list(self._sampler) if is_subset else first_list(self)

    patch.setattr(Lists, "__init__", new_init)
    patch.setattr(Lists, "_first_list", new_first_list)


def _sampler_for_each_list(patch: Patch) -> None:
    def later_list(self: Any, number: int) -> Any:
        self._began = self._begin_random(self._began.generator) if self._is_random else None
        return None if self._began is None or number > self._began.whole else self._random_list(self._began, number)

    patch.setattr(Lists, "_later_list", later_list)


def _batch_size_of_streams_once(patch: Patch) -> None:
    patch.setattr(iterables, "sizes_of", lambda one: one.batch_size if type(one) is BatchSampler else 0)


def _collate_map_once(patch: Patch) -> None:
    patch.setattr(default_collate, "is_as_ever", lambda: True)


def _collate_by_name(patch: Patch) -> None:
    patch.setattr(originals, "collates", lambda: True)


def _datasets_by_class(patch: Patch) -> None:
    patch.setattr(originals, "gives_items", lambda: True)


def _samplers_by_class(patch: Patch) -> None:
    patch.setattr(originals, "has_own_methods", lambda kind: True)


def _walk_through_loaders(patch: Patch) -> None:
    def state_dicts(parts: Any) -> dict[str, Any]:
        return {path: one.state_dict() for path, one in parts.stateful.items()}

    patch.setattr(_sampler_parts, "_ends_walk", lambda value: False)
    patch.setattr(_sampler_state, "state_dicts", state_dicts)


def _fetcher_at_iter(patch: Patch) -> None:
    patch.setattr(iterators, "fetches_as_made", lambda *_: True)


def _items_by_batch_once(patch: Patch) -> None:
    def fetch_samples(self: Any, indices: Any) -> Any:
        return self._fetcher.fetch(self._port.noting(indices))

    patch.setattr(BatchMaker, "_fetch_samples", fetch_samples)


def _rows_without_proof(patch: Patch) -> None:
    patch.setattr(rows._Proving, "proof", lambda self, found: None)


FAULTS = {
    "batch_size is read once": Fault(_batch_size_once),
    "the sampler is read in iter()": Fault(_sampler_at_iter),
    "indices are read when an epoch begins": Fault(_indices_at_begin),
    "a sampler is read for each list": Fault(_sampler_for_each_list),
    "batch_size of an iterable dataset is read once": Fault(_batch_size_of_streams_once),
    "collate functions are looked at once": Fault(_collate_map_once, forked=True),
    "default_collate is known by its name": Fault(_collate_by_name, forked=True),
    "datasets are known by their class": Fault(_datasets_by_class, forked=True),
    "samplers are known by their class": Fault(_samplers_by_class, forked=True),
    "the search for generators goes through loaders": Fault(_walk_through_loaders),
    "the fetcher is bound in iter()": Fault(_fetcher_at_iter),
    "__getitems__ is looked for once": Fault(_items_by_batch_once, forked=True),
    "rows are not proved": Fault(_rows_without_proof),
}


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _finds(forked: bool) -> bool:
    cells = [cell for cell in moments.cells() if cell.needs_process == forked]
    end = _cpu_s() + BUDGET_S
    for case in moments.drawn("faults", cells):
        if _cpu_s() > end:
            return False
        try:
            if side_by_side.compare_case(case) is not None:
                return True
        except side_by_side.NoCase:
            continue
    raise AssertionError("the drawing ends")


@pytest.mark.parametrize("name", FAULTS)
def test_fault_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if FAULTS[name].forked and os.environ.get("HEADRACE_SOAK") != "1":
        pytest.skip("minutes: HEADRACE_SOAK=1")
    monkeypatch.setattr(rows, "_layouts", {})  # those that were compared in another test are not gathered
    FAULTS[name].put_back(monkeypatch)
    assert _finds(FAULTS[name].forked)
