# SPDX-License-Identifier: Apache-2.0
"""torch's own classes, taken once, when headrace.torch is imported. The modules of this folder take them from here.

A script may put other classes under torch's names, such as `torch.utils.data.DataLoader = headrace.torch.DataLoader`.
Code that looks a class up by such a name when it runs would find headrace's class where it needs torch's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch.utils.data

from headrace._base import lookup
from headrace._tensors import torch_names

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

DATA = "torch.utils.data.dataloader"
UTILS = "torch.utils.data._utils"

# Private ones. Where torch lacks one, it is None, and headrace.torch falls back to torch's loader (torch_names.py).
BaseIterator: Any = torch_names.find(f"{DATA}._BaseDataLoaderIter")
SingleProcessIterator: Any = torch_names.find(f"{DATA}._SingleProcessDataLoaderIter")
MultiProcessingIterator: Any = torch_names.find(f"{DATA}._MultiProcessingDataLoaderIter")
DatasetKind: Any = torch_names.find(f"{DATA}._DatasetKind")
MapFetcher: Any = torch_names.find(f"{torch_names.FETCHERS}._MapDatasetFetcher")
IterableFetcher: Any = torch_names.find(f"{torch_names.FETCHERS}._IterableDatasetFetcher")
InfiniteConstantSampler: Any = torch_names.find(f"{DATA}._InfiniteConstantSampler")
ExceptionWrapper: Any = torch_names.find("torch._utils.ExceptionWrapper")
DataPipes: Any = tuple(
    vars(torch.utils.data)[name] for name in ("IterDataPipe", "MapDataPipe") if name in vars(torch.utils.data)
)

try:
    from headrace.sampling._plan import Plan
except ImportError:  # the extension cannot be loaded
    Plan = None  # type: ignore[assignment, misc]


def is_plan(sampler: Any) -> bool:
    """Returns True if a sampler is a headrace.Plan."""
    return Plan is not None and isinstance(sampler, Plan)


__all__ = [
    "DATA",
    "UTILS",
    "BaseIterator",
    "BatchSampler",
    "DataLoader",
    "DataPipes",
    "Dataset",
    "DatasetKind",
    "DistributedSampler",
    "ExceptionWrapper",
    "InfiniteConstantSampler",
    "IterableDataset",
    "MultiProcessingIterator",
    "RandomSampler",
    "SequentialSampler",
    "SingleProcessIterator",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "is_plan",
]
