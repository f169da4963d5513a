# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's datasets, map-style and iterable, with headrace's loader and, where it is there, torchdata's."""

from __future__ import annotations

import importlib.util
from typing import Any

import headrace.torch
import torch
from common import BATCH, COUNT, EPOCHS, IS_RESUMED, folder_of, report
from datasets import Dataset

SAVED_AT = 18  # batches: in the second epoch, with each number of workers
HAS_TORCHDATA = importlib.util.find_spec("torchdata") is not None


def run(case: str, kind: Any, data: Any, workers: int, **options: Any) -> None:
    loader = kind(data, batch_size=BATCH, num_workers=workers, **options)
    path = folder_of(case) / "state.pt"
    first_epoch = 0
    if IS_RESUMED:
        loader.load_state_dict(torch.load(path, weights_only=True))
        first_epoch = 1
    seen: list[Any] = []
    for epoch in range(first_epoch, EPOCHS):
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        for batch in loader:
            seen.append([epoch, batch["i"].tolist()])
            if len(seen) == SAVED_AT and not IS_RESUMED:
                torch.save(loader.state_dict(), path)
    report(case, seen=seen)


def fails(case: str, kind: Any, data: Any, workers: int) -> None:
    """Runs a case that datasets 5.2 itself cannot resume."""
    try:
        run(case, kind, data, workers)
    except IndexError as error:
        report(case, error=str(error))


def cases(prefix: str, kind: Any) -> None:
    mapped = Dataset.from_dict({"i": list(range(COUNT))}).with_format("torch")
    for workers in (0, 2):
        generator = torch.Generator().manual_seed(1)
        run(f"{prefix}map_{workers}", kind, mapped, workers, shuffle=True, generator=generator)
        run(f"{prefix}iterable_{workers}", kind, mapped.to_iterable_dataset(num_shards=4), workers)
        shuffled = mapped.to_iterable_dataset(num_shards=4).shuffle(seed=5, buffer_size=1)
        (fails if workers and prefix else run)(f"{prefix}shuffled_{workers}", kind, shuffled, workers)
        if not prefix:
            buffered = mapped.to_iterable_dataset(num_shards=4).shuffle(seed=5, buffer_size=20)
            run(f"buffered_{workers}", kind, buffered.map(lambda row: row), workers)


if __name__ == "__main__":
    cases("", headrace.torch.DataLoader)
    if HAS_TORCHDATA:
        from torchdata.stateful_dataloader import StatefulDataLoader

        cases("torchdata_", StatefulDataLoader)
