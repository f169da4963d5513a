# SPDX-License-Identifier: Apache-2.0
"""loader.set_epoch passes the epoch on."""

from __future__ import annotations

from typing import Any

import headrace
import headrace.torch
import pytest
import torch
import torch.utils.data
from headrace.torch import DataLoader, DistributedSampler, per_rank
from headrace.torch._loader.fallback import DataLoader as Fallback
from loaders import ENGINE, Headrace


class Noted:
    """A dataset, sampler or batch sampler that notes its epochs."""

    def __init__(self, items: Any) -> None:
        self.items, self.epoch = items, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)

    def __getitem__(self, index: int) -> Any:
        return 1000 * self.epoch + self.items[index]


@pytest.mark.parametrize("kind", [DataLoader, Fallback])
def test_set_epoch_reaches_sampler_and_dataset(kind: Any) -> None:
    data = Noted(range(8))
    batches: Any = Noted([[0, 1], [2, 3]])
    samplers = [Noted(range(8)), DistributedSampler(data, 2, 0), per_rank(Noted(range(8)), num_replicas=2, rank=0)]  # type: ignore[arg-type]
    loaders = [kind(data, 2, sampler=one) for one in samplers]
    loaders += [kind(data, batch_sampler=batches), kind(data, batch_sampler=headrace.Plan([1] * 8, max_batch=2))]
    for epoch, loader in enumerate(loaders, 1):
        loader.set_epoch(epoch)
        inner = loader.batch_sampler if loader.batch_size is None else loader.sampler
        assert (inner.epoch, data.epoch) == (epoch, epoch)
        assert min(next(iter(loader))) >= 1000 * epoch
    assert samplers[2].dataset.epoch == 3


def test_set_epoch_of_a_loader_reaches_workers_that_persist() -> None:
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    for loader in (
        DataLoader(Noted(range(4)), 4, **options),
        headrace.Loader(Noted(range(4)), batch_size=4, **options),
    ):
        for epoch in (0, 1, 7):
            loader.set_epoch(epoch)
            assert [batch.tolist() for batch in loader] == [[1000 * epoch + i for i in range(4)]]


def test_set_epoch_of_a_framework_loader_is_not_needed() -> None:
    loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), 2, shuffle=True)
    loader.set_epoch(3)
    assert len(list(loader)) == 2


def test_loaders_that_are_compared_have_epochs_of_their_own() -> None:
    class Equal(Headrace):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            return True

    loaders = [Equal([1, 2, 3], num_workers=1, multiprocessing_context="fork") for _ in range(2)]
    assert [[batch.item() for batch in loader] for loader in loaders] == [[1, 2, 3]] * 2
    if ENGINE:
        loaders[0].set_epoch(5)
        next(iter(loaders[1]))
        assert [loader.report()["batches"] for loader in loaders] == [3, 1]
