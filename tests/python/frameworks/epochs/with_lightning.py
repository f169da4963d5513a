# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: fit, validate and predict on 1 device, with torch's loader and headrace's; the first two on 2.

To predict and on 2 devices it gives every loader another sampler: it makes a new one of the loader's class, from the
loader's attributes, or from its recorded arguments where a hook made it. It starts this script again with LOCAL_RANK=1.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import headrace.torch
import lightning.pytorch as pl
import torch
import torch.utils.data
from common import BATCH, COUNT, OPTIONS, Numbers, bits, engines, limits, report, taken, watch
from headrace.torch import per_rank


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: dict[str, list[int]] = {"train": [], "val": [], "predict": []}

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen["train"] += batch[1].tolist()
        return (self.layer(batch[0])[:, 0] - batch[1]).square().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        self.seen["val"] += batch[1].tolist()
        self.log("loss", self.layer(batch[0]).mean(), sync_dist=True)

    def predict_step(self, batch: Any, _: int) -> None:
        self.seen["predict"] += batch[1].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class WithHooks(Model):
    """Its loaders are made in Lightning's hooks, with positional and with keyword arguments."""

    def train_dataloader(self) -> Any:
        return headrace.torch.DataLoader(Numbers(), BATCH, shuffle=True, num_workers=1, **OPTIONS)

    def val_dataloader(self) -> Any:
        return headrace.torch.DataLoader(dataset=Numbers(), batch_size=BATCH, num_workers=1, **OPTIONS)


def trainer(**options: Any) -> Any:
    return pl.Trainer(
        accelerator="cpu",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 1, **options},
    )


def own_options() -> list[str]:
    """The names of those that torch's loader does not have."""
    theirs, ours = (
        inspect.signature(kind.__init__).parameters for kind in (torch.utils.data.DataLoader, headrace.torch.DataLoader)
    )
    return [name for name in ours if name not in theirs and ours[name].kind is inspect.Parameter.KEYWORD_ONLY]


def make(kind: Any, **options: Any) -> Any:
    return kind(Numbers(), batch_size=BATCH, num_workers=1, **options)


def fit(kind: Any, **options: Any) -> dict[str, Any]:
    pl.seed_everything(11, verbose=False)
    model, one = Model(), trainer(devices=1)
    val = make(kind, **options)
    one.fit(model, make(kind, shuffle=True, **options), val)
    validated = one.validate(model, val, verbose=False)
    one.predict(model, val)
    return {
        "seen": model.seen,
        "weights": bits(model),
        "loss": validated[0]["loss"].hex(),
        "options": {name: getattr(one.predict_dataloaders, name, None) for name in OPTIONS},
        "engines": taken(engines),
        "limits": taken(limits),
    }


def what(loader: Any) -> dict[str, Any]:
    return {
        "kind": f"{type(loader).__module__}.{type(loader).__name__}",
        "sampler": type(loader.sampler).__name__,
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        **{name: getattr(loader, name) for name in OPTIONS},
    }


def fit_on_two(model: Any, *loaders: Any) -> dict[str, Any]:
    two = trainer(devices=2, strategy="ddp")
    two.fit(model, *loaders)
    made = [what(two.train_dataloader), what(two.val_dataloaders)]
    two.validate(model, *loaders[1:], verbose=False)
    made.append(what(two.val_dataloaders))
    return {"seen": model.seen, "loaders": made, "engines": taken(engines), "limits": taken(limits)}


def on_two() -> None:
    pl.seed_everything(13, verbose=False)
    kind = headrace.torch.DataLoader
    given = fit_on_two(Model(), make(kind, shuffle=True, **OPTIONS), make(kind, **OPTIONS))
    hooks = fit_on_two(WithHooks())
    report(f"rank{os.environ.get('LOCAL_RANK', '0')}", given=given, hooks=hooks)


class Dealt(Model):
    """Its loaders are made in Lightning's hooks, when the ranks are known, with samplers that per_rank deals."""

    def __init__(self, is_in_batches: bool = False, is_planned: bool = False) -> None:
        super().__init__()
        self.is_in_batches = is_in_batches
        self.is_planned = is_planned

    def train_dataloader(self) -> Any:
        if self.is_planned:
            plan = headrace.Plan([5] * COUNT, max_batch=BATCH)
            return headrace.torch.DataLoader(Numbers(), batch_sampler=plan, num_workers=1)
        sampler = torch.utils.data.RandomSampler(Numbers())
        if self.is_in_batches:
            batches = torch.utils.data.BatchSampler(sampler, BATCH, False)
            return headrace.torch.DataLoader(Numbers(), batch_sampler=per_rank(batches, seed=3), num_workers=1)
        return headrace.torch.DataLoader(Numbers(), BATCH, sampler=per_rank(sampler, seed=3), num_workers=1)

    def val_dataloader(self) -> Any:
        sampler = per_rank(range(COUNT), tail="exact")
        return headrace.torch.DataLoader(Numbers(), BATCH, sampler=sampler, num_workers=1)


def error_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""


def deal_early() -> str:
    """Returns the error of a sampler that is made before the ranks are known: at once if Lightning started this process
    as its second rank, and otherwise in the first epoch."""
    two = trainer(devices=2, strategy="ddp")
    if "LOCAL_RANK" in os.environ:
        text = error_of(per_rank, range(COUNT))
        two.fit(Dealt())
        return text
    early = per_rank(range(COUNT))
    two.fit(Dealt())
    return error_of(next, iter(early))


def dealt() -> None:
    early = deal_early()
    two = {"devices": 2, "strategy": "ddp", "max_epochs": 2}
    one, model = trainer(**two), Dealt()
    one.fit(model)
    made = [one.train_dataloader, one.val_dataloaders]
    loaders = [[type(loader.sampler).__name__, loader.sampler.num_replicas == 2] for loader in made]
    in_batches = Dealt(is_in_batches=True)
    trainer(**two).fit(in_batches)
    planned = Dealt(is_planned=True)
    trainer(**two).fit(planned)
    taken(engines), taken(limits)
    report(
        f"dealt{os.environ.get('LOCAL_RANK', '0')}",
        loaders=loaders,
        seen=model.seen,
        batches=in_batches.seen,
        planned=planned.seen,
        early=early,
    )


if __name__ == "__main__":
    watch()
    if "LOCAL_RANK" not in os.environ:
        report("options", own=own_options(), tried=OPTIONS)
        report("torchs", **fit(torch.utils.data.DataLoader))
        report("ours", **fit(headrace.torch.DataLoader, **OPTIONS))
        with headrace.torch.installed():
            report("installed", **fit(torch.utils.data.DataLoader))
    dealt()
    on_two()
