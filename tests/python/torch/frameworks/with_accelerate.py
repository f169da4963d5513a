# SPDX-License-Identifier: Apache-2.0
"""accelerate's prepare, alone and in 2 processes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import accelerate.data_loader
import headrace.torch
import torch.utils.data
from accelerate import Accelerator, debug_launcher, skip_first_batches
from accelerate.data_loader import DataLoaderShard
from common import BATCH, COUNT, OPTIONS, Numbers, engines, limits, of_headrace, report, taken, watch


def make(kind: Any, workers: int = 2, **options: Any) -> Any:
    return kind(Numbers(), batch_size=BATCH, shuffle=True, num_workers=workers, **options)


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(1)
    return [[leaf.tolist() for leaf in batch] for batch in loader]


def alone() -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make(torch.utils.data.DataLoader))
    theirs, their_engines = batches(loader), taken(engines)
    with headrace.torch.installed():
        ours, our_engines = batches(loader), taken(engines)
        rest, rest_engines = batches(skip_first_batches(loader, 2)), taken(engines)
    report(
        "alone",
        rebuilt=type(loader) is DataLoaderShard,
        theirs=theirs,
        ours=ours,
        rest=rest,
        engines=[their_engines, our_engines, rest_engines],
    )


def prepared(accelerator: Any, loader: Any) -> list[tuple[str, str]]:
    """headrace's warnings of accelerate's prepare."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches(accelerator.prepare(loader))
    return of_headrace(caught)


def warned() -> None:
    accelerator = Accelerator(cpu=True)
    with headrace.torch.installed():
        installed = prepared(accelerator, make(headrace.torch.DataLoader))
        limit_lost = [prepared(accelerator, make(headrace.torch.DataLoader, **OPTIONS)) for _ in range(2)]
    taken(limits)
    with headrace.torch.installed(**OPTIONS):
        limit_given = prepared(accelerator, make(headrace.torch.DataLoader, **OPTIONS))
    in_process = prepared(accelerator, make(headrace.torch.DataLoader, workers=0))
    torchs = prepared(accelerator, make(torch.utils.data.DataLoader))
    kept = make(headrace.torch.DataLoader)
    kept._is_accelerate_prepared = True
    left_alone = accelerator.prepare(kept) is kept
    taken(engines)
    first = prepared(accelerator, make(headrace.torch.DataLoader, **OPTIONS))
    second = prepared(accelerator, make(headrace.torch.DataLoader))
    report(
        "warned",
        none={"installed": installed, "limit given": limit_given, "in process": in_process, "torch's": torchs},
        limit_lost=limit_lost,
        limits=taken(limits),
        left_alone=left_alone,
        first=first,
        second=second,
        engines=taken(engines),
    )


def rank() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(3)
    with headrace.torch.installed():
        loader = accelerator.prepare(make(headrace.torch.DataLoader, workers=1))
        seen = [index for _, indices in loader for index in indices.tolist()]
        total = accelerator.gather(torch.tensor([len(seen)])).tolist()
    report(f"rank{accelerator.process_index}", seen=seen, total=total, engines=taken(engines))


def of_one_rank(accelerator: Any) -> list[int]:
    """Prepares a loader whose sampler gives the part of this rank already. Returns what it gives."""
    data = Numbers()
    sampler = headrace.torch.DistributedSampler(data, accelerator.num_processes, accelerator.process_index)
    loader = accelerator.prepare(headrace.torch.DataLoader(data, BATCH, sampler=sampler, num_workers=1))
    assert len(loader) == COUNT // accelerator.num_processes // BATCH
    return [index for _, indices in loader for index in indices.tolist()]


def sharded() -> None:
    accelerator = Accelerator(cpu=True)
    with headrace.torch.installed():
        seen = of_one_rank(accelerator)
    try:
        of_one_rank(accelerator)
        error = ""
    except RuntimeError as raised:
        error = str(raised)
    report(f"sharded{accelerator.process_index}", seen=seen, error=error)


def late() -> None:
    """accelerate's module is imported after headrace is installed, as in a script that installs it first."""
    headrace.torch.install()
    changed = importlib.reload(accelerate.data_loader).DataLoaderAdapter.__init__.__module__
    headrace.torch.uninstall()
    report("late", changed=changed, restored=accelerate.data_loader.DataLoaderAdapter.__init__.__module__)


def on_two() -> None:
    rank()
    sharded()


if __name__ == "__main__":
    watch()
    debug_launcher(on_two, num_processes=2)  # before this process is an accelerator's itself: it forks
    alone()
    warned()
    late()
