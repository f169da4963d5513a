# SPDX-License-Identifier: Apache-2.0
"""Training in which the losses of an epoch steer what is sampled in the next one, alike on all ranks of a machine.

    headrace run --nproc 2 examples/loss_sampling.py    # torchrun starts it, too; without a launcher it is one rank

Each rank writes the losses of its samples into one shared array. An order that is drawn from them has to be the same on
all ranks, so it is drawn from a snapshot, which the first rank that comes to an epoch takes for all. The class
LossSampler is the part to copy.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Iterator

import headrace
import numpy as np
import torch
import torch.distributed as dist
from headrace.torch import DataLoader, per_rank
from torch.utils.data import Dataset, Sampler, WeightedRandomSampler

SAMPLES, BATCH, EPOCHS, HARD = 1000, 20, 3, 10  # every tenth sample is hard


class LossSampler(Sampler[int]):
    """Draws samples by their losses, as they were when the epoch began on the rank that came first."""

    def __init__(self, job: str, count: int) -> None:
        self.losses = headrace.cache.shared(f"{job}-losses", count, "float32", fill=1, keep="job")
        # Two snapshots: a rank may begin an epoch before another one has begun it, but not before that one has begun
        # the last one, because all ranks make the same steps.
        self._snapshots = headrace.cache.shared(f"{job}-snapshots", (2, count), "float32", keep="job")
        self._epochs = headrace.cache.shared(f"{job}-epochs", 2, "int64", fill=-1, keep="job")
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        which = epoch % 2
        with self._epochs.lock(timeout=60):
            if self._epochs.array[which] != epoch:  # written last, so a rank that dies here leaves no half of one
                self._snapshots.array[which] = self.losses.array
                self._epochs.array[which] = epoch
            self.weights = torch.from_numpy(self._snapshots.array[which].copy())

    def __iter__(self) -> Iterator[int]:
        return iter(WeightedRandomSampler(self.weights, len(self.weights)))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.weights)


class Points(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Points in a plane and a value of each, which is noise if the sample is hard. The workers count what they make."""

    def __init__(self, job: str) -> None:
        self.made = headrace.cache.shared(f"{job}-made", SAMPLES, "int64", keep="job")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        self.made.add(index, 1)
        random = torch.Generator().manual_seed(index)
        point = torch.rand(2, generator=random)
        noise = 3 * torch.randn(1, generator=random) if index % HARD == 0 else torch.zeros(1)
        return point, point.sum(dim=0, keepdim=True) + noise, index


def train(workers: int) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    has_ranks = dist.is_initialized()
    rank = dist.get_rank() if has_ranks else 0
    job = f"example-{os.environ.get('MASTER_PORT', os.getpid())}"  # another one for each job on this machine
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    source, dataset = LossSampler(job, SAMPLES), Points(job)
    sampler = per_rank(source, seed=0)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        order = np.array(sampler.draw())
        for points, values, indices in loader:
            losses = (model(points) - values).square().squeeze(1)
            optimizer.zero_grad()
            losses.mean().backward()
            for parameter in model.parameters():
                if has_ranks and parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            optimizer.step()
            source.losses.array[indices.numpy()] = losses.detach().numpy() + 0.01  # each can be drawn again
        if has_ranks:
            dist.barrier()  # all losses of this epoch are there when the first rank takes the next snapshot
        hard = 100 * float((order % HARD == 0).mean())
        made = int(dataset.made.array.sum())
        print(
            f"rank {rank}: epoch {epoch}: order {zlib.crc32(order.tobytes()):08x}, {hard:.0f} % of it hard, "
            f"{made} samples made",
            flush=True,
        )
    if has_ranks:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    train(parser.parse_args().workers)
