# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts that save in the middle of an epoch and resume in a new process.

A script runs twice, in new processes: with HEADRACE_RUN=save each of its cases trains for EPOCHS epochs, and saves in
the middle of the second epoch; with HEADRACE_RUN=resume each case resumes and trains to the end, and with
HEADRACE_RUN=disabled some cases do that without headrace's engine. Each leaves the indices of its batches, which the
tests compare: a resumed run must see what the other saw after it had saved.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pathlib
from typing import Any

import torch
import torch.utils.data

COUNT, BATCH, EPOCHS = 50, 4, 3
RUN = os.environ["HEADRACE_RUN"]
IS_RESUMED = RUN != "save"


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """index -> the index, and a number to train with. `made` counts the samples that all processes have made."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self.made = multiprocessing.Value("q", 0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with self.made.get_lock():
            self.made.value += 1
        return {"index": torch.tensor(index), "labels": torch.tensor(float(index))}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Numbers without a length, with a position that can be saved, as the dataset's author would write it."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while first + self.position * step < COUNT:
            index = first + self.position * step
            self.position += 1
            yield {"index": torch.tensor(index), "labels": torch.tensor(float(index))}
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Model(torch.nn.Module):
    """A model that any of the frameworks can train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, index: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(index[:, None].float() / COUNT)[:, 0]
        return {"loss": (out - labels / COUNT).square().mean(), "out": out}


def steps_of(world_size: int = 1) -> int:
    """Returns the steps of an epoch on each rank, if batches are dealt by samples."""
    return math.ceil(math.ceil(COUNT / world_size) / BATCH)


def saved_at(world_size: int = 1) -> int:
    """Returns the number of batches after which a run saves: in the middle of the second epoch."""
    return steps_of(world_size) + steps_of(world_size) // 2


def folder_of(case: str) -> pathlib.Path:
    folder = pathlib.Path("checkpoints", case)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def report(case: str, **facts: Any) -> None:
    """Leaves facts for the test, which has started this process in a folder of its own."""
    path = pathlib.Path(f"{RUN}.{case}.json")
    assert not path.exists(), f"{case} is reported twice"
    path.write_text(json.dumps(facts))
