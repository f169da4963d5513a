# SPDX-License-Identifier: Apache-2.0
"""Takes states of loaders of each kind, with what is left of their runs. tests/golden/states.json has those that an
earlier headrace took; test_golden_states.py continues them, and compares the states of today.

    golden_states.py > tests/golden/states.json
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import resumed
import torch
from headrace.torch import DataLoader
from resumed import MAKERS, NUMPY_MAKERS, Counting, Noisy, Numbers, plain

STOPS = (0, 2, -1)  # before the first batch, in the middle of the second epoch, and at its end
KINDS: dict[str, Callable[..., Any]] = {
    **{f"torch: {name}": make for name, make in MAKERS.items()},
    **{f"numpy: {name}": make for name, make in NUMPY_MAKERS.items() if name != "drawn seed"},
    "torch: iterable": lambda **o: DataLoader(Counting(), 4, **o),
    "numpy: iterable": lambda **o: headrace.Loader(Counting(), 4, seed=7, **o),
    "torch: steps": lambda **o: DataLoader(Numbers(), 4, shuffle=True, steps_per_epoch=4, **o),
    "numpy: steps": lambda **o: headrace.Loader(Numbers(), 4, shuffle=True, seed=7, steps_per_epoch=4, **o),
    "torch: samples": lambda **o: DataLoader(Noisy(), 4, shuffle=True, rng="sample", **o),
}


def epoch(loader: Any, number: int, most: int | None = None) -> list[Any]:
    """Returns the batches of an epoch, or the first `most` of them."""
    if isinstance(loader, DataLoader):
        resumed.set_epoch(loader, number)
    batches = []
    for batch in loader:
        batches.append(plain(batch))
        if len(batches) == most:
            break
    return batches


def make(kind: str) -> Any:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    loader = KINDS[kind](num_workers=0)
    if isinstance(loader, headrace.Loader):
        loader.seed = 7  # some makers let it draw one
    return loader


def record(kind: str) -> list[dict[str, Any]]:
    """Returns states of a loader, each with that of torch's generator and the batches that follow in the epoch."""
    loader, found = make(kind), []
    whole = [epoch(loader, 0), epoch(loader, 1)]
    for stop in STOPS:
        loader = make(kind)
        done = len(whole[1]) if stop < 0 else stop
        if stop:
            epoch(loader, 0)
            epoch(loader, 1, done)
        numbers = torch.get_rng_state().tolist()
        rest = whole[1][done:] if stop else whole[0]
        found.append({"state": loader.state_dict(), "numbers": numbers, "rest": rest, "epoch": int(bool(stop))})
    return found


if __name__ == "__main__":
    records = {kind: record(kind) for kind in KINDS}
    # torch's generator has 5,056 bytes, and few of them differ between states: what is equal is written once.
    pool: list[Any] = []
    for one in (one for found in records.values() for one in found):
        if one["numbers"] not in pool:
            pool.append(one["numbers"])
        one["numbers"] = pool.index(one["numbers"])
    packed = [bytes(numbers).hex() for numbers in pool]
    json.dump({"numbers": packed, "records": records}, sys.stdout, separators=(",", ":"))
