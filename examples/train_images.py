# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on a folder of images, and prints the loss of each step, to the last bit.

With --pillow, Pillow and torchvision make the images; otherwise headrace does, with the same bits. So both print the
same losses. It needs torchvision. Run it on one or more ranks:

    python examples/train_images.py FOLDER
    headrace run --nproc 2 examples/train_images.py FOLDER --pillow

The folder has one folder of images for each class, as torchvision's ImageFolder expects.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed
from headrace import images
from headrace.torch import DataLoader, DistributedSampler
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIDE = 48


def make_transform() -> Any:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.ColorJitter(0.2, 0.2, 0.2),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def make_dataset(folder: str, uses_pillow: bool) -> Any:
    if uses_pillow:
        return ImageFolder(folder, make_transform())
    return ImageFolder(folder, images.native(make_transform()), loader=images.load_rgb)  # the changed line


def make_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def train(args: argparse.Namespace) -> list[float]:
    """Returns the loss of each step on this rank."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dataset = make_dataset(args.folder, args.pillow)
    model: nn.Module = make_model(len(dataset.classes))
    model(torch.zeros(1, 3, SIDE, SIDE))
    is_distributed = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    sampler = None
    if is_distributed:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(dataset, seed=args.seed)
    options = {"num_workers": args.workers, "threads": args.threads, "rng": "sample", "seed": args.seed}
    loader = DataLoader(dataset, args.batch_size, shuffle=sampler is None, sampler=sampler, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if is_distributed:
        torch.distributed.destroy_process_group()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--pillow", action="store_true", help="let Pillow and torchvision make the images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for step, loss in enumerate(train(args)):
        print(f"step {step}: loss {loss.hex()} ({loss:.4f})\n", end="", flush=True)  # one write(2): ranks share stdout


if __name__ == "__main__":
    main()
