# SPDX-License-Identifier: Apache-2.0
"""Loaders that pass every failpoint which Python can pass, for the kill sweep; without torch."""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import headrace
import mishaps
import numpy as np
from mishaps import Marks

KIB, MIB = 1 << 10, 1 << 20
COUNT = 30
LARGE, HUGE = 18, 14  # two growing samples: one takes the memory of others, the other fits nowhere
WITHOUT_MEMORY = 4  # worker 0's sample for which the kernel has no memory


def arm_from_pickle(plan: str, marks: Marks) -> None:
    """Starts a worker that is not forked: the first one gets the plan, and none inherits the state of its trainer."""
    os.environ.pop("HEADRACE_STOP", None)
    if plan and marks.first("armed"):
        os.environ["HEADRACE_STOP"] = plan


class Arrays:
    """Sample i is i and two arrays full of it, large enough that a worker asks for their memory.

    Workers die at `deaths`, once at each: the first one while sample 0 is waited for.
    """

    replayable = True

    def __init__(self, marks: Marks, plan: str = "", deaths: tuple[int, ...] = (), is_short: bool = False) -> None:
        self.marks = marks
        self.plan = plan
        self.deaths = deaths
        self.is_short = is_short
        self.lasts = -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arm_from_pickle(self.plan, self.marks)

    def words(self, index: int) -> int:
        return 4 * KIB + (index * 37 % 11) * 3 * KIB

    def make(self, index: int) -> tuple[int, Any, Any]:
        mishaps.say(f"sample {index}")
        os.environ.pop("HEADRACE_FAIL", None)
        if self.is_short and index == WITHOUT_MEMORY and self.marks.first("short"):
            os.environ["HEADRACE_FAIL"] = "fallocate:ENOSPC"
        if index in self.deaths:
            if self.marks.first(f"death.{index}"):
                mishaps.die("SIGKILL")
            self.marks.first(f"again.{index}")
        if index == 0 and self.deaths:
            assert mishaps.until(lambda: self.marks.has(f"again.{self.deaths[0]}"), mishaps.DEADLINE_S)
        if index == self.lasts:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.marks.first("lasts")
            time.sleep(mishaps.DEADLINE_S)
        return index, np.full(self.words(index), index, np.uint64), np.full(8 * KIB, index, np.uint64)


class ArrayMap(Arrays):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, Any, Any]:
        return self.make(index)


class ArrayStream(Arrays):
    def __iter__(self) -> Iterator[tuple[int, Any, Any]]:
        number, step = mishaps.share()
        for index in range(number, COUNT, step):
            yield self.make(index)


class GrowingMap(ArrayMap):
    def words(self, index: int) -> int:
        return {LARGE: 5800 * KIB, HUGE: 7500 * KIB}.get(index, 512 * KIB) // 8


class GrowingStream(ArrayStream):
    words = GrowingMap.words


DATASETS = {"map": (ArrayMap, GrowingMap), "iterable": (ArrayStream, GrowingStream)}


def load(kind: Any, dataset: Any, **options: Any) -> Any:
    if isinstance(dataset, ArrayStream) and kind is not headrace.Loader:
        from for_torch import ForTorch

        dataset = ForTorch(dataset)
    standard = {"batch_size": None, "prefetch_factor": 2, "arena_limit": 6 * MIB}
    never = {"stall_after": 10 * mishaps.DEADLINE_S}  # a slow machine is no stall, of which there would be a warning
    return kind(dataset, **{**standard, **never, **options})


def check(dataset: Any, sample: Any) -> int:
    """The number of a sample that is as it should be."""
    index, *arrays = int(sample[0]), np.asarray(sample[1]), np.asarray(sample[2])
    assert [len(array) for array in arrays] == [dataset.words(index), 8 * KIB], index
    assert all((array == index).all() for array in arrays), index
    return index


def epoch(iterator: Any, dataset: Any, keep: int = 3) -> list[int | str]:
    """An epoch's samples, the newest of them kept; errors by name."""
    kept: deque[Any] = deque(maxlen=keep)
    found: list[int | str] = []
    while True:
        try:
            sample = next(iterator)
        except StopIteration:
            break
        except MemoryError:
            found.append("too big")
            continue
        except OSError as error:
            assert "No space left on device" in str(error)
            found.append("no memory")
            continue
        found.append(check(dataset, sample))
        kept.append((found[-1], sample[1]))  # and not the rest of it
        del sample
    for index, array in kept:
        assert (np.asarray(array) == index).all(), "what is kept has changed"
    return found


# ---- the trainer's scenes ----


def limit_address_space() -> None:
    """An arena gets windows of a few MiB, so that a large batch takes several."""
    windows, share = 21, 4
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * resource.getpagesize() + share * windows * 5 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_three_workers(kind: Any, name: str, marks: Marks, context: str) -> None:
    """Deaths, two epochs, more batches kept than fit, and an end."""
    dataset = DATASETS[name][0](marks, deaths=(4, 10))
    options = {"num_workers": 3, "max_restarts": 3, "multiprocessing_context": context}
    loader = load(kind, dataset, persistent_workers=True, **options)
    for _ in range(2):
        assert epoch(iter(loader), dataset, keep=20) == list(range(COUNT))
    del loader
    if name == "iterable":  # workers are dismissed
        assert epoch(iter(load(kind, dataset, **options)), dataset) == list(range(COUNT))


def run_short_of_memory(kind: Any, name: str, marks: Marks, context: str) -> None:
    dataset = DATASETS[name][1](marks)
    limit_address_space()
    options = {"num_workers": 1, "prefetch_factor": 3, "arena_limit": 8 * MIB, "multiprocessing_context": context}
    expected: list[int | str] = list(range(COUNT))
    expected[HUGE] = "too big"
    assert epoch(iter(load(kind, dataset, **options)), dataset) == expected


def run_to_a_hard_end(kind: Any, name: str, marks: Marks, context: str) -> None:
    """Only SIGKILL ends a worker."""
    dataset = DATASETS[name][0](marks)
    dataset.lasts = 4
    loader = load(kind, dataset, num_workers=1, multiprocessing_context=context, shutdown_timeout=0.2)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    assert mishaps.until(lambda: marks.has("lasts"), mishaps.DEADLINE_S)
    del iterator


def run_trainer(kind: Any, name: str, marks: Marks, context: str, ends_hard: bool) -> None:
    os.register_at_fork(after_in_child=lambda: os.environ.pop("HEADRACE_STOP", None))
    warnings.simplefilter("ignore")
    run_three_workers(kind, name, marks, context)
    if ends_hard:
        run_to_a_hard_end(kind, name, marks, context)
    if context == "fork":
        run_short_of_memory(kind, name, marks, context)
