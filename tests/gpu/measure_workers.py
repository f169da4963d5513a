# SPDX-License-Identifier: Apache-2.0
"""Measures batches per second with 1 to 14 workers, torch next to headrace, without a GPU: for many cores.
tools/test_gpu.py runs it; rows go to workers.md in $HEADRACE_GPU_RESULTS."""

from __future__ import annotations

import io
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from headrace.torch import DataLoader
from loaders import Torch

RESULTS = Path(os.environ.get("HEADRACE_GPU_RESULTS", "."))
WORKERS = (1, 2, 4, 8, 14)
SECONDS = 1.5


class Floats(torch.utils.data.Dataset[Any]):
    def __init__(self, *shape: int) -> None:
        self.sample = torch.rand(shape)

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> Any:
        return self.sample, index


class Images(Floats):
    def __init__(self) -> None:
        from PIL import Image

        file = io.BytesIO()
        Image.effect_noise((500, 375), 60).convert("RGB").save(file, "jpeg")
        self.bytes = file.getvalue()

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        from PIL import Image

        image = Image.open(io.BytesIO(self.bytes)).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), index


def rate(kind: Any, dataset: Any, batch: int, workers: int) -> float:
    batches = iter(kind(dataset, batch, num_workers=workers, multiprocessing_context="fork"))
    for _ in range(2 * workers):
        next(batches)
    start, count = time.perf_counter(), 0
    while time.perf_counter() < start + SECONDS:
        next(batches)
        count += 1
    return count / (time.perf_counter() - start)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = {"images": (Images(), 64), "float32 64x3x224x224": (Floats(3, 224, 224), 64), "tiny": (Floats(8), 16)}
    lines = ["| work | workers | torch, batches/s | headrace, batches/s |", "|---|---|---|---|"]
    for name, (dataset, batch) in cases.items():
        for workers in WORKERS:
            found = [rate(kind, dataset, batch, workers) for kind in (Torch, DataLoader)]
            lines.append(f"| {name} | {workers} | {found[0]:.1f} | {found[1]:.1f} |")
            print(lines[-1], flush=True)
            (RESULTS / "workers.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
