# SPDX-License-Identifier: Apache-2.0
"""The trainer that bench_death.py kills, or whose worker it kills: a script as a user writes it.

`death_script.py LIBRARY METHOD WHAT FOLDER`. Says on stdout what it and its workers have come to, a line each: a name
and its values, tab-separated. Times are CLOCK_MONOTONIC's, which all processes share.
"""

import importlib
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch.utils.data

FIRST_SLOW = 4  # of the samples: two a worker, of two workers
FOR_LONG_S = 600


def say(*words: object) -> None:
    os.write(1, ("\t".join(map(str, words)) + "\n").encode())


def say_pid(worker: int) -> None:
    say("worker", os.getpid())


class Samples(torch.utils.data.Dataset[int]):
    """Sample i is i, at once."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


class Slow(Samples):
    """A worker that comes to a later sample sleeps in it, deaf to SIGTERM; with a `mark` only the first one does."""

    def __init__(self, mark: str = "") -> None:
        self.mark = mark

    def __getitem__(self, index: int) -> int:
        if index >= FIRST_SLOW and self._is_first():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("in sample", os.getpid())
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
    """For the batch that does not come, because its worker is to be killed."""
    say("waiting")
    try:
        batch = next(batches)
    except RuntimeError as error:
        say("raised", time.monotonic(), str(error).partition("\n")[0])
    else:
        when = time.monotonic()
        assert int(batch) == FIRST_SLOW
        say("delivered", when)


def take(batches: Any) -> Any:
    """Takes the batches that come at once."""
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
        next(iter(loader))  # a fork server runs from here on
        start = time.monotonic()
        next(iter(loader))
        say("started", time.monotonic() - start)
        loader = load(Slow(os.path.join(folder, "mark")), 1, max_restarts=1)
        ask(take(iter(loader)))
        say("restarts", loader.report()["restarts"])
    elif what == "idle":
        batches = take(iter(load(Samples(), 2)))
        say("waiting")
        time.sleep(FOR_LONG_S)
        del batches
    else:
        ask(take(iter(load(Slow(), 2))))


if __name__ == "__main__":
    main(*sys.argv[1:])
