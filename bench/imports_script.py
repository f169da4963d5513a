# SPDX-License-Identifier: Apache-2.0
"""A script that imports what the scripts of many users import. bench_imports.py runs it and reads its times.

`imports_script.py LIBRARY METHOD MODULE...` prints, as JSON, {"first": s, "later": [s, ...], "epochs": s}: from the
loaders' construction to the first batch, from iter() to the first batch of later epochs, and the wall time of three
epochs of a training and a validation loader.
"""

import importlib
import json
import sys
import time

import torch.utils.data

for name in sys.argv[3:]:
    importlib.import_module(name)

EPOCHS = 3


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index


def run_epoch(loader: "torch.utils.data.DataLoader[int]") -> float:
    """Returns the seconds to the first batch."""
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    for _ in batches:
        pass
    return first


def main() -> None:
    library, method = sys.argv[1:3]
    kind = importlib.import_module("headrace.torch" if library == "headrace" else "torch.utils.data").DataLoader
    start = time.perf_counter()
    options = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": method}
    training, validation = kind(Numbers(), **options), kind(Numbers(), **options)
    constructed = time.perf_counter() - start
    firsts = []
    for _ in range(EPOCHS):
        firsts.append(run_epoch(training))
        run_epoch(validation)
    epochs = time.perf_counter() - start
    print(json.dumps({"first": constructed + firsts[0], "later": firsts[1:], "epochs": epochs}))


if __name__ == "__main__":
    main()
