# SPDX-License-Identifier: Apache-2.0
"""Draws loaders, and compares each with itself without sample_threads (lib/drawn_threads.py), for as long as told:
`soak_threads.py [TIME [SEED]]`, where TIME is 90, 10m or 1h. Without a seed it takes a new one, which it prints. It
ends at the first difference with the case that shows it. One case in 40 has workers that are not forked.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/lib"))

import drawn_threads
from drawn import to_seconds
from processes import until

FORKED, OTHERS = ("fork",), ("spawn", "forkserver", "headrace")
ENDS_S = 60.0


def main(arguments: list[str]) -> int:
    end = time.monotonic() + to_seconds(arguments[0] if arguments else "10m")
    seed = arguments[1] if len(arguments) > 1 else str(int.from_bytes(os.urandom(4), "little"))
    print(f"seed {seed}", flush=True)
    counts, number = Counter[str](), 0
    while time.monotonic() < end:
        try:
            case = drawn_threads.check(seed, number, FORKED if number % 40 else OTHERS)
        except AssertionError as error:
            print(error)
            return 1
        if not until(lambda: not drawn_threads.threads_of_samples(), ENDS_S):
            print(f"case {number} of seed {seed}: threads are left: {drawn_threads.threads_of_samples()}")
            return 1
        number += 1
        counts[str(case.options.get("multiprocessing_context", "num_workers=0"))] += 1
    print(f"{number} loaders, with and without threads, no difference: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
