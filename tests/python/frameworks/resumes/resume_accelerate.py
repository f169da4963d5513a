# SPDX-License-Identifier: Apache-2.0
"""accelerate's save_state and load_state with use_stateful_dataloader, and skip_first_batches, in 1 process and in 2.

The cases "torchdata_..." are accelerate's own way, with torchdata's StatefulDataLoader: they need torchdata. The others
run under headrace.torch.install().
"""

from __future__ import annotations

import importlib.util
from typing import Any

import headrace.torch
import torch
import torch.utils.data
from accelerate import Accelerator, DataLoaderConfiguration, debug_launcher
from common import BATCH, EPOCHS, IS_RESUMED, RUN, Numbers, Stream, folder_of, report, saved_at

HAS_TORCHDATA = importlib.util.find_spec("torchdata") is not None


def prepared(workers: int, **configuration: Any) -> tuple[Any, Any]:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=workers)
    return accelerator, accelerator.prepare(loader)


def train(accelerator: Any, loader: Any, first_epoch: int, case: str, saves_at: int = 0) -> list[Any]:
    seen: list[Any] = []
    saves_at = saves_at or len(loader) + len(loader) // 2
    for epoch in range(first_epoch, EPOCHS):
        for batch in loader:
            seen.append([epoch, batch["index"].tolist()])
            if len(seen) == saves_at and not IS_RESUMED:
                accelerator.save_state(str(folder_of(case)))
    return seen


def stateful(case: str, workers: int, **configuration: Any) -> None:
    """The loader's state is part of what save_state saves."""
    accelerator, loader = prepared(workers, use_stateful_dataloader=True, **configuration)
    if IS_RESUMED:
        accelerator.load_state(str(folder_of(case)))
    seen = train(accelerator, loader, 1 if IS_RESUMED else 0, case)
    report(f"{case}.rank{accelerator.process_index}", seen=seen, made=loader.dataset.made.value)


def streaming(case: str, workers: int) -> None:
    """An iterable dataset with a state of its own. In two processes, accelerate lets one make all batches."""
    configuration = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    loader = accelerator.prepare(torch.utils.data.DataLoader(Stream(), batch_size=BATCH, num_workers=workers))
    if IS_RESUMED:
        accelerator.load_state(str(folder_of(case)))
    seen = train(accelerator, loader, 1 if IS_RESUMED else 0, case, saved_at(accelerator.num_processes))
    report(f"{case}.rank{accelerator.process_index}", seen=seen)


def at_end(case: str, **configuration: Any) -> None:
    """Saves after the last batch of the second epoch."""
    accelerator, loader = prepared(0, use_stateful_dataloader=True, **configuration)
    if IS_RESUMED:
        accelerator.load_state(str(folder_of(case)))
    seen = train(accelerator, loader, 2 if IS_RESUMED else 0, case, 2 * len(loader))
    report(f"{case}.rank{accelerator.process_index}", seen=seen, made=loader.dataset.made.value)


def skipping(case: str, workers: int) -> None:
    """The user skips the batches of the epoch that were seen, as accelerate's examples do."""
    accelerator, loader = prepared(workers, use_seedable_sampler=True, data_seed=3)
    seen: list[Any] = []
    if IS_RESUMED:
        accelerator.load_state(str(folder_of(case)))
        rest = accelerator.skip_first_batches(loader, len(loader) // 2)
        rest.set_epoch(1)
        seen = [[1, batch["index"].tolist()] for batch in rest]
        loader.set_epoch(2)
    seen += train(accelerator, loader, 2 if IS_RESUMED else 0, case)
    report(f"{case}.rank{accelerator.process_index}", seen=seen, made=loader.dataset.made.value)


def cases(prefix: str) -> None:
    for workers in (0, 2):
        stateful(f"{prefix}_seedable_{workers}", workers, use_seedable_sampler=True, data_seed=3)
        stateful(f"{prefix}_random_{workers}", workers)
        skipping(f"{prefix}_skip_{workers}", workers)
        if not prefix.startswith("torchdata"):
            streaming(f"{prefix}_stream_{workers}", workers)
    at_end(f"{prefix}_end", use_seedable_sampler=True, data_seed=3)
    if prefix.endswith("two"):
        stateful(f"{prefix}_split", 0, use_seedable_sampler=True, data_seed=3, split_batches=True)
        stateful(f"{prefix}_dispatched", 0, use_seedable_sampler=True, data_seed=3, dispatch_batches=True)
        at_end(f"{prefix}_dispatched_end", use_seedable_sampler=True, data_seed=3, dispatch_batches=True)


def on_two() -> None:
    torch.manual_seed(100 if IS_RESUMED else 1)
    with headrace.torch.installed():
        cases("two")
    if HAS_TORCHDATA:
        cases("torchdata_two")


def alone() -> None:
    torch.manual_seed(200 if IS_RESUMED else 2)
    with headrace.torch.installed():
        cases("alone")
    if HAS_TORCHDATA:
        cases("torchdata_alone")


def without_engine() -> None:
    with headrace.torch.installed():
        for workers in (0, 2):
            stateful(f"alone_seedable_{workers}", workers, use_seedable_sampler=True, data_seed=3)


if __name__ == "__main__":
    if RUN == "disabled":
        without_engine()
    else:
        debug_launcher(on_two, num_processes=2)  # before this process is an accelerator's itself: it forks
        alone()
