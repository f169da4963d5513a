# SPDX-License-Identifier: Apache-2.0
"""A script as a user writes it. bench_death.py runs it, and kills it or one of its workers.

`death_script.py LIBRARY METHOD WHAT FOLDER` prints on stdout which point it and its workers have reached, a line each:
a name and its values, separated by tabs. Times are of CLOCK_MONOTONIC, which all processes share.
"""

import importlib
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch.utils.data

FIRST_SLOW = 4  # The first sample that is slow: each of two workers makes two before it.
FOR_LONG_S = 600


def report(*words: object) -> None:
    os.write(1, ("\t".join(map(str, words)) + "\n").encode())


def say_pid(worker: int) -> None:
    report("worker", os.getpid())


class Samples(torch.utils.data.Dataset[int]):
    """A dataset whose sample i is i, without any work."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


class Slow(Samples):
    """A dataset in whose later samples a worker (the first one if there is a `mark`) sleeps and ignores SIGTERM."""

    def __init__(self, mark: str = "") -> None:
        self.mark = mark

    def __getitem__(self, index: int) -> int:
        if index >= FIRST_SLOW and self._is_first():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            report("in sample", os.getpid())
            time.sleep(FOR_LONG_S)
        return index

    def _is_first(self) -> bool:
        if self.mark:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        return True


def ask(batches: Any) -> None:
    """Asks for the batch that does not come, because its worker is killed."""
    report("waiting")
    try:
        batch = next(batches)
    except RuntimeError as error:
        report("raised", time.monotonic(), str(error).partition("\n")[0])
    else:
        when = time.monotonic()
        assert int(batch) == FIRST_SLOW
        report("delivered", when)


def take(batches: Any) -> Any:
    """Takes the batches that come without delay."""
    for expected in range(FIRST_SLOW):
        assert int(next(batches)) == expected
    return batches


def main(library: str, method: str, what: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    kind = importlib.import_module({"torch": "torch.utils.data", "headrace": "headrace.torch"}[library]).DataLoader

    def load(data: Samples, workers: int, **options: Any) -> Any:
        return kind(data, num_workers=workers, multiprocessing_context=method, worker_init_fn=say_pid, **options)

    if what == "notice":
        ask(take(iter(load(Slow(), 1))))
    elif what == "recovery":
        loader = load(Samples(), 1)
        next(iter(loader))  # From here on a fork server runs.
        start = time.monotonic()
        next(iter(loader))
        report("started", time.monotonic() - start)
        loader = load(Slow(os.path.join(folder, "mark")), 1, max_restarts=1)
        ask(take(iter(loader)))
        report("restarts", loader.report()["restarts"])
    elif what == "idle":
        batches = take(iter(load(Samples(), 2)))
        report("waiting")
        time.sleep(FOR_LONG_S)
        del batches
    else:
        ask(take(iter(load(Slow(), 2))))


if __name__ == "__main__":
    main(*sys.argv[1:])
