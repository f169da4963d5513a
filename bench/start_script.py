# SPDX-License-Identifier: Apache-2.0
"""A script as a user writes it, which imports little more than torch. bench_start.py runs it and reads its times.

`start_script.py LIBRARY METHOD COUNT LATER_EPOCHS` prints, as JSON, {"first": [s], "later": [s, ...], "close": [s,
...], "pickle": [s]}: from the loader's construction to the first batch, from iter() to the first batch of later epochs,
closing with idle workers in the middle of an epoch, and dumps + loads of the dataset.
"""

import importlib
import json
import pickle
import sys
import time

import torch.utils.data


class Paths(torch.utils.data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self.paths = [f"/data/train/n{i % 1000:08}/{i:08}.jpeg" for i in range(count)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


IDLE_S = 0.1  # After this time a worker has made all batches that it may make ahead.


def run_epoch(loader: "torch.utils.data.DataLoader[int]") -> tuple[float, float]:
    """Returns the seconds to the first batch, and the seconds of closing."""
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    time.sleep(IDLE_S)
    start = time.perf_counter()
    del batches
    return first, time.perf_counter() - start


def time_pickle(data: Paths) -> float:
    start = time.perf_counter()
    pickle.loads(pickle.dumps(data))
    return time.perf_counter() - start


def run_method(kind: type, data: Paths, method: str, later_epochs: int) -> dict[str, object]:
    start = time.perf_counter()
    loader = kind(data, batch_size=8, num_workers=1, multiprocessing_context=method)
    constructed = time.perf_counter() - start
    epochs = [run_epoch(loader) for _ in range(1 + later_epochs)]
    return {
        "first": [constructed + epochs[0][0]],
        "later": [first for first, _ in epochs[1:]],
        "close": [close for _, close in epochs],
        "pickle": [time_pickle(data)],
    }


def main(library: str, method: str, count: str, later_epochs: str) -> None:
    kind = importlib.import_module({"torch": "torch.utils.data", "headrace": "headrace.torch"}[library]).DataLoader
    print(json.dumps(run_method(kind, Paths(int(count)), method, int(later_epochs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
