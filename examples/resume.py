# SPDX-License-Identifier: Apache-2.0
"""Training that is killed in the middle of an epoch on two ranks, and goes on at the same sample on one rank.

    python examples/resume.py                                    # shows it: trains, kills, resumes, compares
    headrace run --nproc 2 examples/resume.py --train FOLDER     # the training alone; torchrun starts it, too

The function `train` is the part to copy. Its checkpoint has the state of the loader next to those of the model and the
optimizer: `loader.state_dict()`, and `loader.load_state_dict(...)`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile

import torch
import torch.distributed as dist
from headrace.torch import DataLoader, per_rank
from kill_and_resume import has_each_once, kill_and_resume, note_samples, parser_of
from torch.utils.data import Dataset, RandomSampler

SAMPLES, BATCH, EPOCHS = 600, 10, 2


class Points(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Points in a plane, and on which side of a line they are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        point = torch.rand(2, generator=torch.Generator().manual_seed(index))
        return point, (point.sum(dim=0, keepdim=True) > 1).float(), index


def train(folder: str, workers: int, killed_at: int) -> None:
    """Trains on all ranks, and saves a checkpoint every five steps."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), os.path.join(folder, "checkpoint.pt")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    # per_rank gives each rank its part of the shuffled order, and each sample once per epoch.
    dataset = Points()
    sampler = per_rank(RandomSampler(dataset), tail="exact", seed=0)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)

    step, first_epoch = 0, 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])  # the next `for` begins after the last sample of the checkpoint
        step, first_epoch = checkpoint["step"], checkpoint["epoch"]
        if rank == 0:
            print(f"  resumed after step {step}, in epoch {first_epoch}, on {dist.get_world_size()} ranks", flush=True)

    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for points, sides, indices in loader:
            weights = loader.last.weights  # 0 for a sample that another rank has too, 1 for all others
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(points), sides, weight=weights[:, None], reduction="sum"
            )
            optimizer.zero_grad()
            (loss / loader.last.global_count).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            note_samples(folder, rank, step, epoch, indices.tolist(), weights.tolist())
            if step % 5 == 0 and rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                next_epoch = epoch + (loader.steps_left == 0)  # the state after the last batch is its start
                torch.save({**state, "step": step, "epoch": next_epoch}, path + ".new")
                os.rename(path + ".new", path)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


# ---- what follows only shows that it works ----


def show(workers: int, killed_at: int) -> bool:
    """Trains on two ranks, kills them, resumes on one, and says whether each sample was seen once per epoch."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"two ranks train on {SAMPLES} samples, and are killed at step {killed_at}", flush=True)
        epochs = kill_and_resume([__file__], folder, workers, killed_at, EPOCHS)
    return has_each_once(epochs, SAMPLES)


def main() -> int:
    options = parser_of(__doc__).parse_args()
    if options.train:
        train(options.train, options.workers, options.killed_at)
        return 0
    is_right = show(options.workers, options.killed_at or 42)
    print("each sample was seen once per epoch" if is_right else "samples are missing, or were seen twice")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
