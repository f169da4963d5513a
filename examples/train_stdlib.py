# SPDX-License-Identifier: Apache-2.0
"""Train a small byte-level language model on the source code of Python's standard library.

    python examples/train_stdlib.py                                   # one process
    headrace run --nproc 2 examples/train_stdlib.py --workers 2       # two ranks, DistributedDataParallel over gloo

You can start your own script from this one: the only headrace line is the import of DataLoader.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler
from tqdm import tqdm

if {"torch", "--loader=torch"} & set(sys.argv):  # To compare, the script can use torch's own loader.
    from torch.utils.data import DataLoader
else:
    from headrace.torch import DataLoader

PADDING = 0  # No source file contains this byte.


class SourceBlocks(Dataset[Tensor]):
    """Sample i is a random top-level block of file i: uint8, of 2 to `max_bytes` bytes."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        installed = {"site-packages", "dist-packages"}
        files = (path for path in sorted(root.rglob("*.py")) if not installed & set(path.parts))
        self.max_bytes = max_bytes
        self.records: list[dict[str, str | bytes | int]] = []  # one per block
        self.ends: list[int] = []  # where the blocks of each file end in `records`
        for path in (path for path in files if os.access(path, os.R_OK) and path.stat().st_size >= 2):
            text = path.read_bytes()
            blocks = [block for block in text.split(b"\n\n\n") if len(block) >= 2] or [text]
            self.records += [{"path": str(path), "text": block, "length": len(block)} for block in blocks]
            self.ends.append(len(self.records))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Tensor:
        begin = self.ends[index - 1] if index else 0
        block = self.records[int(torch.randint(begin, self.ends[index], ()))]["text"]
        return torch.frombuffer(bytearray(block[: self.max_bytes]), dtype=torch.uint8)


def pad(samples: list[Tensor]) -> Tensor:
    """Returns blocks of different lengths as one uint8 tensor (samples, longest)."""
    return nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=PADDING)


class ByteModel(nn.Module):
    """Reads bytes (samples, length) and gives the next byte's logits (samples, length, 256)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.predict = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.read(self.embed(text))
        logits: Tensor = self.predict(states)
        return logits


class Trainer:
    """The model, its optimizer, and one step of both."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        model = ByteModel(args.width)
        self.model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def step(self, batch: Tensor) -> float:
        text = batch.long()
        logits = self.model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), ignore_index=PADDING)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def mean_over_ranks(*values: float) -> list[float]:
    """Returns the means over all ranks. Every rank gets the same numbers, so all ranks decide the same."""
    shared = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(shared)
        shared /= dist.get_world_size()
    return shared.tolist()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def private_bytes(pid: int) -> int:
    """Returns the private memory of a process, without pages of shared memory that only this process has used."""
    total, is_shared = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):  # A new mapping: addresses, rights, offset, device, inode, name.
            is_shared = len(rest) > 4 and rest[4].startswith(("/memfd:", "/dev/shm/"))
        elif first in ("Private_Clean:", "Private_Dirty:") and not is_shared:
            total += int(rest[0]) * 1024
    return total


class Measurements:
    """Measures what data loading costs this rank."""

    def __init__(self) -> None:
        self.first_waits: list[float] = []  # seconds, one per epoch: the first batch
        self.waits: list[float] = []  # seconds, one per other batch
        self.losses: list[tuple[float, float]] = []  # (seconds, loss)
        self.samples = 0
        self.worker_bytes: dict[int, int] = {}  # the maximum seen, by pid
        self.descriptors = {"before": open_descriptors(), "live": 0, "after": 0}

    def timed(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yields the batches of one epoch, and records how long the loop waited for each."""
        waits = self.first_waits
        asked = time.perf_counter()
        for batch in batches:
            waits.append(time.perf_counter() - asked)
            waits = self.waits
            yield batch
            asked = time.perf_counter()

    def look_at_workers(self) -> None:
        for pid in (worker.pid for worker in multiprocessing.active_children() if worker.pid):
            with contextlib.suppress(OSError):  # The worker may have just ended.
                self.worker_bytes[pid] = max(private_bytes(pid), self.worker_bytes.get(pid, 0))
        self.descriptors["live"] = max(open_descriptors(), self.descriptors["live"])

    def report(self, seconds: float, world_size: int) -> dict[str, object]:
        waited = sum(self.first_waits) + sum(self.waits)
        losses = [loss for _, loss in self.losses]
        return {
            "loader": f"{DataLoader.__module__}.{DataLoader.__qualname__}",
            "world_size": world_size,
            "epochs": len(self.first_waits),
            "steps": len(losses),
            "seconds": seconds,
            "samples_per_second": self.samples * world_size / seconds,
            "wait_seconds": waited,
            "wait_share": waited / seconds,
            "first_batch_seconds": self.first_waits[0],
            "later_first_batch_seconds": statistics.median(self.first_waits[1:]) if self.first_waits[1:] else None,
            "worker_private_bytes": sorted(self.worker_bytes.values()),
            "descriptors": self.descriptors,
            "first_loss": losses[0],
            "last_loss": statistics.fmean(losses[-10:]),
            "loss_curve": self.losses,
        }


def train(args: argparse.Namespace, loader: DataLoader[Tensor], seen: Measurements) -> float:
    """Trains epoch after epoch until the time is up, and returns the seconds that it took."""
    trainer = Trainer(args)
    form = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s{postfix}"
    with tqdm(total=args.seconds, bar_format=form, ncols=72, nrows=24, disable=args.rank != 0) as bar:
        if not sys.stderr.isatty():  # a log file, or the pipe of a launcher
            bar.mininterval = 1.0
        started = time.perf_counter()
        for epoch in range(args.epochs):
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            for batch in seen.timed(loader):
                loss, seconds = mean_over_ranks(trainer.step(batch), time.perf_counter() - started)
                seen.samples += len(batch)
                seen.losses.append((round(seconds, 3), round(loss, 4)))
                if len(seen.losses) % 10 == 1:
                    seen.look_at_workers()
                bar.set_postfix_str(f"loss {loss:.2f}, {seen.samples * args.world_size / seconds:.0f} samples/s", False)
                bar.update(min(seconds, args.seconds) - bar.n)
                if seconds >= args.seconds:
                    return seconds
    return seconds


def make_loader(args: argparse.Namespace) -> DataLoader[Tensor]:
    texts = SourceBlocks(Path(sysconfig.get_paths()["stdlib"]), args.max_bytes)
    if args.rank == 0:
        print(f"{len(texts)} files of Python's standard library, {len(texts.records)} blocks", flush=True)
    return DataLoader(
        texts,
        batch_size=args.batch_size,
        sampler=DistributedSampler(texts, args.world_size, args.rank, seed=args.seed),
        num_workers=args.workers,
        collate_fn=pad,
        persistent_workers=args.persistent_workers,
        multiprocessing_context=args.start_method,
        **({"freeze": True} if args.freeze else {}),  # Only headrace has this option: one copy for all workers.
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a byte-level language model on Python's standard library.")
    parser.add_argument("--seconds", type=float, default=60, help="how long to train")
    parser.add_argument(
        "--epochs", type=int, default=1_000_000, help="end after this number of epochs, if that is sooner"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="samples per batch and rank")
    parser.add_argument("--max-bytes", type=int, default=192, help="longest sample")
    parser.add_argument("--width", type=int, default=192, help="width of the model")
    parser.add_argument("--lr", type=float, default=4e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loader", choices=["headrace", "torch"], default="headrace", help="which DataLoader")
    parser.add_argument("--workers", type=int, default=2, help="data loading processes per rank")
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"], help="start method of the workers")
    parser.add_argument("--freeze", action="store_true", help="share the records between the workers (headrace's)")
    parser.add_argument("--persistent-workers", action="store_true", help="keep the workers from epoch to epoch")
    parser.add_argument("--report", type=Path, help="write rank 0's measurements to this JSON file")
    args = parser.parse_args()
    args.rank, args.world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    return args


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    if args.world_size > 1:
        dist.init_process_group("gloo")
    seen = Measurements()
    loader = make_loader(args)
    seconds = train(args, loader, seen)
    del loader
    gc.collect()
    seen.descriptors["after"] = open_descriptors()
    if args.report and args.rank == 0:
        args.report.write_text(json.dumps(seen.report(seconds, args.world_size), indent=1))
    if args.world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
