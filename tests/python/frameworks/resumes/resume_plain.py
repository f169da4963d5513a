# SPDX-License-Identifier: Apache-2.0
"""A loop without a framework: torch.save, torch.distributed.checkpoint, and two ranks of it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import BATCH, EPOCHS, IS_RESUMED, Numbers, folder_of, report, saved_at
from headrace.torch import DataLoader, DistributedSampler

Save = Callable[[Any, pathlib.Path], None]


def torch_save(loader: Any, folder: pathlib.Path) -> None:
    torch.save({"loader": loader.state_dict()}, folder / "state.pt")


def torch_load(loader: Any, folder: pathlib.Path) -> None:
    loader.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["loader"])


def dcp_save(loader: Any, folder: pathlib.Path) -> None:
    dcp.save({"loader": loader}, checkpoint_id=folder)


def dcp_load(loader: Any, folder: pathlib.Path) -> None:
    dcp.load({"loader": loader}, checkpoint_id=folder)


def dcp_save_dict(loader: Any, folder: pathlib.Path) -> None:
    dcp.save({"loader": loader.state_dict()}, checkpoint_id=folder)


def dcp_load_dict(loader: Any, folder: pathlib.Path) -> None:
    state = {"loader": loader.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    loader.load_state_dict(state["loader"])


WAYS = {
    "torch": (torch_save, torch_load),
    "dcp": (dcp_save, dcp_load),
    "dcp_dict": (dcp_save_dict, dcp_load_dict),
}


def train(loader: Any, first_epoch: int, after_batch: Callable[[int], None]) -> list[Any]:
    seen: list[Any] = []
    for epoch in range(first_epoch, EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            seen.append([epoch, batch["index"].tolist()])
            after_batch(len(seen))
    return seen


def run(case: str, loader: Any, way: tuple[Save, Save], world_size: int = 1, rank: int = 0) -> None:
    save, load = way
    folder = folder_of(case)

    def save_once(steps: int) -> None:
        if steps == saved_at(world_size) and not IS_RESUMED:
            save(loader, folder)

    if IS_RESUMED:
        load(loader, folder)
    seen = train(loader, 1 if IS_RESUMED else 0, save_once)
    report(f"{case}.rank{rank}", seen=seen, made=loader.dataset.made.value)


def alone() -> None:
    for workers in (0, 2):
        for name, way in WAYS.items():
            generator = torch.Generator().manual_seed(workers)
            loader = DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, generator=generator)
            run(f"{name}_{workers}", loader, way)


def on_two(rank: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    store = dist.FileStore(os.path.abspath(f"store.{os.environ['HEADRACE_RUN']}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    data = Numbers()
    for workers in (0, 2):
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=3), num_workers=workers)
        run(f"two_{workers}", loader, WAYS["dcp"], 2, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(100 if IS_RESUMED else 1)
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=on_two, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    alone()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
