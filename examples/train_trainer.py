# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with headrace's workers: a training that is stopped in mid-epoch goes on at the same text.

    python examples/train_trainer.py

The Trainer makes its loaders itself, so `headrace.torch.install()` puts headrace's engine under them.
"""

from __future__ import annotations

import tempfile
from typing import Any

import headrace.torch
import torch
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

TEXTS, BATCH, SAVE_AT = 96, 8, 5


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Texts of 4 to 32 tokens, each with its number."""

    def __len__(self) -> int:
        return TEXTS

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(4, 33, (1,), generator=generator))
        return {"tokens": torch.randint(1, 100, (length,), generator=generator), "index": index}


def pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return {"tokens": tokens, "index": torch.tensor([sample["index"] for sample in samples])}


class Model(torch.nn.Module):
    """Guesses each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100)
        self.seen: list[int] = []

    def forward(self, tokens: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += index.tolist()
        logits = self.head(self.embedding(tokens[:, :-1]))
        return {
            "loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        }


def train(folder: str, steps: int, checkpoint: str | None = None) -> list[int]:
    """Trains for so many steps in all, and returns the samples that it has seen."""
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=2,
        save_steps=SAVE_AT,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    torch.manual_seed(0)
    model = Model()
    Trainer(model=model, args=arguments, train_dataset=Texts(), data_collator=pad).train(
        resume_from_checkpoint=checkpoint
    )
    return model.seen


def main() -> None:
    logging.set_verbosity_error()
    headrace.torch.install()
    with tempfile.TemporaryDirectory() as folder:
        first = train(folder, SAVE_AT)
        print(f"stopped after {len(first)} texts")
        rest = train(folder, TEXTS // BATCH, f"{folder}/checkpoint-{SAVE_AT}")
    once = sorted(first + rest) == list(range(TEXTS))
    print(f"went on with {len(rest)} texts; each text of the epoch was seen {'once' if once else 'NOT once'}")


if __name__ == "__main__":
    main()
