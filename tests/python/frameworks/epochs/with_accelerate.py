# SPDX-License-Identifier: Apache-2.0
"""accelerate's prepare, alone and in 2 processes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import accelerate.data_loader
import headrace.torch
import torch.utils.data
from accelerate import Accelerator, DataLoaderConfiguration, debug_launcher, skip_first_batches
from accelerate.data_loader import DataLoaderShard
from common import BATCH, COUNT, OPTIONS, Numbers, engines, limits, of_headrace, report, taken, watch
from headrace.torch import per_rank

KINDS = (torch.utils.data.DataLoader, headrace.torch.DataLoader)


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


OF_INSTALL = {name: value for name, value in OPTIONS.items() if name not in ("steps_per_epoch", "device")}


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
        limit_lost = [prepared(accelerator, make(headrace.torch.DataLoader, **OF_INSTALL)) for _ in range(2)]
    taken(limits)
    with headrace.torch.installed(**OF_INSTALL):
        limit_given = prepared(accelerator, make(headrace.torch.DataLoader, **OF_INSTALL))
    in_process = prepared(accelerator, make(headrace.torch.DataLoader, workers=0))
    torchs = prepared(accelerator, make(torch.utils.data.DataLoader))
    kept = make(headrace.torch.DataLoader)
    kept._is_accelerate_prepared = True
    left_alone = accelerator.prepare(kept) is kept
    try:
        accelerator.prepare(make(headrace.torch.DataLoader, steps_per_epoch=5))
    except RuntimeError as error:
        refused = str(error)
    taken(engines)
    first = prepared(accelerator, make(headrace.torch.DataLoader, **OF_INSTALL))
    second = prepared(accelerator, make(headrace.torch.DataLoader))
    report(
        "warned",
        none={"installed": installed, "limit given": limit_given, "in process": in_process, "torch's": torchs},
        limit_lost=limit_lost,
        limits=taken(limits),
        left_alone=left_alone,
        refused=refused,
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


def late() -> None:
    """accelerate's module is imported after headrace is installed, as in a script that installs it first."""
    headrace.torch.install()
    changed = importlib.reload(accelerate.data_loader).DataLoaderAdapter.__init__.__module__
    headrace.torch.uninstall()
    report("late", changed=changed, restored=accelerate.data_loader.DataLoaderAdapter.__init__.__module__)


def seen_by(accelerator: Any, kind: Any, **options: Any) -> list[int] | str:
    """Returns the samples that a prepared loader gives this process, or the error that it raises."""
    try:
        loader = accelerator.prepare(kind(Numbers(), num_workers=1, **options))
        return [index for _, indices in loader for index in indices.tolist()]
    except RuntimeError as error:
        return str(error)


def dealt() -> None:
    """Samplers that deal to ranks, in loaders that prepare() deals again."""
    accelerator = Accelerator(cpu=True)
    numbers = Numbers()
    batches = torch.utils.data.BatchSampler(range(COUNT), BATCH, False)
    samplers = {
        "torch's": {"batch_size": BATCH, "sampler": torch.utils.data.DistributedSampler(numbers)},
        "ours": {"batch_size": BATCH, "sampler": headrace.torch.DistributedSampler(numbers)},
        "per_rank": {"batch_size": BATCH, "sampler": per_rank(range(COUNT))},
        "per_rank of batches": {"batch_sampler": per_rank(batches)},
        "whole order": {"batch_size": BATCH, "sampler": per_rank(range(COUNT), num_replicas=1, rank=0)},
    }
    facts: dict[str, Any] = {}
    for name, options in samplers.items():
        facts[name] = [seen_by(accelerator, kind, **options) for kind in KINDS]
        with headrace.torch.installed():
            facts[name].append(seen_by(accelerator, KINDS[0], **options))
        left = headrace.torch.DataLoader(numbers, num_workers=1, **options)  # a loader that is not prepared
        facts[name].append([index for _, indices in left for index in indices.tolist()])
    report(f"dealt{accelerator.process_index}", **facts)


def planned() -> None:
    """A plan, which gives the batches of all ranks if prepare() deals them, and those of one rank otherwise."""
    plan = headrace.Plan([9, 5, 1] * (COUNT // 3), max_sum=25, tail="exact")
    facts: dict[str, Any] = {"expected": list(plan), "length": len(plan)}
    for name, options in {"whole": {"even_batches": False}, "divided": {"dispatch_batches": True}}.items():
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        facts[name] = [seen_by(accelerator, kind, batch_sampler=plan) for kind in KINDS]
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    facts["prepared length"] = len(accelerator.prepare(KINDS[0](Numbers(), batch_sampler=plan)))
    with headrace.torch.installed():
        facts["installed"] = seen_by(accelerator, KINDS[0], batch_sampler=plan)
    report(f"planned{accelerator.process_index}", **facts)


def on_two() -> None:
    rank()
    dealt()
    planned()


if __name__ == "__main__":
    watch()
    debug_launcher(on_two, num_processes=2)  # before this process is an accelerator's itself: it forks
    alone()
    warned()
    late()
