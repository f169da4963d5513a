# SPDX-License-Identifier: Apache-2.0
"""Measures the option `device` on a GPU against torch's pinning, in turn. tools/test_gpu.py runs it.

The rows are those of docs/device.md. Rows go to table.md and a trace of some steps to trace.json, in
$HEADRACE_GPU_RESULTS.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from headrace.torch import DataLoader
from headrace.torch._device import choose
from loaders import Torch

RESULTS = Path(os.environ.get("HEADRACE_GPU_RESULTS", "."))
SHAPE = (64, 3, 224, 224)
STEPS, ROUNDS = 60, 3
STEP_CYCLES = 18_000_000  # of torch.cuda._sleep: about 10 ms
lines: list[str] = []


class Ready(torch.utils.data.Dataset[Any]):
    """Batches that are ready in the worker, so that the loader is what is measured."""

    def __init__(self, tensors: int = 0) -> None:
        self.batch = [torch.rand(SHAPE), torch.arange(64)]
        if tensors:
            self.batch = [torch.rand(64, 16) for _ in range(tensors)]

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return self.batch


def say(work: str, **values: float) -> None:
    line = f"| {work} | " + " | ".join(f"{name}: {value:.4g}" for name, value in values.items()) + " |"
    lines.append(line)
    print(line, flush=True)


def loader_of(kind: Any, dataset: Any, **options: Any) -> Any:
    return kind(dataset, batch_size=None, num_workers=4, multiprocessing_context="forkserver", **options)


def ours(dataset: Any) -> Iterator[Any]:
    yield from loader_of(DataLoader, dataset, device="cuda")


def pinned(dataset: Any) -> Iterator[Any]:
    for batch in loader_of(Torch, dataset, pin_memory=True):
        yield [one.to("cuda", non_blocking=True) for one in batch]


def plain(dataset: Any) -> Iterator[Any]:
    """Moves as accelerate does by default: each transfer is waited for."""
    for batch in loader_of(Torch, dataset):
        yield [one.to("cuda") for one in batch]


def ahead(dataset: Any) -> Iterator[Any]:
    """Moves as timm's prefetcher does: a second stream, one batch ahead."""
    stream, before = torch.cuda.Stream(), None
    for batch in loader_of(Torch, dataset, pin_memory=True):
        with torch.cuda.stream(stream):
            moved = [one.to("cuda", non_blocking=True) for one in batch]
        if before is not None:
            yield before
        torch.cuda.current_stream().wait_stream(stream)
        before = moved


def there(dataset: Any) -> Iterator[Any]:
    batch = [one.cuda() for one in dataset.batch]
    while True:
        yield batch


WAYS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "device": ours,
    "torch pinned": pinned,
    "prefetcher": ahead,
    "plain": plain,
    "there": there,
}


def rate_of_copies() -> None:
    """GB/s from registered memory of an arena, from torch's pinned memory, and from ordinary memory."""
    size = torch.empty(SHAPE).nbytes
    target = torch.empty(SHAPE, device="cuda")
    iterator = iter(loader_of(DataLoader, Ready(), device="cuda", device_prefetch=0))
    for _ in range(40):
        next(iterator)
    iterator._wait()
    registered = next(one for one in iterator._engine.keeper.sources() if one.shape == target.shape)
    places = {"registered": registered, "pinned": torch.rand(SHAPE).pin_memory(), "ordinary": torch.rand(SHAPE)}
    rates = {}
    for name, source in places.items():
        times = []
        for _ in range(20):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        rates[name] = size / min(times) / 1e6
    say("GB/s of 38.5 MB", **rates)
    say(
        "registered",
        slots=iterator.report()["device"]["registered_slots"],
        s=iterator.report()["device"]["registering_s"],
    )
    del registered, places, iterator


def time_of_steps(work: str, step: Callable[[Any], None], dataset: Any) -> None:
    """ms per step, the ways in turn."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            batches = way(dataset)
            for _ in range(12):
                step(next(batches))
            torch.cuda.synchronize()
            start, start_cpu = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                step(next(batches))
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start) / STEPS)
            cpu[name].append(1e3 * (time.process_time() - start_cpu) / STEPS)
            batches.close()
    say(f"{work}, ms", **{name: statistics.median(one) for name, one in times.items()})
    say(f"{work}, ms of CPU of the trainer", **{name: statistics.median(one) for name, one in cpu.items()})


def long_kernel(batch: Any) -> None:
    batch[0][0].add_(1)
    torch.cuda._sleep(STEP_CYCLES)


def small_kernels(batch: Any) -> None:
    one = batch[0][0]
    for _ in range(500):
        one.add_(1)


def first_batch() -> None:
    times: dict[str, float] = {}
    for name in ("device", "torch pinned"):
        start = time.perf_counter()
        batches = WAYS[name](Ready())
        next(batches)
        torch.cuda.synchronize()
        times[name] = time.perf_counter() - start
        batches.close()
    say("first batch, s", **times)


def trace() -> None:
    batches = ours(Ready())
    for _ in range(20):
        long_kernel(next(batches))
    with torch.profiler.profile() as profile:
        for _ in range(4):
            long_kernel(next(batches))
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(RESULTS / "trace.json"))
    batches.close()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    choose.resolved("cuda")
    say(torch.cuda.get_device_name())
    for part in (
        rate_of_copies,
        first_batch,
        lambda: time_of_steps("a kernel of 10 ms", long_kernel, Ready()),
        lambda: time_of_steps("500 small kernels", small_kernels, Ready()),
        lambda: time_of_steps("114 tensors, 500 small kernels", small_kernels, Ready(114)),
        trace,
    ):
        try:
            part()
        except Exception as error:
            say(f"failed: {type(error).__name__}: {error}")
        (RESULTS / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
