# SPDX-License-Identifier: Apache-2.0
"""Train a small transformer on the functions of Python's standard library, packed into rows without padding. The
training is killed in the middle of an epoch on two ranks, and goes on with three.

    python examples/train_tokens.py                                    # shows it, and compares with padding
    headrace run --nproc 2 examples/train_tokens.py --train FOLDER     # the training alone; torchrun starts it, too

The function `train` is the part to copy: the lengths are measured once, a Plan packs them into rows for all ranks, and
collate_packed lays the samples of a row end to end.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import torch
import torch.distributed as dist
from headrace.torch import DataLoader, collate_packed, per_rank
from torch import Tensor, nn
from torch.utils.data import Dataset, RandomSampler

ROW = 2048  # tokens of a packed row
LONGEST = 1024  # tokens of a sample; longer functions are cut off
WIDTH, HEADS = 32, 2
IGNORED = -100  # the label of tokens that are not predicted
SAVED_EVERY = 5  # steps
COMPARED = 40  # steps, of packed rows and of padded batches


class Functions(Dataset[dict[str, np.ndarray[Any, Any]]]):
    """The source code of each function of some modules of the standard library. A token is a byte."""

    def __init__(self, modules: int) -> None:
        self.texts: list[bytes] = []
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:modules]:
            source = path.read_text(errors="replace")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
                    self.texts.append(text.encode()[:LONGEST])

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        return {"input_ids": np.frombuffer(self.texts[index], np.uint8)}


def attend(query: Tensor, key: Tensor, value: Tensor, starts: Tensor | None) -> Tensor:
    """Mixes tokens (rows, heads, length, size) with those before them, in each document by itself. starts: where the
    documents of the one row begin, and its end; None: each row is a document. On a GPU, flash attention's varlen
    function does this in one call, and takes `starts` as cu_seqlens."""
    if starts is None:
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    parts = [
        nn.functional.scaled_dot_product_attention(
            query[..., start:end, :], key[..., start:end, :], value[..., start:end, :], is_causal=True
        )
        for start, end in itertools.pairwise(starts.tolist())
    ]
    return torch.cat(parts, 2)


class Transformer(nn.Module):
    """One block. Each token sees the tokens of its own document that come before it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.place = nn.Embedding(LONGEST, WIDTH)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.predict = nn.Linear(WIDTH, 256)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cu_seq_lens_q: Tensor | None = None, **unused: Any
    ) -> Tensor:
        hidden = self.token(input_ids) + self.place(position_ids)
        rows, length, _ = hidden.shape
        query, key, value = self.mix(self.before(hidden)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = attend(query, key, value, cu_seq_lens_q)
        hidden = hidden + self.join(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + self.think(self.after(hidden))
        logits: Tensor = self.predict(hidden)
        return logits


def pad(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Returns what collate_packed does, but with a row for each sample, padded to the longest one."""
    tokens = [torch.tensor(sample["input_ids"], dtype=torch.int64) for sample in samples]
    input_ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=IGNORED)
    labels[:, 0] = IGNORED
    position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    return {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}


def loader_of(dataset: Functions, is_padded: bool) -> tuple[Any, Any]:
    """Returns the loader and its sampler: packed rows, or random batches with as many tokens on average."""
    lengths = headrace.lengths(dataset, "input_ids", workers=0)
    if is_padded:
        sampler = per_rank(RandomSampler(dataset), tail="exact", seed=0)
        size = max(1, round(ROW / float(lengths.mean())))
        return DataLoader(dataset, size, sampler=sampler, collate_fn=pad, num_workers=1), sampler
    plan = headrace.Plan(lengths, pack=ROW, cost_linear=WIDTH, cost_quadratic=1, tail="exact", seed=0)
    return DataLoader(dataset, batch_sampler=plan, collate_fn=collate_packed, num_workers=1), plan


def train(options: argparse.Namespace) -> None:
    """Trains one epoch on all ranks, and saves a checkpoint every few steps."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), os.path.join(options.train, "checkpoint.pt")
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader, sampler = loader_of(Functions(options.modules), options.padded)
    if rank == 0 and not options.padded:
        print(sampler.report(), flush=True)

    step = 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])  # what is left is packed again, for the ranks that there are now
        step = checkpoint["step"]
        if rank == 0:
            print(f"  resumed after step {step}, on {dist.get_world_size()} ranks", flush=True)

    speed = Speed()
    for batch in loader:
        labels = batch["labels"][:, 1:]
        logits = model(**batch)[:, :-1]
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        loss = loss * loader.last.weights.max()  # 0 on a rank that had no sample left and got one again
        counted = torch.tensor([float((labels != IGNORED).sum()) * float(loader.last.weights.max()), loss.item()])
        dist.all_reduce(counted)
        optimizer.zero_grad()
        (loss / counted[0]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        speed.note(counted)
        note_samples(options.train, rank, step, loader.last)
        if step % SAVED_EVERY == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({**state, "step": step}, path + ".new")
            os.rename(path + ".new", path)
        if step == options.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == options.steps:
            break
    if rank == 0:
        print(speed, flush=True)
    dist.destroy_process_group()


class Speed:
    """Counts tokens of all ranks from the second step on."""

    def __init__(self) -> None:
        self.begun, self.tokens, self.loss = 0.0, 0.0, 0.0

    def note(self, counted: Tensor) -> None:
        self.loss = float(counted[1] / counted[0])
        self.tokens += float(counted[0]) if self.begun else 0.0
        self.begun = self.begun or time.perf_counter()

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.begun
        return f"  {self.tokens / seconds:,.0f} tokens per second, loss {self.loss:.2f}"


# ---- what follows only shows that it works ----


def note_samples(folder: str, rank: int, step: int, last: Any) -> None:
    """Notes which samples were trained on, for the comparison at the end."""
    seen = [index for index, weight in zip(last.indices, last.weights.tolist(), strict=True) if weight]
    with open(os.path.join(folder, f"seen-{rank}-{dist.get_world_size()}"), "a") as file:
        print(json.dumps([step, seen]), file=file)


def run_ranks(folder: str, ranks: int, options: argparse.Namespace, *more: str) -> str:
    """Runs the training with so many ranks, and returns what it printed."""
    launch = [sys.executable, "-m", "headrace", "run", f"--nproc={ranks}"]
    script = [__file__, "--train", folder, "--modules", str(options.modules), *more]
    done = subprocess.run([*launch, *script], timeout=600, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    return done.stdout


def samples_seen(folder: str, kept: int) -> list[int]:
    """Returns the samples that the model was trained on: by two ranks up to step `kept`, which the checkpoint has, and
    by three ranks after it."""
    found: list[int] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("seen-"):
            is_first = name.endswith("-2")
            with open(os.path.join(folder, name)) as file:
                for step, seen in map(json.loads, file):
                    found += seen if (step <= kept) == is_first else []
    return found


def speed_of(printed: str) -> float:
    line = next(line for line in printed.splitlines() if "tokens per second" in line)
    return float(line.split("tokens per second")[0].split()[-1].replace(",", ""))


def show(options: argparse.Namespace) -> bool:
    """Trains on two ranks, kills them, resumes on three, compares with padding if that is asked for, and says whether
    each sample was seen once."""
    count = len(Functions(options.modules))
    killed_at = options.killed_at if options.killed_at > 0 else 2 * SAVED_EVERY + 2
    with tempfile.TemporaryDirectory() as folder:
        print(f"two ranks train on {count:,} functions, and are killed at step {killed_at}", flush=True)
        run_ranks(folder, 2, options, "--killed-at", str(killed_at))
        print("they were killed; three ranks go on", flush=True)
        run_ranks(folder, 3, options)
        seen = samples_seen(folder, killed_at // SAVED_EVERY * SAVED_EVERY)
    print(f"{len(seen):,} samples were trained on, {len(set(seen)):,} different ones", flush=True)
    if not options.no_comparison:
        compare(options)
    return sorted(seen) == list(range(count))


def compare(options: argparse.Namespace) -> None:
    """Trains for some steps with packed rows and with padded batches, and prints how their speeds compare."""
    steps = COMPARED if options.steps is None else options.steps
    speeds = []
    for name, more in (("packed", []), ("padded to the longest", ["--padded"])):
        with tempfile.TemporaryDirectory() as folder:
            print(f"two ranks, {name}:", flush=True)
            speeds.append(speed_of(run_ranks(folder, 2, options, "--steps", str(steps), *more)))
    print(f"packed rows train on {speeds[0] / speeds[1]:.2f} times as many tokens per second", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FOLDER", help="train, with checkpoints in this folder")
    parser.add_argument("--modules", type=int, default=60, help="how many modules of the standard library are read")
    parser.add_argument("--steps", type=int, help=f"stop after so many steps (the comparison: {COMPARED})")
    parser.add_argument("--no-comparison", action="store_true", help="do not compare with padding")
    parser.add_argument("--killed-at", type=int, default=-1, help="the step at which each rank kills itself")
    parser.add_argument("--padded", action="store_true", help="pad random batches to their longest sample, to compare")
    options = parser.parse_args()
    if options.train:
        train(options)
        return 0
    is_right = show(options)
    print("each sample was seen once" if is_right else "samples are missing, or were seen twice")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
