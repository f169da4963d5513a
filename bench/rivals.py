# SPDX-License-Identifier: Apache-2.0
"""The loaders that bench_dataloader.py measures, and the datasets that it gives them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any

import headrace
import headrace.torch
import torch
import torch.utils.data

ENDLESS = 1 << 40
MIB = 1 << 20


class Ready(torch.utils.data.Dataset[Any]):
    """An endless dataset of samples that exist before the measurement."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


class New(Ready):
    """A dataset of new tensors over NumPy arrays that exist before the measurement.

    torch would move a tensor that it gets again into shared memory once, and then never copy it; a dataset that reads
    its samples does not permit that. It costs 0.6 us per tensor, which is the in-process row.
    """

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index % len(self.samples)]
        return list(map(torch.from_numpy, sample)) if isinstance(sample, list) else torch.from_numpy(sample)


class Converted(Ready):
    """A dataset of integers that converts each sample to float32 when it is read, which takes new memory each time."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return sample.float() if isinstance(sample, torch.Tensor) else sample.astype("float32")


def as_numpy(data: Ready) -> Ready:
    """Returns a dataset of the same samples as NumPy arrays."""
    kind = Converted if isinstance(data, Converted) else Ready
    return kind([_as_numpy(sample) for sample in data.samples])


def _as_numpy(sample: Any) -> Any:
    if isinstance(sample, (tuple, list)):
        return type(sample)(map(_as_numpy, sample))
    return sample.numpy() if isinstance(sample, torch.Tensor) else sample


@dataclass(frozen=True)
class Case:
    """One piece of work to measure.

    `make()` returns the dataset; `options` are the loader's. The consumer holds the last `keep` batches. `bytes` is the
    size of a batch's arrays, which memcpy copies; with 0 memcpy is not measured. `loader` is headrace's. `reference` is
    the case that it is compared with, measured in the same rounds.
    """

    name: str
    make: Callable[[], Ready]
    options: dict[str, Any] = field(default_factory=dict)
    keep: int = 1
    bytes: int = 0
    in_quick: bool = False
    loader: Any = headrace.torch.DataLoader
    reference: Case | None = None


@dataclass(frozen=True)
class Rival:
    """A loader to measure.

    `open(case, data, workers)` returns an iterator of batches, whose end ends the workers. `package` is the package
    that it needs. `in_quick` says whether a quick run measures it.
    """

    name: str
    open: Callable[[Case, Ready, int], Iterator[Any]]
    workers: tuple[int, ...] = (1, 2)
    takes: Callable[[Case], bool] = lambda case: True
    package: str = ""
    in_quick: bool = True

    def why_not(self) -> str:
        """Returns why it cannot run here, or an empty text if it can."""
        try:
            if self.package:
                importlib.import_module(self.package)
        except ImportError as error:
            return str(error)
        return ""


def open_torch(case: Case, data: Ready, workers: int) -> Iterator[Any]:
    return iter(torch.utils.data.DataLoader(data, num_workers=workers, **case.options))


def open_headrace(case: Case, data: Ready, workers: int) -> Iterator[Any]:
    return iter(case.loader(data, num_workers=workers, **case.options))


def open_memcpy(case: Case, data: Ready, workers: int) -> Iterator[Any]:
    source, target = (ctypes.create_string_buffer(b"\1" * case.bytes, case.bytes) for _ in range(2))
    return iter(lambda: ctypes.memmove(target, source, case.bytes), None)


# ---- SPDL: a producer process, whose arrays cross in a pool of shared-memory segments ----

SPDL_QUEUE = 3  # This is the default of iterate_in_subprocess.


def make_batches(data: Ready, batch_size: int | None, collate_fn: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """Makes batches as a producer does that has no loader."""
    if batch_size is None:
        yield from map(data.__getitem__, itertools.count())
        return
    for first in itertools.count(step=batch_size):
        yield collate_fn([data[index] for index in range(first, first + batch_size)])


def open_spdl(case: Case, data: Ready, workers: int) -> Iterator[Any]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    start_silent_tracker()
    before = multiprocessing.active_children()
    options = {"collate_fn": headrace.default_collate, **case.options}
    # SPDL would pickle small tensors, at 0.1 ms each.
    samples = data if "collate_fn" in case.options else as_numpy(data)
    batches = iterate_in_subprocess(
        functools.partial(make_batches, samples, **options),
        buffer_size=SPDL_QUEUE,
        initializer=functools.partial(torch.set_num_threads, 1),  # torch's workers do the same.
        mp_context="fork",
        # There is a segment for each batch: kept, queued, being written, being read. Aligned arrays need more room.
        arena=SharedMemorySegmentPool(segment_size=case.bytes + MIB, count=case.keep + SPDL_QUEUE + 2),
    )
    (producer,) = set(multiprocessing.active_children()) - set(before)
    try:
        yield from batches
    finally:
        producer.terminate()  # If it waits for a place in the queue, SPDL would do so after 3 s.


@functools.cache
def start_silent_tracker() -> None:
    """Starts multiprocessing's resource tracker with its stderr discarded.

    Before Python 3.13, SPDL unregisters its segments twice, and the tracker prints a traceback for each.
    """
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    resource_tracker.ensure_running()
    os.dup2(before, 2)
    os.close(before)


# ---- Grain: its DataLoader, whose workers send numpy arrays in a new piece of shared memory each ----


def open_grain(case: Case, data: Ready, workers: int) -> Iterator[Any]:
    import grain

    size = case.options["batch_size"]
    loader = grain.DataLoader(
        data_source=as_numpy(data),
        sampler=grain.samplers.SequentialSampler(ENDLESS),
        operations=[grain.transforms.Batch(size)] if size else [],
        worker_count=workers,
        worker_buffer_size=2,  # This is the prefetch_factor of torch and headrace.
        shard_options=grain.sharding.NoSharding(),
        read_options=grain.ReadOptions(
            num_threads=0, prefetch_buffer_size=0
        ),  # Grain recommends this for data in memory.
    )
    return iter(loader)


with contextlib.suppress(ImportError):
    import absl.logging

    absl.logging.set_verbosity(absl.logging.ERROR)  # Otherwise each of Grain's workers warns that jax is missing.


RIVALS = [
    Rival("memcpy", open_memcpy, (0,), lambda case: case.bytes > 0),
    Rival("in-process", open_torch, (0,)),
    Rival("torch", open_torch),
    Rival("SPDL pool", open_spdl, (1,), package="spdl.pipeline"),
    # Grain spawns its workers, which takes seconds.
    Rival("Grain", open_grain, takes=lambda case: "collate_fn" not in case.options, package="grain", in_quick=False),
    Rival("headrace", open_headrace),
]
