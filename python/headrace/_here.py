# SPDX-License-Identifier: Apache-2.0
"""num_workers=0: samples one by one in this process, where the policy asks for that, as a worker makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _crew, _reports, _restart
from headrace._options import Policy
from headrace._samples import SampleMaker, generators_kept


class Here:
    """Makes the batches of one epoch, which are to the bit those of workers. The random numbers of this process are
    left alone: what rng="sample" seeds is undone after each batch. `collate_fn`: None leaves samples as they are."""

    def __init__(
        self,
        dataset: Any,
        policy: Policy,
        seed: int,
        epoch: int,
        batched: bool,
        collate_fn: Callable[[Any], Any] | None,
    ) -> None:
        self._maker = SampleMaker(iter, dataset, policy, _restart.Beginning(epoch=epoch), seed, None)
        self._keep = generators_kept if policy.rng == "sample" else contextlib.nullcontext
        self._seed = seed
        self._make = self._maker.make if batched else self._maker.make_one
        self._collate = collate_fn
        self._bad: list[Any] = []
        self._batches = 0
        self._is_over = False

    def fetch(self, indices: Any) -> Any:
        """The batch of these indices, or without batches the sample of this one."""
        try:
            with self._keep():
                batch = self._make(indices)
                if self._collate is not None:
                    batch = self._collate(batch)
        finally:
            self._bad += self._maker.take_bad()
        self._batches += 1
        return batch

    def fetch_all(self, tasks: Iterator[Any]) -> Iterator[Any]:
        for indices in tasks:
            yield self.fetch(indices)
        self.end_epoch()

    def end_epoch(self) -> None:
        """Lists what was bad, once."""
        if self._bad and not self._is_over:
            _crew.tell(_reports.of_bad_samples(self._bad))
        self._is_over = True

    def report(self) -> dict[str, Any]:
        """See headrace.Loader.report: of its counters, those of a loader without workers."""
        return {
            "seed": self._seed,
            "workers": 0,
            "batches": self._batches,
            "skipped": len(self._bad),
            "bad_samples": list(self._bad),
            "per_worker": [],
        }
