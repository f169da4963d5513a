# SPDX-License-Identifier: Apache-2.0
"""Measures the same loop by HEADRACE_HEADSPACE and by SPDL's CacheDataLoader around the same loader, in turn.

    uv pip install --no-deps --target PEERS spdl spdl-core
    python bench/headspace.py --peers PEERS [--rounds 5]

A step of known length: it sleeps, or multiplies matrices. Prints the medians of a step with data and with free data.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys

CHILD = """
import multiprocessing, sys, time
multiprocessing.set_start_method("fork")
import torch
from headrace.torch import DataLoader

kind, way = sys.argv[1:]
WARM_UP, STEPS, LEAD, CACHED = 20, 100, 5, 16
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * 1000
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((3, 64, 64), float(index))

weight = torch.rand(3 * 64 * 64, 256)

def step(batch):
    if kind == "sleeps 20 ms":
        time.sleep(0.02)
    else:
        for _ in range(8):
            batch.flatten(1) @ weight
    batch.sum().item()

loader = DataLoader(Data(), batch_size=8, num_workers=1)
if way == "spdl":
    from spdl.dataloader import CacheDataLoader
    loader = CacheDataLoader(loader, CACHED, WARM_UP + STEPS, WARM_UP + STEPS + LEAD + STEPS + 1)
at = []
for batch in loader:
    at.append(time.perf_counter())
    step(batch)
if way == "spdl":
    data = (at[WARM_UP + STEPS - 1] - at[WARM_UP - 1]) / STEPS
    first = WARM_UP + STEPS + LEAD
    print(data, (at[first + STEPS] - at[first]) / STEPS)
"""
KINDS = ("sleeps 20 ms", "multiplies matrices")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
RESULT = re.compile(r"a step takes ([\d.]+) (\w+); with free data ([\d.]+) (\w+)")


def measure(kind: str, way: str, peers: str) -> tuple[float, float]:
    """Returns the seconds of a step with data, and with free data."""
    paths = [*([peers] if way == "spdl" else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if way == "headrace":
        variables["HEADRACE_HEADSPACE"] = "100"
    text = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, kind, way],
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if found := RESULT.search(text):
        return float(found[1]) * UNITS[found[2]], float(found[3]) * UNITS[found[4]]
    data, free = map(float, text.split())
    return data, free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for kind in KINDS:
        found: dict[str, list[tuple[float, float]]] = {"headrace": [], "spdl": []}
        for _ in range(arguments.rounds):
            for way, values in found.items():
                values.append(measure(kind, way, arguments.peers))
        for way, values in found.items():
            data, free = (1000 * statistics.median(column) for column in zip(*values, strict=True))
            print(f"{kind:20} {way:9} with data {data:6.2f} ms, free {free:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
