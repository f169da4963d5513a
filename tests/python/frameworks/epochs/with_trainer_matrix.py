# SPDX-License-Identifier: Apache-2.0
"""Each method of transformers' Trainer, and an evaluation with accelerate, with each sampler of headrace, on two ranks:
what each of them gives this rank.

The loaders of samplers that deal to ranks are given to Trainer as they are, from its hooks; accelerate deals those of
the others.
"""

from __future__ import annotations

import warnings
from typing import Any

import headrace
import headrace.torch
import torch
import torch.utils.data
from accelerate import Accelerator, debug_launcher
from common import report
from headrace.torch import DataLoader, DistributedSampler, per_rank
from transformers import Trainer, TrainingArguments

N, BATCH = 13, 2
SAMPLES = [{"x": torch.tensor([float(index)]), "index": torch.tensor(index)} for index in range(N)]


def batches_of(sampler: Any) -> Any:
    return torch.utils.data.BatchSampler(sampler, BATCH, False)


# Options of a loader that makes the part of this rank
DEALT: dict[str, Any] = {
    "DistributedSampler": lambda: {"batch_size": BATCH, "sampler": DistributedSampler(SAMPLES)},
    "per_rank": lambda: {"batch_size": BATCH, "sampler": per_rank(range(N), tail="exact")},
    "per_rank of batches": lambda: {"batch_sampler": per_rank(batches_of(range(N)), tail="exact")},
    "Plan": lambda: {"batch_sampler": headrace.Plan([5] * N, max_batch=BATCH, tail="exact")},
}
# and of one whose batches accelerate deals
WHOLE: dict[str, Any] = {
    "None": lambda: {"batch_size": BATCH},
    "Order": lambda: {"batch_size": BATCH, "sampler": headrace.Order(N, seed=1)},
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": out.mean(), "logits": out}


class Recording(Trainer):
    options: Any
    is_dealt: bool
    seen: list[int]
    counted: float

    def _loader(self, *_: Any) -> Any:
        self.loader = DataLoader(SAMPLES, **self.options())  # type: ignore[arg-type]
        return self.loader if self.is_dealt else self.accelerator.prepare(self.loader)

    get_train_dataloader = get_eval_dataloader = get_test_dataloader = _loader

    def note(self, inputs: dict[str, torch.Tensor]) -> None:
        self.seen += inputs["index"].tolist()
        self.counted += float(sum(self.loader.last.weights)) if self.is_dealt else len(inputs["index"])

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.note(inputs)
        found = model(**inputs)
        return (found["loss"], found) if options.get("return_outputs") else found["loss"]

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.note(inputs)
        return model(**inputs)["loss"].detach(), None, None


def run(method: str, name: str) -> dict[str, Any]:
    torch.manual_seed(5)
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Recording(model=Model(), args=arguments, train_dataset=SAMPLES, eval_dataset=SAMPLES)  # type: ignore[arg-type]
    trainer.options, trainer.is_dealt, trainer.seen, trainer.counted = {**DEALT, **WHOLE}[name], name in DEALT, [], 0.0
    getattr(trainer, method)(*([SAMPLES] if method == "predict" else []))
    return {"seen": trainer.seen, "counted": trainer.counted}


def evaluate(name: str) -> dict[str, Any]:
    """An evaluation as accelerate's examples write it, which gathers the results of each step."""
    accelerator = Accelerator(cpu=True)
    options = {**DEALT, **WHOLE}[name]()
    loader = DataLoader(SAMPLES, **options)  # type: ignore[arg-type]
    shown = loader if name in DEALT else accelerator.prepare(loader)
    seen, counted, gathered = [], 0.0, 0
    with torch.no_grad():
        for batch in shown:
            seen += batch["index"].tolist()
            counted += float(sum(loader.last.weights)) if name in DEALT else len(batch["index"])
            gathered = int(accelerator.gather(torch.tensor([len(seen)])).sum())
    return {"seen": seen, "counted": counted, "gathered": gathered}


def on_two() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name in (*WHOLE, *DEALT):
        for method in ("train", "evaluate", "predict"):
            found[f"{method} {name}"] = run(method, name)
        found[f"accelerate {name}"] = evaluate(name)
    report(f"trainer{Accelerator(cpu=True).process_index}", **found)


if __name__ == "__main__":
    debug_launcher(on_two, num_processes=2)
