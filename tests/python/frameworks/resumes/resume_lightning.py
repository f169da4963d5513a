# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer.fit with a checkpoint in the middle of the second epoch, on one device and on two.

For two devices Lightning starts this script again with LOCAL_RANK=1.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import lightning.pytorch as pl
import torch
import torch.utils.data
from common import BATCH, EPOCHS, IS_RESUMED, Model, Numbers, Stream, folder_of, report, saved_at
from headrace.torch import DataLoader, DistributedSampler
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        parts = batch if isinstance(batch, (list, tuple)) else [batch]
        self.seen.append([self.current_epoch, *(part["index"].tolist() for part in parts)])
        return sum(self.model(**part)["loss"] for part in parts)  # type: ignore[return-value]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


LIMIT = 5  # batches of an epoch that Lightning ends itself


def fit(case: str, loader: Any, devices: int = 1, limit: int | None = None) -> None:
    folder, step = folder_of(case), 2 * limit if limit else saved_at(devices)
    save = ModelCheckpoint(folder, every_n_train_steps=step, save_top_k=-1, save_on_train_epoch_end=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        limit_train_batches=limit or 1.0,
        callbacks=[save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
    )
    module = Module()
    checkpoint = next(pathlib.Path(folder).glob(f"*step={step}.ckpt")) if IS_RESUMED else None
    trainer.fit(module, loader, ckpt_path=checkpoint)
    loaders = trainer.train_dataloader
    samplers = [type(one.sampler).__module__ for one in (loaders if isinstance(loaders, list) else [loaders])]
    report(f"{case}.rank{trainer.global_rank}", seen=module.seen, samplers=samplers)


def alone() -> None:
    for workers in (0, 2):
        fit(f"shuffled_{workers}", DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers))
        generator = torch.Generator().manual_seed(5)
        fit(
            f"generator_{workers}",
            DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, generator=generator),
        )
        generator = torch.Generator().manual_seed(8)
        limited = DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, generator=generator)
        fit(f"limited_{workers}", limited, limit=LIMIT)
        fit(f"stream_{workers}", DataLoader(Stream(), BATCH, num_workers=workers, held_back=1))
    generators = [torch.Generator().manual_seed(seed) for seed in (6, 7)]
    both = [DataLoader(Numbers(), BATCH, shuffle=True, generator=generator) for generator in generators]
    fit("two_loaders", CombinedLoader(both, "max_size_cycle"))


def on_two() -> None:
    for workers in (0, 2):
        data = Numbers()
        sampler = DistributedSampler(data, num_replicas=2, rank=int(os.environ.get("LOCAL_RANK", "0")), seed=3)
        fit(f"two_{workers}", DataLoader(data, BATCH, sampler=sampler, num_workers=workers), devices=2)


if __name__ == "__main__":
    pl.seed_everything(100 if IS_RESUMED else 1, verbose=False)
    if "LOCAL_RANK" not in os.environ:
        alone()
    on_two()
