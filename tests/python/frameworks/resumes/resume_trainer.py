# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with resume_from_checkpoint, in one process and in two; with torch's engine and headrace's."""

from __future__ import annotations

from typing import Any

import headrace.torch
import torch
from accelerate import debug_launcher
from common import BATCH, EPOCHS, IS_RESUMED, Model, Numbers, folder_of, report, saved_at
from transformers import Trainer, TrainingArguments


class Recording(Trainer):
    seen: list[Any]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.seen.append([int(self.state.epoch or 0), inputs["index"].tolist()])
        return super().compute_loss(model, inputs, *args, **options)


def train(case: str, workers: int, world_size: int = 1) -> None:
    folder, step = folder_of(case), saved_at(world_size)
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=workers,
        save_steps=step,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_backend="gloo" if world_size > 1 else None,
        report_to=[],
        disable_tqdm=True,
        seed=7,
    )
    data = Numbers()
    trainer = Recording(model=Model(), args=arguments, train_dataset=data)
    trainer.seen = []
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}") if IS_RESUMED else None)
    report(f"{case}.rank{arguments.process_index}", seen=trainer.seen, made=data.made.value)


def on_two() -> None:
    with headrace.torch.installed():
        for workers in (0, 2):
            train(f"two_{workers}", workers, 2)


def alone() -> None:
    train("torch", 0)
    with headrace.torch.installed():
        for workers in (0, 2):
            train(f"alone_{workers}", workers)


if __name__ == "__main__":
    torch.manual_seed(100 if IS_RESUMED else 1)
    debug_launcher(on_two, num_processes=2)
    alone()
