# SPDX-License-Identifier: Apache-2.0
"""Each method of Lightning's Trainer with each sampler of headrace, on two ranks: what each of them gives this rank.

Lightning starts this script again with LOCAL_RANK=1. Its own sampler for predict (None here) gives 13 samples without a
repeat, so the ranks have 7 and 6.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import headrace
import headrace.torch
import lightning.pytorch as pl
import torch
import torch.utils.data
from common import report
from headrace.torch import DataLoader, DistributedSampler, per_rank

N, BATCH = 13, 2
SAMPLES = list(range(N))


def batches_of(sampler: Any) -> Any:
    return torch.utils.data.BatchSampler(sampler, BATCH, False)


SAMPLERS: dict[str, Any] = {
    "None": lambda: {"batch_size": BATCH},
    "Order": lambda: {"batch_size": BATCH, "sampler": headrace.Order(N, seed=1)},
    "DistributedSampler": lambda: {"batch_size": BATCH, "sampler": DistributedSampler(SAMPLES)},
    "per_rank": lambda: {"batch_size": BATCH, "sampler": per_rank(SAMPLES, tail="exact")},
    "per_rank of batches": lambda: {"batch_sampler": per_rank(batches_of(SAMPLES), tail="exact")},
    "Plan": lambda: {"batch_sampler": headrace.Plan([5] * N, max_batch=BATCH, tail="exact")},
}


class Model(pl.LightningModule):
    def __init__(self, loaders: dict[str, Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.loaders = loaders
        self.seen: list[int] = []
        self.counted = 0.0

    def _loader(self) -> Any:
        """Makes the loader in Lightning's hooks, when the ranks are known."""
        self.loader = self.loaders["make"](SAMPLES, **self.loaders["options"]())
        return self.loader

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader

    def _step(self, batch: Any, loader: Any) -> torch.Tensor:
        self.seen += batch.tolist()
        last = getattr(loader, "last", None)
        self.counted += len(batch) if last is None else float(sum(last.weights))
        return self.layer(batch[:, None].float()).mean()  # type: ignore[no-any-return]

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return self._step(batch, self.trainer.train_dataloader)

    def validation_step(self, batch: Any, _: int) -> None:
        self._step(batch, self.trainer.val_dataloaders)

    def test_step(self, batch: Any, _: int) -> None:
        self._step(batch, self.trainer.test_dataloaders)

    def predict_step(self, batch: Any, _: int) -> None:
        self._step(batch, self.trainer.predict_dataloaders)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Writer(pl.callbacks.BasePredictionWriter):
    """Keeps the indices that Lightning gives to writers of predictions."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.indices: list[int] = []

    def write_on_batch_end(self, trainer: Any, module: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.indices += indices or []


def run(method: str, make: Any, options: Any) -> dict[str, Any]:
    writer = Writer()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        limit_val_batches=0 if method == "fit" else None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[writer] if method == "predict" else [],
    )
    model = Model({"make": make, "options": options})
    try:
        getattr(trainer, method)(model, **({"verbose": False} if method in ("validate", "test") else {}))
    except (RuntimeError, TypeError, ValueError) as error:
        return {"error": str(error)}
    indices = writer.indices if method == "predict" else model.seen
    return {"seen": model.seen, "counted": model.counted, "indices": indices}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for method in ("fit", "validate", "test", "predict"):
        for name, options in SAMPLERS.items():
            found[f"{method} {name}"] = run(method, DataLoader, options)
    with headrace.torch.installed():
        for method in ("fit", "predict"):
            for name in ("None", "per_rank", "Plan"):
                found[f"{method} {name} installed"] = run(method, torch.utils.data.DataLoader, SAMPLERS[name])
    report(f"rank{os.environ.get('LOCAL_RANK', '0')}", **found)
