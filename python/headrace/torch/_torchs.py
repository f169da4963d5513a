# SPDX-License-Identifier: Apache-2.0
"""torch's own classes, taken once, when headrace.torch is imported. The modules of this folder take them from here.

A script may put other classes under torch's names, such as `torch.utils.data.DataLoader = headrace.torch.DataLoader`.
Code that looks a class up by such a name when it runs would find headrace's class where it needs torch's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        Dataset,
        DistributedSampler,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
else:
    import torch.utils.data  # noqa: F401

    from headrace._base import lookup

    def _own(module: str, name: str) -> Any:
        found = lookup.own_class(module, name)
        if found is None:
            raise ImportError(
                f"headrace.torch needs torch's own {name}, but another tool has put "
                f"{getattr(sys.modules[module], name, None)!r} in its place; import headrace.torch before that"
            )
        return found

    DataLoader = _own("torch.utils.data.dataloader", "DataLoader")
    Dataset = _own("torch.utils.data.dataset", "Dataset")
    DistributedSampler = _own("torch.utils.data.distributed", "DistributedSampler")
    IterableDataset = _own("torch.utils.data.dataset", "IterableDataset")
    BatchSampler = _own("torch.utils.data.sampler", "BatchSampler")
    RandomSampler = _own("torch.utils.data.sampler", "RandomSampler")
    SequentialSampler = _own("torch.utils.data.sampler", "SequentialSampler")
    SubsetRandomSampler = _own("torch.utils.data.sampler", "SubsetRandomSampler")
    WeightedRandomSampler = _own("torch.utils.data.sampler", "WeightedRandomSampler")

__all__ = [
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]
