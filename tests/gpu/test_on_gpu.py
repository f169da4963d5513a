# SPDX-License-Identifier: Apache-2.0
"""The option `device` on a GPU of CUDA. tools/test_gpu.py (make test-gpu) runs it; without a GPU all is skipped."""

from __future__ import annotations

import collections
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.torch import DataLoader

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:headrace. workers are started by fork")

WIDE = 200_000  # 800 kB a sample
CYCLES = 20_000_000  # of torch.cuda._sleep: about 10 ms
Pair = collections.namedtuple("Pair", "first second")


class Numbers(torch.utils.data.Dataset[Any]):
    """index -> (a row of that number, the number)."""

    def __init__(self, count: int = 256, wide: int = WIDE, grows: int = 0) -> None:
        self.count, self.wide, self.grows = count, wide, grows

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.wide + self.grows * (index // 8),), float(index)), index


def loader_of(dataset: Any, **options: Any) -> Any:
    options = {"batch_size": 8, "num_workers": 4, "multiprocessing_context": "forkserver", "device": "cuda", **options}
    return DataLoader(dataset, **options)


def check(batches: Any, count: int) -> None:
    number = -1
    for number, (rows, indices) in enumerate(batches):
        expected = torch.arange(8 * number, 8 * number + 8, device="cuda")
        assert rows.is_cuda and indices.is_cuda
        assert bool((rows == expected[:, None]).all()) and bool((indices == expected).all())
    assert number == count - 1


@pytest.fixture(autouse=True)
def no_error_is_left() -> Iterator[None]:
    yield
    gc.collect()
    torch.ones(8, device="cuda").sum().item()  # raises what a call has left behind
    torch.cuda.synchronize()


def zoo(indices: list[int]) -> Any:
    wide = torch.arange(float(WIDE)).reshape(400, -1) + indices[0]
    return {
        "plain": wide,
        "tuple": (wide + 1, [wide + 2]),
        "named": Pair(wide.bfloat16(), "text"),
        "strided": wide.t(),
        "channels_last": torch.rand(4, 3, 32, 32).contiguous(memory_format=torch.channels_last),
        "views": [wide[:2], wide[1:]],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "kinds": [torch.ones(5).to(kind) for kind in (torch.half, torch.bool, torch.uint8, torch.int16, torch.cfloat)],
        "many": [torch.full((7,), number) for number in range(40)],
        "numpy": wide.numpy(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        moved = one.to("cuda")
        return torch.equal(moved, other) and (moved.dtype, moved.stride()) == (other.dtype, other.stride())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool((one == other).all()) if hasattr(one, "all") else one == other


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_are_those_that_torch_moves(workers: int) -> None:
    options: dict[str, Any] = {
        "collate_fn": zoo,
        "num_workers": workers,
        "batch_size": 2,
        "multiprocessing_context": None,
    }
    if workers:
        options["multiprocessing_context"] = "fork"
    torch.manual_seed(0)
    theirs = list(loader_of(range(8), device=None, **options))
    torch.manual_seed(0)
    ours = list(loader_of(range(8), **options))
    for one, other in zip(theirs, ours, strict=True):
        one.pop("channels_last"), other.pop("channels_last")  # random
        assert same(one, other)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_epochs_are_complete_and_memory_is_registered(prefetch: int) -> None:
    loader = loader_of(Numbers(), device_prefetch=prefetch)
    for _ in range(3):
        check(loader, 32)
    report = loader.report()["device"]
    assert report["refusal"] == "" and report["registered_slots"] > 0


@pytest.mark.parametrize("stream", ["current", "side"])
def test_no_batch_is_torn_with_slow_kernels(stream: str) -> None:
    """10,000 batches of one value each in all; kernels sleep in the stream of the consumer, or in another one."""
    sleeping = torch.cuda.current_stream() if stream == "current" else torch.cuda.Stream()
    sums = []
    loader = loader_of(Numbers(8 * 5_000, 5_000))
    for number, (rows, indices) in enumerate(loader):
        if number % 100 == 0:
            with torch.cuda.stream(sleeping):
                torch.cuda._sleep(CYCLES)
        sums.append((rows - indices[:, None]).abs().max())
        del rows, indices
    assert float(torch.stack(sums).max()) == 0.0
    assert len(sums) == 5_000


def test_next_synchronizes_nothing() -> None:
    iterator = iter(loader_of(Numbers()))
    for _ in range(8):
        next(iterator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(16):
            next(iterator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    del iterator


def test_kernel_after_a_refusal_is_right() -> None:
    from headrace.torch._device import choose

    device = choose.opened("cuda")
    assert device.register(1 << 40, 4096) is not None  # nothing is mapped there
    assert float(torch.ones(1000, device="cuda").sum()) == 1000.0


def test_slots_that_grow_and_small_limits() -> None:
    for options in ({}, {"arena_limit": 64 << 20}, {"arena_limit": 30 << 20}):
        loader = loader_of(Numbers(grows=4_000), **options)
        for _ in range(2):
            for number, (rows, indices) in enumerate(loader):
                assert rows[:, -1].tolist() == indices.tolist() == list(range(8 * number, 8 * number + 8))


def test_break_keep_and_two_loaders() -> None:
    loader, other = loader_of(Numbers()), loader_of(Numbers())
    for taken in range(3):
        kept = [batch for _, batch in zip(range(taken + 1), loader, strict=False)]
        check(iter(kept), taken + 1)
    for number, (one, two) in enumerate(zip(loader, other, strict=True)):
        assert one[1].tolist() == two[1].tolist() == list(range(8 * number, 8 * number + 8))


def test_exception_of_dataset_and_killed_worker() -> None:
    class Fails(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 100:
                raise ValueError("one hundred")
            return super().__getitem__(index)

    iterator = iter(loader_of(Fails(), max_restarts=1, multiprocessing_context="fork"))
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    got, raised = 1, 0
    while True:
        try:
            with pytest.warns() if got == -1 else _quiet():
                next(iterator)
            got += 1
        except ValueError:
            raised += 1
        except StopIteration:
            break
    assert (got, raised) == (31, 1)


class _quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_memory_of_gpu_that_has_run_out() -> None:
    iterator = iter(loader_of(Numbers(64, 2_000_000), batch_size=8))  # 64 MB a batch
    next(iterator)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(1 - free / total + (32 << 20) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            kept = [next(iterator) for _ in range(7)]
            del kept
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    left = [indices[0].item() for _, indices in iterator]
    assert left == list(range(left[0], 64, 8))


def test_memory_of_gpu_stays_within_prefetch() -> None:
    for prefetch in (1, 2):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for rows, indices in loader_of(Numbers(), device_prefetch=prefetch):
            torch.cuda._sleep(CYCLES // 10)
            del rows, indices
        batch = 8 * WIDE * 4
        assert torch.cuda.max_memory_allocated() - before <= (prefetch + 2.5) * batch


def test_capture_here_raises_and_elsewhere_goes_on() -> None:
    iterator = iter(loader_of(Numbers()))
    rows, _ = next(iterator)
    static = rows.clone()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        static.add_(1)
        with pytest.raises(RuntimeError, match="CUDA graph is being captured"):
            next(iterator)
    graph.replay()
    assert next(iterator)[1].tolist() == list(range(8, 16))
    stop, errors = threading.Event(), []

    def capture() -> None:
        try:
            while not stop.is_set():
                other = torch.cuda.CUDAGraph()
                with torch.cuda.graph(other, capture_error_mode="thread_local"):
                    static.mul_(1)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    left = [indices[0].item() for _, indices in iterator]
    stop.set()
    thread.join()
    assert errors == [] and left == list(range(16, 256, 8))


def test_fork_after_cuda() -> None:
    loader = loader_of(Numbers(), multiprocessing_context="fork")
    check(loader, 32)
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        os._exit(0)
    check(loader, 32)
    os.waitpid(child, 0)


LOOP = """
import os, signal, sys
import torch
from headrace.torch import DataLoader

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.full((20_000,), float(index)), index

if __name__ == "__main__":
    loader = DataLoader(Rows(), 8, num_workers=2, device="cuda")
    for epoch in range(2):
        for number, (rows, indices) in enumerate(loader):
            rows.add_(1)
            assert float(rows[-1, -1]) == 8 * number + 8, (number, float(rows[-1, -1]))
            if number == 20 and sys.argv[1:2] == ["killed"]:
                print(*(one.pid for one in loader._iterator._workers) if loader._iterator else (), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    assert loader.report()["device"]["registered_slots"] > 0
    print("done")
"""


def test_killed_trainer_leaves_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(LOOP.replace("num_workers=2", "num_workers=2, persistent_workers=True"))
    done = subprocess.run([sys.executable, path, "killed"], capture_output=True, text=True, timeout=50)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(one) for one in done.stdout.split()]
    assert len(pids) == 2
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_sanitizer_of_torch_finds_no_race(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    environment = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
    assert "data race" not in done.stderr


def test_compiled_step_takes_batches() -> None:
    model = torch.nn.Linear(5_000, 4).cuda()
    step = torch.compile(lambda rows: model(rows).sum())
    total = sum(float(step(rows)) for rows, _ in loader_of(Numbers(64, 5_000)))
    assert total == total


def test_frameworks_find_nothing_to_move() -> None:
    rows, indices = next(iter(loader_of(Numbers())))
    accelerate = pytest.importorskip("accelerate.utils")
    moved = accelerate.send_to_device([rows, indices], torch.device("cuda"), non_blocking=True)
    assert [one.data_ptr() for one in moved] == [rows.data_ptr(), indices.data_ptr()]
