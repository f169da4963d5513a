# SPDX-License-Identifier: Apache-2.0
"""Train a small model on texts with images, on two ranks, and print what the steps of each rank cost: planned by the
tokens alone, and by tokens and patches together.

    python examples/train_text_images.py                      # both, on two ranks
    headrace run --nproc 2 examples/train_text_images.py      # the same; torchrun starts it, too

The functions `loader_of` and `train` are the part to copy: the lengths are measured by name in one pass, a Plan fills
rows that keep both budgets and cost about the same, and collate_packed joins tokens and patches.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import subprocess
import sys
from typing import Any

import headrace
import numpy as np
import torch
import torch.distributed as dist
from headrace.torch import DataLoader, collate_packed
from torch import Tensor, nn
from torch.utils.data import Dataset

TOKENS, PATCHES = 1024, 512  # the budgets of a row
COST = {"text": (1, 0), "patches": (16, 1)}  # attention makes patches expensive
WIDTH, VALUES, WORDS = 16, 12, 100  # of the model, of a patch, of the vocabulary
SHOWN = 8  # steps


class Posts(Dataset[dict[str, np.ndarray[Any, Any]]]):
    """Texts of 8 to 512 tokens, with up to eight images of 8 to 32 patches. What is to be predicted is how bright the
    patches are; a post without an image is dark."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        draw = np.random.default_rng(index)
        tokens = int(np.clip(draw.lognormal(4, 0.8), 8, 512))
        patches = int(draw.integers(8, 33, draw.integers(0, 9)).sum())
        light = draw.random()
        return {
            "input_ids": draw.integers(0, WORDS, tokens, dtype=np.int32),
            "pixel_values": (light + 0.1 * draw.standard_normal((patches, VALUES))).astype(np.float32),
            "light": np.array([light if patches else 0], np.float32),
        }


class Model(nn.Module):
    """Attention between the patches of a sample, and the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.patch = nn.Embedding(WORDS, WIDTH), nn.Linear(VALUES, WIDTH)
        self.predict = nn.Linear(2 * WIDTH, 1)

    def forward(self, input_ids: Tensor, cu_seq_lens_q: Tensor, pixel_values: Tensor, starts: Tensor) -> Tensor:
        words, patches = self.word(input_ids[0]), self.patch(pixel_values)
        found = []
        for text, image in zip(pairs(cu_seq_lens_q), pairs(starts), strict=True):
            own = patches[slice(*image)][None]
            seen = nn.functional.scaled_dot_product_attention(own, own, own)[0].sum(0) / max(1, own.shape[1])
            found.append(torch.cat([words[slice(*text)].mean(0), seen]))
        predicted: Tensor = self.predict(torch.stack(found))
        return predicted


def pairs(starts: Tensor) -> list[tuple[int, int]]:
    """Returns where each sample begins and ends. flash attention's varlen functions take `starts` as it is."""
    return list(itertools.pairwise(starts.tolist()))


def loader_of(dataset: Posts, has_patches: bool) -> tuple[Any, headrace.Plan]:
    """Returns the loader and its plan: by tokens and patches, or by the tokens alone."""
    lengths = headrace.lengths(dataset, {"text": "input_ids", "patches": "pixel_values"}, workers=0)
    common: dict[str, Any] = {"tail": "exact", "seed": 0}
    if has_patches:
        plan = headrace.Plan(lengths, pack={"text": TOKENS, "patches": PATCHES}, cost=COST, **common)
    else:
        plan = headrace.Plan(lengths["text"], pack=TOKENS, **common)
    collate = functools.partial(collate_packed, names=("pixel_values", "light"))
    return DataLoader(dataset, batch_sampler=plan, collate_fn=collate, num_workers=1), plan


def cost_of(batch: dict[str, Any]) -> int:
    """Returns what a batch costs by COST."""
    text, patches = (np.diff(batch[f"cu_seq_lens_{name}"].numpy().astype(int)) for name in ("q", "pixel_values"))
    sums = {"text": text, "patches": patches}
    return int(sum((linear * sums[name] + square * sums[name] ** 2).sum() for name, (linear, square) in COST.items()))


def train(dataset: Posts, has_patches: bool) -> tuple[np.ndarray[Any, Any], list[int], int]:
    """Trains one epoch. Returns the cost of each step and rank, the samples that were seen, and the most patches of a
    batch."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader, plan = loader_of(dataset, has_patches)
    if dist.get_rank() == 0:
        print(plan.report(), flush=True)
    costs, seen, most = [], [], 0
    for batch in loader:
        predicted = model(
            batch["input_ids"], batch["cu_seq_lens_q"], batch["pixel_values"], batch["cu_seq_lens_pixel_values"]
        )
        weights = loader.last.weights.float()  # 0 on a rank that had no sample left and got one again
        loss = ((predicted[:, 0] - batch["light"]) ** 2 * weights).sum() / loader.last.global_count
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        costs.append(cost_of(batch))
        seen += [index for index, weight in zip(loader.last.indices, weights.tolist(), strict=True) if weight]
        most = max(most, len(batch["pixel_values"]))
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, (costs, seen, most))
    return (
        np.array([one[0] for one in everything]).T,
        [index for one in everything for index in one[1]],
        max(one[2] for one in everything),
    )


# ---- what follows only shows the difference ----


def show(costs: np.ndarray[Any, Any], most: int) -> float:
    """Prints the costs of the first steps, and returns how much longer than their mean all steps take."""
    print("step  " + "".join(f"{f'rank {rank}':>12}" for rank in range(costs.shape[1])) + "   most / mean")
    for step, of_ranks in enumerate(costs[:SHOWN]):
        text = "".join(f"{cost:12,}" for cost in of_ranks)
        print(f"{step + 1:4}  {text}   {of_ranks.max() / of_ranks.mean():11.3f}")
    lost = float(costs.max(1).sum() / costs.mean(1).sum())
    print(f"all {len(costs)} steps take {lost:.3f} of what they would take if no rank waited;", end=" ")
    print(f"the largest batch has {most:,} patches", flush=True)
    return lost


def compare(options: argparse.Namespace) -> bool:
    """Trains in both ways, and returns whether the plan of both lengths is better, and had each sample once."""
    dataset = Posts(options.samples)
    lost, is_once, largest = [], True, 0
    for name, has_patches in (("tokens alone", False), ("tokens and patches", True)):
        if dist.get_rank() == 0:
            print(f"\nplanned by {name}:", flush=True)
        costs, seen, largest = train(dataset, has_patches)
        is_once = is_once and sorted(seen) == list(range(len(dataset)))
        if dist.get_rank() == 0:
            lost.append(show(costs, largest))
    return is_once and largest <= PATCHES and (dist.get_rank() != 0 or lost[1] < lost[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1200, help="how many posts the dataset has")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        launch = [sys.executable, "-m", "headrace", "run", "--nproc=2", __file__, "--samples", str(options.samples)]
        return subprocess.run(launch, timeout=600).returncode
    dist.init_process_group("gloo")
    is_right = compare(options)
    if dist.get_rank() == 0:
        print("each sample was seen once, and ranks wait less" if is_right else "something is not as it should be")
    dist.destroy_process_group()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
