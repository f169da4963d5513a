# SPDX-License-Identifier: Apache-2.0
"""Training on shards behind http that is killed on two ranks, with the process that fetches, and goes on with one rank.

    python examples/train_from_bucket.py                  # shows it: serves, trains, kills, resumes, compares
    headrace run --nproc 2 examples/train_from_bucket.py --train FOLDER --urls "https://host/points-{0..3}.jsonl"

The function `train` is the part to copy; with URLs as "s3://bucket/points-*.jsonl" it reads a bucket. The server is on
this machine, and answers after 20 ms. What is fetched is kept in a temporary folder. The example prints how many bytes
the server has sent.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from headrace import sources
from headrace.torch import DataLoader, per_rank
from kill_and_resume import has_each_once, kill_and_resume, note_samples, parser_of
from torch.utils.data import RandomSampler

SHARDS, SAMPLES, BATCH, EPOCHS, LATENCY_S = 4, 4000, 20, 2, 0.02


def to_tensors(point: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    return torch.tensor(point["at"]), torch.tensor([float(sum(point["at"]) > 1)]), point["index"]


def train(urls: str, folder: str, workers: int, killed_at: int) -> None:
    """Trains on all ranks, and saves a checkpoint every five steps."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), os.path.join(folder, "checkpoint.pt")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    dataset = sources.Jsonl(urls, transform=to_tensors, keep="job")  # as over local files
    sampler = per_rank(RandomSampler(dataset), tail="exact", seed=0)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)

    step, first_epoch = 0, 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        loader.load_state_dict(checkpoint["loader"])
        step, first_epoch = checkpoint["step"], checkpoint["epoch"]
        if rank == 0:
            print(f"  resumed after step {step}, in epoch {first_epoch}, on {dist.get_world_size()} ranks", flush=True)

    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for points, sides, indices in loader:
            weights = loader.last.weights
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
                next_epoch = epoch + (loader.steps_left == 0)
                state = {"model": model.state_dict(), "loader": loader.state_dict(), "step": step, "epoch": next_epoch}
                torch.save(state, path + ".new")
                os.rename(path + ".new", path)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


# ---- what follows only shows that it works ----


class Server(http.server.ThreadingHTTPServer):
    """A server on this machine that knows ranges and counts what it sends."""

    def __init__(self) -> None:
        drawn = random.Random(0)
        points = [{"index": i, "at": [drawn.random(), drawn.random()], "text": "x" * 200} for i in range(SAMPLES)]
        self.files = {
            f"/points-{shard}.jsonl": b"".join(json.dumps(one).encode() + b"\n" for one in points[shard::SHARDS])
            for shard in range(SHARDS)
        }
        self.sent_bytes = 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        time.sleep(LATENCY_S)
        data = self.server.files.get(self.path)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if data is None or found is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", f'"{hash(data)}"')
        self.end_headers()
        self.server.sent_bytes += last - first + 1
        self.wfile.write(data[first : last + 1])

    def log_message(self, *_: Any) -> None:
        pass


def show(workers: int, killed_at: int) -> bool:
    """Trains on two ranks, kills them, resumes on one, and says whether each sample was seen once per epoch."""
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        os.environ["HEADRACE_REMOTE"] = os.path.join(folder, "kept")
        os.environ["HEADRACE_REMOTE_IDLE_MS"] = "1000"
        urls = f"http://127.0.0.1:{server.server_address[1]}/points-{{0..{SHARDS - 1}}}.jsonl"
        print(f"two ranks train on {SAMPLES} samples of {urls}, and are killed at step {killed_at}", flush=True)
        epochs = kill_and_resume([__file__, "--urls", urls], folder, workers, killed_at, EPOCHS)
        size = sum(map(len, server.files.values()))
        print(f"the server has sent {server.sent_bytes / size:.2f} times the bytes of its files, for {EPOCHS} epochs")
    return has_each_once(epochs, SAMPLES)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--urls", help="the shards")
    options = parser.parse_args()
    if options.train:
        train(options.urls, options.train, options.workers, options.killed_at)
        return 0
    is_right = show(options.workers, options.killed_at or 142)
    print("each sample was seen once per epoch" if is_right else "samples are missing, or were seen twice")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
