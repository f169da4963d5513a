# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts that run headrace under frameworks: a dataset, a record of iterators, and reports.

test_epochs.py runs the scripts in processes of their own, where what a framework changes stays, and looks at what
they report. They are in a folder of their own because transformers would take ../datasets.py for the package datasets.
"""

from __future__ import annotations

import json
import os
import pathlib
import warnings
from typing import Any

import torch
import torch.utils.data

COUNT, BATCH = 24, 4
SMALL = 1 << 26  # bytes
OPTIONS = {  # every option that is headrace's own, with a value that is not its default
    "arena_limit": SMALL,
    "max_restarts": 1,
    "rng": "sample",
    "seed": 7,
    "on_bad_sample": "skip",
    "retries": 1,
    "stall_after": 60.0,
    "on_stall": "raise",
    "shutdown_timeout": 4.0,
    "on_changed": "finish",
    "held_back": 1,
    "snapshot_every_n_steps": 5,
    "compare_ranks": False,
    "steps_per_epoch": 6,  # as many as a pass over the dataset, on one rank
    "threads": 2,
    "sample_threads": 2,
    "cache": "8M",
    "freeze": True,
    "repair": "auto",
    "device": "cpu",
    "device_prefetch": 2,
    "record": os.path.abspath("recording"),  # in the folder of the script; loaders keep the absolute path
}

engines: list[str] = []  # "torch" or "headrace" for every iterator that was made in this process
limits: list[int] = []  # the limits of headrace's iterators, in bytes


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """index -> (4 floats, the index)."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.linspace(0, 1, 4) * index, index


def watch() -> None:
    """Makes `engines` and `limits` grow with every iterator of a torch DataLoader or of a subclass."""
    make = torch.utils.data.DataLoader.__iter__

    def watched(loader: Any) -> Any:
        iterator = make(loader)
        engines.append(type(iterator).__module__.partition(".")[0])
        if engines[-1] == "headrace":
            limits.append(iterator.report()["limit_bytes"])
        return iterator

    torch.utils.data.DataLoader.__iter__ = watched  # type: ignore[method-assign]


def taken(values: list[Any]) -> list[Any]:
    """Returns the content of a list, and empties it."""
    was = values[:]
    values.clear()
    return was


def bits(model: torch.nn.Module) -> list[str]:
    """Returns all parameters of a model, exactly."""
    return [value.hex() for p in model.parameters() for value in p.detach().flatten().tolist()]


def of_headrace(caught: list[warnings.WarningMessage]) -> list[tuple[str, str]]:
    """headrace's warnings: their text, and the file that they point to."""
    return [(str(w.message), pathlib.Path(w.filename).name) for w in caught if "headrace" in str(w.message)]


def report(name: str, **facts: Any) -> None:
    """Leaves facts for the test, which has started this process in a folder of its own."""
    path = pathlib.Path(f"{name}.json")
    assert not path.exists(), f"{name} is reported twice"
    path.write_text(json.dumps(facts))
