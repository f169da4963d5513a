# SPDX-License-Identifier: Apache-2.0
"""One job of bench_cache.py: needs an array that takes a while to build, and says when it has it and what it cost.

It prints a JSON object: when it began and had the array (CLOCK_MONOTONIC), and the proportional size (PSS) of its
mapping of the data. Then it waits for the end of its stdin, so that all jobs have the array at the same time.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import headrace
import numpy as np

PIECE_MIB = 16


def build(mib: int, die_after: int, builds: Path) -> Any:
    """Yields the array in pieces. The first `die_after` builders are killed when they are half done."""
    with (builds / f"{os.getpid()}-{time.monotonic_ns()}").open("x"):
        number = len(list(builds.iterdir()))
    for at in range(0, mib, PIECE_MIB):
        if number <= die_after and at >= mib / 2:
            (builds.parent / f"died-{time.monotonic_ns()}").touch()
            os.kill(os.getpid(), 9)
        yield np.random.default_rng(at).random((PIECE_MIB << 17,))


def pss_of(path: str, pid: int | str = "self") -> int:
    size, is_ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            is_ours = line.endswith(path)
        elif is_ours and first == "Pss:":
            size += 1024 * int(line.split()[1])
    return size


def main() -> None:
    began = time.monotonic()
    array = headrace.cache("array", functools.partial(build, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
    had = time.monotonic()
    total = float(array.sum())  # reads all pages
    print("ready", flush=True)
    sys.stdin.readline()
    pss = pss_of(headrace.cache.info("array").path)
    print(json.dumps({"began": began, "had": had, "pss": pss, "sum": total}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
