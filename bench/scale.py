# SPDX-License-Identifier: Apache-2.0
"""Measures what one machine of a very large training needs: 4,096 ranks on 512 machines, 6 * 10^9 samples in 600,000
shards, 15 * 10^12 tokens, 100 sources. It calls the real functions, at the real size if one machine can hold that, and
says at which size if not. docs/scale.md has the results, and what they mean.

    QUICK=1 python bench/scale.py [--only NAME]     under a minute, with smaller sizes

Times are CPU times, so that a machine with other work gives the same ones; with workers and other processes, the time
that passes. Each case runs in a process of its own, because an allocator keeps memory that was freed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headrace import Mixture, Order, Plan, _core, sources
from headrace.sources._index import make_index, save_index
from headrace.torch import DataLoader, per_rank
from headrace.torch._own import groups
from headrace.torch._ranks.store import GroupStore
from measure import QUICK, reset_peak, status_bytes
from run import describe_machine

MACHINES, RANKS_OF_MACHINE, WORKERS_OF_RANK = 512, 8, 4
RANKS = MACHINES * RANKS_OF_MACHINE
PROCESSES = RANKS_OF_MACHINE * (1 + WORKERS_OF_RANK)  # that read, of a machine
SAMPLES, SHARDS, TOKENS, SOURCES = 6_000_000_000, 600_000, 15_000_000_000_000, 100
BATCH, LENGTH = 64, 8192
FULL_S, FULL_BYTES = 60.0, 4e9  # more than this per machine needs a word in docs/scale.md
READ = 200_000 if QUICK else 1_000_000
UNITS = {"bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")), "s": ((1, "s"), (1e-3, "ms"), (1e-6, "us"))}


@dataclass(frozen=True)
class Found:
    """A number. of: rank, process or machine. times: by which what was measured was multiplied; 1: nothing was."""

    what: str
    of: str
    value: float
    unit: str
    times: float = 1.0
    size: str = ""  # at which it was measured, if that is smaller

    @property
    def at_full_size(self) -> float:
        return self.value * self.times

    def is_too_much(self) -> bool:
        count = {"rank": RANKS_OF_MACHINE, "process": PROCESSES}.get(self.of, 1)
        if self.unit == "bytes":
            return self.at_full_size * count > FULL_BYTES
        return self.unit == "s" and self.at_full_size > FULL_S


def in_words(value: float, unit: str) -> str:
    for least, name in UNITS.get(unit, ()):
        if value >= least:
            return f"{value / least:.3g} {name}"
    return f"{1e9 * value:.3g} ns" if unit == "s" else f"{value:,.4g} {unit}"


def seconds_of(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


class Memory:
    """The resident memory that was added since it was made, and its peak."""

    def __init__(self) -> None:
        reset_peak()
        self._before = status_bytes("VmRSS")

    def added(self) -> float:
        return float(max(0, status_bytes("VmRSS") - self._before))

    def peak(self) -> float:
        return float(max(0, status_bytes("VmHWM") - self._before))


class Sized(torch.utils.data.Dataset[int]):
    """A dataset of so many samples, each of which is its index."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


# ---- orders ----


def of_orders() -> Iterator[Found]:
    memory = Memory()
    begin = time.process_time()
    order = Order(SAMPLES)
    dealt = per_rank(order, num_replicas=RANKS, rank=RANKS - 1)
    next(iter(dealt))
    yield Found("Order with per_rank: first index", "rank", time.process_time() - begin, "s")
    target = np.empty(READ, np.int64)
    took = seconds_of(lambda: order._whole.get().fill(RANKS - 1, RANKS, target))
    yield Found("Order with per_rank: an index", "rank", took / READ, "s")
    kept_order = per_rank(order, num_replicas=RANKS, rank=RANKS - 1, stay=RANKS_OF_MACHINE)
    staying = kept_order.arrange(order, kept_order.machines)
    took = seconds_of(lambda: staying._whole.get().fill(RANKS - 1, RANKS, target))  # type: ignore[attr-defined]
    yield Found("the same with stay: an index", "rank", took / READ, "s")
    yield Found("Order with per_rank: memory", "rank", memory.added(), "bytes")
    part = 10_000_000 if QUICK else 200_000_000
    memory = Memory()
    kept: list[Any] = []
    took = seconds_of(lambda: kept.append(_core.Order.torch(part, 0, item_bytes=8)))
    size = f"{part:.0e} samples"
    yield Found("DistributedSampler: first index of an epoch", "rank", took, "s", SAMPLES / part, size)
    yield Found("DistributedSampler: memory until then", "rank", memory.peak(), "bytes", SAMPLES / part, size)


# ---- mixtures ----


def mixture(count: int, seed: int = 0) -> Mixture:
    draw = np.random.default_rng(seed)
    parts = draw.lognormal(0, 2, count)
    sizes = np.maximum(1, parts / parts.sum() * SAMPLES).astype(np.int64)
    weights = draw.lognormal(0, 1, count)
    names = [f"source-{number:04d}" for number in range(count)]
    given = {name: Sized(int(size)) for name, size in zip(names, sizes, strict=True)}
    return Mixture(given, dict(zip(names, map(float, weights), strict=True)), length=SAMPLES)


def of_mixtures() -> Iterator[Found]:
    for count in (SOURCES, 1868):
        memory = Memory()
        begin = time.process_time()
        try:
            mix = mixture(count)
        except ValueError as error:
            print(f"{count} sources: {error}", file=sys.stderr)
            continue
        name = f"Mixture of {count:,} sources"
        yield Found(f"{name}: made", "rank", time.process_time() - begin, "s")
        yield Found(f"{name}: set_epoch", "rank", seconds_of(lambda mix=mix: mix.set_epoch(1)), "s")
        yield Found(f"{name}: memory", "rank", memory.added(), "bytes")
        target = np.empty(READ, np.int64)
        took = seconds_of(lambda mix=mix, target=target: mix._whole.get().fill(RANKS - 1, RANKS, target))
        yield Found(f"{name}: an index", "rank", took / READ, "s")
        loader = DataLoader(mix.dataset, BATCH, sampler=mix[5::RANKS])
        yield Found(f"{name}: state", "rank", float(len(json.dumps(state_after(loader, 10)))), "bytes")


# ---- plans ----


def of_plans() -> Iterator[Found]:
    part = 500_000 if QUICK else 8_000_000
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 1, part), 16, LENGTH).astype(np.int32)
    size = f"{part:.0e} samples"
    for way, given in {"pack": {"pack": LENGTH}, "max_padded": {"max_padded": 16 * LENGTH}}.items():
        memory = Memory()
        plan = Plan(lengths, world_size=RANKS, rank=0, tail="drop", **given)
        took = seconds_of(lambda plan=plan: next(iter(plan)))
        yield Found(f"Plan with {way}: first batch", "rank", took, "s", SAMPLES / part, size)
        yield Found(f"Plan with {way}: memory, at most", "rank", memory.peak(), "bytes", SAMPLES / part, size)


# ---- states ----


def state_after(loader: Any, steps: int) -> Any:
    """Returns a state in the middle of an epoch, without reading what is before."""
    loader.skip(steps)
    next(iter(loader))
    return loader.state_dict()


def of_states() -> Iterator[Found]:
    steps = SAMPLES // RANKS // BATCH // 2
    dataset = Sized(SAMPLES)

    def loader_of(world: int, workers: int = 0) -> Any:
        return DataLoader(
            dataset, BATCH, sampler=per_rank(Order(SAMPLES), num_replicas=world, rank=5), num_workers=workers
        )

    for workers in (0, 2):
        loader = loader_of(RANKS, workers)
        took = seconds_of(lambda loader=loader: next(iter(loader)))
        yield Found(f"an epoch begins, {workers} workers: first batch", "rank", took, "s")
        loader = loader_of(RANKS, workers)
        state = state_after(loader, steps)
        yield Found(f"state_dict in the middle, {workers} workers", "rank", seconds_of(loader.state_dict), "s")
        other = loader_of(RANKS, workers)
        begin = time.process_time()
        other.load_state_dict(state)
        next(iter(other))
        took = time.process_time() - begin
        yield Found(f"resumed in the middle, {workers} workers: first batch", "rank", took, "s")
    yield Found("state", "rank", float(len(json.dumps(state))), "bytes")
    for change in range(10):
        loader = loader_of(RANKS - 8 * (change + 1))
        loader.load_state_dict(state)
        state = state_after(loader, 10)
    yield Found("state after 10 changes of the number of ranks", "rank", float(len(json.dumps(state))), "bytes")


# ---- token files ----


def of_tokens() -> Iterator[Found]:
    """Files of 10 GB without content (holes), as many as have all tokens in 4 bytes each."""
    file_bytes = 10_000_000_000
    count = 600 if QUICK else 4 * TOKENS // file_bytes
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number:06d}.bin" for number in range(count)]
        for path in paths:
            with open(path, "wb") as file:
                file.truncate(file_bytes)
        memory = Memory()
        begin = time.process_time()
        dataset = sources.Tokens(paths, length=LENGTH, labels=True, dtype="uint32")
        times = 4 * TOKENS / file_bytes / count
        size = f"{count} files"
        yield Found("Tokens: opened", "process", time.process_time() - begin, "s", times, size)
        yield Found("Tokens: memory", "process", memory.added(), "bytes", times, size)
        yield Found("Tokens: pickle for a worker", "process", float(len(pickle.dumps(dataset))), "bytes", times, size)
        places = random.Random(0).sample(range(len(dataset)), 2_000)
        took = seconds_of(lambda: [dataset[place] for place in places])
        yield Found(f"Tokens: a window of {LENGTH:,} of a hole, any file", "process", took / len(places), "s")


# ---- tar files and their index ----


@contextmanager
def shards(count: int, members: int, content: bytes) -> Iterator[list[bytes]]:
    """Gives the paths of `count` tar files, with the indexes next to them: links to a few files."""
    from bench_shards import write

    most_links = 60_000
    with tempfile.TemporaryDirectory() as folder:
        paths: list[bytes] = []
        for number in range(count):
            path = f"{folder}/{number:06d}.tar"
            if number % most_links == 0:
                first = write(path, members, lambda _: content)
                save_index(_core.INDEX_TAR, first)
            else:
                os.link(first, path)
                os.link(f"{first}.hri", f"{path}.hri")
            paths.append(path.encode())
        yield paths


def of_indexes() -> Iterator[Found]:
    """The index of the shards of one machine, and what it would be for those of all machines."""
    count = 40 if QUICK else SHARDS // MACHINES
    members = SAMPLES // SHARDS
    samples = count * members
    size = f"{samples:,} samples in {count:,} shards"
    with shards(count, members, b"") as paths:
        names = [os.fsdecode(path) for path in paths]
        indexes: list[Any] = []
        took = seconds_of(lambda: indexes.append(make_index(_core.INDEX_TAR, names, True)))
        data = bytes(indexes.pop())
        times = SAMPLES / samples
        yield Found("Tar: index of all shards", "machine", float(len(data)), "bytes", times, size)
        yield Found("Tar: index of its part", "machine", float(len(data)), "bytes", SAMPLES / MACHINES / samples, size)
        yield Found("Tar: index of all shards, put together from .hri files", "machine", took, "s", times, size)
        index = _core.Index(data, _core.INDEX_TAR, False)
        kept: list[Any] = []
        work = lambda: kept.append(_core.Tar(tuple(paths), index, (b"jpg", b"cls"), False, False, False))  # noqa: E731
        took = seconds_of(work)
        yield Found("Tar: all samples looked at for their fields", "process", took, "s", times, size)
        part = SAMPLES / MACHINES / samples
        yield Found("Tar: those of its part looked at for their fields", "process", took, "s", part, size)
        tar = kept.pop()
        places = random.Random(0).sample(range(samples), READ // 100)
        took = seconds_of(lambda: [tar.find(place) for place in places])
        yield Found("Tar: a sample found", "process", took / len(places), "s")
        took = seconds_of(lambda: [tar.ask(places[at : at + BATCH]) for at in range(0, len(places), BATCH)])
        yield Found("Tar: a sample of a batch announced to the kernel", "process", took / len(places), "s")


def of_files() -> Iterator[Found]:
    """Measures the cost of a file, however many samples it has."""
    count = 20_000 if QUICK else SHARDS
    size = f"{count:,} shards"
    times = SHARDS / count
    with shards(count, 1, b"x") as paths:
        names = [os.fsdecode(path) for path in paths]
        indexes: list[Any] = []
        took = seconds_of(lambda: indexes.append(make_index(_core.INDEX_TAR, names, True)))
        data = bytes(indexes.pop())
        yield Found(".hri files on a local disk read", "machine", took, "s", times, size)
        yield Found("index: the records of the files", "machine", float(len(data)), "bytes", times, size)
        memory = Memory()
        index = _core.Index(data, _core.INDEX_TAR, False)
        kept: list[Any] = []
        work = lambda: kept.append(_core.Tar(tuple(paths), index, (b"jpg",), False, False, False))  # noqa: E731
        took = seconds_of(work)
        yield Found("Tar: opened, without the look at samples", "process", took, "s", times, size)
        yield Found("Tar: memory for its files", "process", memory.added(), "bytes", times, size)
        tar = kept.pop()
        places = random.Random(0).sample(range(count), min(count, 10_000))
        took = seconds_of(lambda: [tar.read(place) for place in places])
        yield Found("Tar: a sample read, each of another file", "process", took / len(places), "s")
        descriptors = float(len(os.listdir("/proc/self/fd")))
        yield Found("open descriptors then", "process", descriptors, "")


# ---- remote objects ----


def of_objects() -> Iterator[Found]:
    """Measures how much a process keeps of the addresses of all shards."""
    from headrace.sources._places import RemoteObjects

    count = 50_000 if QUICK else SHARDS
    size = f"{count:,} objects"
    times = SHARDS / count
    paths = [f"s3://bucket/data/set/train-{number:06d}.tar" for number in range(count)]
    storage = json.dumps({"region": "us-east-1"}).encode()
    memory = Memory()

    def add_all() -> None:
        for number, path in enumerate(paths):
            url = path.encode()
            _core.remote_add(url, url, storage, b"%032x" % number, b'"%032x-16"' % number, 1_100_000_000)

    took = seconds_of(add_all)
    yield Found("remote objects: made known", "process", took, "s", times, size)
    yield Found("remote objects: memory", "process", memory.added(), "bytes", times, size)
    found = random.Random(0).sample(paths, 20_000)
    took = seconds_of(lambda: [_core.remote_find(path.encode()) for path in found])
    yield Found("remote objects: one found by its address", "process", took / len(found), "s")
    objects = RemoteObjects(paths)
    data: list[bytes] = []
    took = seconds_of(lambda: data.append(pickle.dumps(objects)))
    yield Found("remote objects: pickle for a worker", "process", float(len(data[0])), "bytes", times, size)
    yield Found("remote objects: pickled", "rank", took, "s", times, size)
    yield Found(
        "remote objects: from the pickle", "process", seconds_of(lambda: pickle.loads(data[0])), "s", times, size
    )


# ---- ranks that compare their epochs ----


def of_agreement() -> Iterator[Found]:
    """All ranks compare their epochs in the store of torch.distributed, which is one process. Here a few connections do
    what those of all ranks do, one after the other, without waiting: a lower bound."""
    from concurrent.futures import ThreadPoolExecutor
    from datetime import timedelta

    class Store(GroupStore):
        def process_count(self) -> int:
            return 0

    clients = 4
    master = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(60))
    port = master.port
    stores = [
        torch.distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(60)) for _ in range(clients)
    ]
    facts = [SAMPLES // RANKS, SAMPLES // RANKS // BATCH, 0, 1, 2**62, SAMPLES]
    text = json.dumps([True, [[list(range(4000, 4008)), facts]]])
    connections: dict[int, Any] = {}
    groups.default_store = lambda: connections[threading_id()]

    def meet(client: int, ranks: range) -> None:
        connections[threading_id()] = stores[client]
        for rank in ranks:
            Store().gather("key", text if rank % RANKS_OF_MACHINE == 0 else None, RANKS_OF_MACHINE, 0.0)

    with ThreadPoolExecutor(clients) as pool:
        begin = time.process_time()
        for done in [pool.submit(meet, client, range(client, RANKS, clients)) for client in range(clients)]:
            done.result()
        yield Found("ranks compare an epoch: the store answers all of them", "job", time.process_time() - begin, "s")
        begin = time.process_time()
        asked = 2_000
        for _ in range(asked):
            stores[0].add("key/count", 0)
        yield Found(
            "ranks compare an epoch: one look at who is there", "job", (time.process_time() - begin) / asked, "s"
        )
    size = float(len(stores[0].compare_set("key/texts", "\n", "\n")))
    yield Found("ranks compare an epoch: text that each rank reads", "rank", size, "bytes")


def threading_id() -> int:
    import threading

    return threading.get_ident()


# ---- machines that keep their samples ----


def hits_of(machines: int, part: float, stay: int | None, epochs: int = 4) -> float:
    """Returns how much of its last epoch machine 0 finds on its disk, which has room for `part` of its share of the
    samples. What came first is kept, sample by sample."""
    ranks, samples = 2, 640_000
    room = int(part * samples / machines)
    kept: set[int] = set()
    for epoch in range(epochs):
        hits = read = 0
        for rank in range(ranks):
            order = Order(samples, seed=0, epoch=epoch)
            for index in per_rank(order, num_replicas=machines * ranks, rank=rank, stay=stay):
                read += 1
                if index in kept:
                    hits += 1
                elif len(kept) < room:
                    kept.add(index)
    return hits / read


def of_stay() -> Iterator[Found]:
    for machines in (2, 8, 64) if QUICK else (2, 4, 8, 16, 32, 64):
        for part in (0.5, 1.0, 2.0):
            share = min(part, machines)
            yield Found(
                f"{machines} machines, room for {part} of its part: found",
                "machine",
                100 * hits_of(machines, share, None),
                "%",
            )
            if part <= 1:
                found = 100 * hits_of(machines, share, 2)
                yield Found(f"{machines} machines, room for {part} of its part, stay: found", "machine", found, "%")


CASES: dict[str, Callable[[], Iterator[Found]]] = {
    "orders": of_orders,
    "mixtures": of_mixtures,
    "plans": of_plans,
    "states": of_states,
    "tokens": of_tokens,
    "indexes": of_indexes,
    "files": of_files,
    "objects": of_objects,
    "agreement": of_agreement,
    "stay": of_stay,
}


def run_case(name: str) -> list[Found]:
    """Runs a case in a forked process. Raises RuntimeError if that fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as file:
                for found in CASES[name]():
                    print(json.dumps(asdict(found)), file=file, flush=True)
            code = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as file:
        found = [Found(**json.loads(line)) for line in file]
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"scale.py: the case {name} failed")
    return found


def show(name: str, rows: Sequence[Found]) -> None:
    for one in rows:
        measured = "measured" if one.times == 1 else f"{in_words(one.value, one.unit)} for {one.size}"
        mark = " **" if one.is_too_much() else ""
        print(
            f"| {name} | {one.what} | {one.of} | {in_words(one.at_full_size, one.unit)}{mark} | {measured} |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--only", default="", help="run only the cases whose name contains this")
    args = parser.parse_args()
    chosen = [name for name in CASES if args.only in name]
    if not chosen:
        parser.error(f"--only {args.only}: there are {', '.join(CASES)}")
    for what, value in describe_machine().items():
        print(f"{what}: {value}")
    print("| case | what | of a | at full size | measured |\n| --- | --- | --- | --- | --- |")
    results = {}
    for name in chosen:
        results[name] = run_case(name)
        show(name, results[name])
    print(f"** more than {FULL_S:.0f} s, or than {FULL_BYTES / 1e9:.0f} GB on a machine with {PROCESSES} readers")
    if args.json:
        args.json.write_text(
            json.dumps({name: [asdict(one) for one in rows] for name, rows in results.items()}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
