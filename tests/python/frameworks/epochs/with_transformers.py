# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with a tiny model, 10 steps and an evaluation: with torch's engine and with headrace's."""

from __future__ import annotations

from typing import Any

import headrace.torch
import torch
import torch.utils.data
from common import bits, engines, report, taken, watch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, LENGTH, WORDS = 10, 8, 32


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """index -> tokens that a generator of the worker's draws: the seeds are part of what is compared."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.randint(0, 4, (LENGTH,)) + index) % WORDS
        return {"input_ids": tokens, "labels": tokens}


class Recording(Trainer):
    losses: list[str]

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        out = super().compute_loss(*args, **options)
        self.losses.append((out[0] if isinstance(out, tuple) else out).item().hex())
        return out


def train() -> dict[str, Any]:
    torch.manual_seed(5)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        dataloader_num_workers=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=7,
    )
    trainer = Recording(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts())
    trainer.losses = []
    trained = trainer.train()
    evaluated = trainer.evaluate()
    return {
        "losses": trainer.losses,
        "steps": trained.global_step,
        "training_loss": trained.training_loss.hex(),
        "eval_loss": evaluated["eval_loss"].hex(),
        "weights": bits(model),
        "engines": taken(engines),
    }


if __name__ == "__main__":
    watch()
    report("torchs", **train())
    with headrace.torch.installed():
        report("ours", **train())
