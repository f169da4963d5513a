# SPDX-License-Identifier: Apache-2.0
"""One job of bench_cache.py: two epochs over a dataset whose samples are cached, with two workers.

It prints "ready" when it has imported everything, begins at a line on stdin, and then prints a JSON object: its time in
seconds, and the proportional size (PSS) of the mappings of the samples in it and its workers, when all have been read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import headrace
import numpy as np
from cache_script import pss_of

COUNT, FOLDER, IS_CACHED = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "cached"
SHAPE = (224, 224, 3)  # 147 KiB


class Images:
    """Images that take 4 ms to decode. It notes each in a file, one byte per sample."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        with (FOLDER / "made").open("ab") as file:
            file.write(b"x")
        time.sleep(0.004)
        return np.full(SHAPE, index % 251, np.uint8)


def epoch(loader: headrace.Loader) -> int:
    return sum(int(batch[:, 0, 0, 0].sum()) for batch in loader)


print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
loader = headrace.Loader(
    Images(),
    16,
    shuffle=True,
    seed=7,
    num_workers=2,
    persistent_workers=True,
    multiprocessing_context="fork",
    cache="2G" if IS_CACHED else None,
)
total = sum(epoch(loader) for _ in range(2))
seconds = time.monotonic() - began
pss = 0
if IS_CACHED:
    path = next(entry.path for entry in headrace.cache.ls() if entry.name.endswith(".samples"))
    workers = [worker["pid"] for worker in loader.report()["per_worker"]]
    pss = sum(pss_of(path, pid) for pid in (os.getpid(), *workers))
print(json.dumps({"seconds": seconds, "sum": total, "pss": pss}), flush=True)
sys.stdin.readline()
