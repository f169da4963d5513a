# SPDX-License-Identifier: Apache-2.0
"""Train a tiny language model on a token file, as nanoGPT and llm.c write them, without a line of Python for each
sample.

    python examples/train_token_file.py               # writes a token file into a temporary folder, and trains on it
    python examples/train_token_file.py train.bin     # trains on a file of uint16 that you have

The function `loader_of` is the part to copy: sources.Tokens cuts the file into windows, and the loader gathers a batch
of them in C.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headrace import sources
from headrace.torch import DataLoader
from torch import nn

WIDTH = 32


def write_tokens(path: Path) -> None:
    """Writes some modules of the standard library as tokens of uint16, end to end. A token is a byte."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    text = b"\n".join(module.read_bytes() for module in modules)
    np.frombuffer(text, np.uint8).astype(np.uint16).tofile(path)


class Model(nn.Module):
    """Predicts the next token from this one and those before it."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, WIDTH)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.predict = nn.Linear(WIDTH, vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(self.mix(self.embed(x))[0])
        return logits


def loader_of(path: str, options: argparse.Namespace) -> DataLoader[Any]:
    """Returns a loader of random windows of the file: pairs of tokens and the tokens that follow them."""
    dataset = sources.Tokens(path, length=options.length, labels=True, vocab_size=options.vocab_size)
    return DataLoader(dataset, options.batch_size, shuffle=True, num_workers=options.workers, drop_last=True)


def train(loader: DataLoader[Any], options: argparse.Namespace) -> None:
    """Trains for some steps, and prints the loss and the tokens per second."""
    model = Model(options.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, begun, done = 0, time.perf_counter(), False
    while not done:
        for x, y in loader:  # int64, (batch_size, length) each; y has the token that follows each token of x
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            done = step == options.steps
            if step % 20 == 0 or done:
                speed = step * x.numel() / (time.perf_counter() - begun)
                print(f"step {step}: loss {loss.item():.3f}, {speed:,.0f} tokens/s", flush=True)
            if done:
                break


def load(loader: DataLoader[Any]) -> None:
    """Prints how many tokens per second the loader gives to a program that does nothing with them."""
    begun, tokens = time.perf_counter(), 0
    for x, _ in loader:
        tokens += x.numel()
    print(f"the loader alone: {tokens / (time.perf_counter() - begun):,.0f} tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="a token file; without it, one is written")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--vocab-size", type=int, default=50304, help="a token that is not below it is an error")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file
        if path is None:
            path, options.vocab_size = str(Path(folder) / "train.bin"), 256
            write_tokens(Path(path))
        torch.manual_seed(0)
        loader = loader_of(path, options)
        if not len(loader):
            parser.error(f"{path} has fewer than {options.batch_size} windows of {options.length} tokens")
        print(loader.dataset, flush=True)
        train(loader, options)
        load(loader)


if __name__ == "__main__":
    main()
