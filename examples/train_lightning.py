# SPDX-License-Identifier: Apache-2.0
"""Lightning: a training that is stopped in the middle of an epoch goes on at the same sample.

    python examples/train_lightning.py

Only the import of DataLoader is headrace's. Lightning saves the state of the loader in its checkpoints.
"""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from headrace.torch import DataLoader
from lightning.pytorch.callbacks import ModelCheckpoint

SAMPLES, BATCH, STOP_AT = 120, 6, 8


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Points in a plane, and on which side of a line they are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        point = torch.rand(2, generator=torch.Generator().manual_seed(index))
        return point, (point.sum(dim=0, keepdim=True) > 1).float(), index


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[int] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        points, labels, indices = batch
        self.seen += indices.tolist()
        return torch.nn.functional.binary_cross_entropy_with_logits(self.layer(points), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def train(folder: str, steps: int, checkpoint: str | None = None) -> tuple[list[int], str]:
    """Trains for so many steps in all, and returns the samples that it has seen, and its last checkpoint."""
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(
        Points(), BATCH, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(0)
    )  # the state of the generator is in that of the loader
    save = ModelCheckpoint(folder, every_n_train_steps=STOP_AT, save_top_k=-1, save_on_train_epoch_end=False)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen, save.best_model_path


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, checkpoint = train(folder, STOP_AT)
        print(f"stopped after {len(first)} samples")
        rest, _ = train(folder, SAMPLES // BATCH, checkpoint)
    once = sorted(first + rest) == list(range(SAMPLES))
    print(f"went on with {len(rest)} samples; each sample of the epoch was seen {'once' if once else 'NOT once'}")


if __name__ == "__main__":
    main()
