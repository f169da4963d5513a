# SPDX-License-Identifier: Apache-2.0
"""Measures headrace.cache: attaching, eight jobs that need the same data, builders that are killed, workers whose
dataset holds cached arrays, and cached samples. Rivals: SharedArray, lmdb, joblib, numpy.load(mmap_mode="r") of a file
in /dev/shm."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import headrace
import numpy as np
from headrace import _core
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, show_against, status_bytes

MIB = 64 if QUICK else 1024
JOBS = 8
ATTACHES = 200
OURS, WITHOUT = "headrace", "without arrays"
ATTACH = "attach an array of 16 MiB"
SPAWNED_MIB = 256 if QUICK else 4096
SCRIPT = Path(__file__).resolve().parent / "cache_script.py"
SAMPLES_SCRIPT = SCRIPT.parent / "samples_script.py"
SAMPLES = 200 if QUICK else 1000
JOB_SAMPLES = 1000 if QUICK else 7000  # 1 GB
IMAGE = (224, 224, 3)  # uint8: 147 KiB
READ, COPIED, FILLED, JOB_WORK = (
    "147 KiB sample, view",
    "147 KiB sample, copy",
    "147 KiB samples kept",
    "8 jobs x 2 workers",
)


def _root() -> Path:
    return Path(os.environ["HEADRACE_CACHE"])


# ---- attaching ----


def _time(attach: Callable[[], Any]) -> float:
    """Returns the median time of a call in us; what it returns is dropped after each."""
    times = []
    for _ in range(ATTACHES):
        start = time.perf_counter_ns()
        kept = attach()
        times.append(time.perf_counter_ns() - start)
        del kept
    return statistics.median(times) / 1e3


def _attach() -> list[Row]:
    array = np.arange(4 << 20, dtype="f4")
    headrace.cache.put("attach", array)
    path = _root() / "array.npy"
    np.save(path, array)
    cache = _core.Cache(None)
    ways: dict[str, Callable[[], float]] = {
        OURS: lambda: _time(lambda: headrace.cache("attach")),
        "hr_cache_attach alone": lambda: _time(lambda: cache.attach("attach", "0", None)),
        "np.load": lambda: _time(lambda: np.load(path, mmap_mode="r")),
    }
    try:
        import SharedArray
    except ImportError:
        print("SharedArray is not installed")
    else:
        name = f"headrace-bench-{os.getpid()}"
        SharedArray.create(f"shm://{name}", array.shape, array.dtype)[:] = array
        ways["SharedArray"] = lambda: _time(lambda: SharedArray.attach(f"shm://{name}"))
    try:
        import lmdb
    except ImportError:
        print("lmdb is not installed")
    else:
        with lmdb.open(str(_root() / "lmdb"), map_size=1 << 28) as environment, environment.begin(write=True) as entry:
            entry.put(b"array", array.tobytes())
        ways["lmdb"] = lambda: _time(lambda: lmdb.open(str(_root() / "lmdb"), readonly=True, lock=False).close())
    rows = in_turn(ATTACH, ways, "us")
    if "SharedArray" in ways:
        SharedArray.delete(f"shm://{name}")
    return rows


# ---- jobs that need the same data ----


def _jobs(killed: int) -> list[Row]:
    """Starts the jobs at once. `killed` builders are killed when they are half done."""
    builds = Path(tempfile.mkdtemp(dir=_root()))
    (builds / "builds").mkdir()
    arguments = [sys.executable, str(SCRIPT), str(MIB), str(killed), str(builds / "builds")]
    start = time.monotonic()
    jobs = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(JOBS)
    ]
    alive = [job for job in jobs if job.stdout is not None and job.stdout.readline() == "ready\n"]
    for job in alive:
        _tell(job)
    results = [json.loads(job.stdout.readline()) for job in alive if job.stdout is not None]
    for job in alive:
        _tell(job)
    for job in jobs:
        job.wait()
    assert len(results) == JOBS - killed and len({result["sum"] for result in results}) == 1
    count = len(list((builds / "builds").iterdir()))
    began = sorted(int(path.name.split("-")[1]) for path in (builds / "builds").iterdir())
    died = sorted(int(path.name.split("-")[1]) for path in builds.glob("died-*"))
    work = f"{JOBS} jobs, {killed} builders killed" if killed else f"{JOBS} jobs"
    pss = sum(result["pss"] for result in results) / (MIB << 20)
    rows = [
        Row(f"{work}: builds", OURS, 0, count, "builds"),
        Row(f"{work}: PSS of all mappings / the data", OURS, 0, pss, "x"),
        Row(f"{work}: until all have it", OURS, 0, max(result["had"] for result in results) - start, "s"),
    ]
    if died:
        takeovers = [(next(at for at in began if at > end) - end) / 1e6 for end in died]
        rows.append(Row(f"{work}: next builder after a death", OURS, 0, max(takeovers), "ms"))
    headrace.cache.rm("array")
    shutil.rmtree(builds)
    return rows


def _tell(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


# ---- workers ----


def _child(connection: Any, dataset: Any) -> None:
    connection.send((time.monotonic(), status_bytes("VmRSS"), len(dataset)))


def _start_worker(dataset: Any) -> tuple[float, float]:
    """Returns the seconds until a spawned worker has the dataset, and its resident memory in MB."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    start = time.monotonic()
    process = context.Process(target=_child, args=(theirs, dataset))
    process.start()
    at, rss, _ = ours.recv()
    process.join()
    return at - start, rss / 1e6


def _workers() -> list[Row]:
    with headrace.cache.writer("large", (SPAWNED_MIB, 1 << 18), "f4") as writer:
        for start, stop in writer.missing():
            writer[start:stop] = 1
    dataset = {f"part{number}": writer.array[number::8] for number in range(8)}
    work = f"spawned worker, {SPAWNED_MIB} MiB of arrays"
    found: dict[str, list[tuple[float, float]]] = {WITHOUT: [], OURS: []}
    for _ in range(ROUNDS):
        found[WITHOUT].append(_start_worker({"one": np.zeros(3)}))
        found[OURS].append(_start_worker(dataset))
    rows = [Row(f"{work}: pickle", OURS, 0, len(ForkingPickler.dumps(dataset)), "bytes")]
    for at, unit, factor in ((0, "ms", 1e3), (1, "MB", 1.0)):
        values = {rival: factor * statistics.median(value[at] for value in found[rival]) for rival in found}
        rows += [Row(f"{work}: {unit}", rival, 0, value, unit) for rival, value in values.items()]
        rows.append(Row(f"{work}: more {unit}", OURS, 0, values[OURS] - values[WITHOUT], unit))
    assert pickle.loads(ForkingPickler.dumps(dataset))["part1"][0, 0] == 1
    del dataset, writer
    gc.collect()
    headrace.cache.rm("large")
    return rows


# ---- samples ----


class _Images:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return IMAGES[index % len(IMAGES)]


IMAGES = [np.random.default_rng(number).integers(0, 255, IMAGE, np.uint8) for number in range(16)]


def _time_each(call: Callable[[int], Any]) -> float:
    """Returns the mean time of a call in us, over all samples in a random order."""
    order = np.random.default_rng(1).permutation(SAMPLES).tolist()
    start = time.perf_counter_ns()
    for index in order:
        call(index)
    return (time.perf_counter_ns() - start) / len(order) / 1e3


class _SharedArrays:
    """One array in /dev/shm for each sample, as people do it by hand."""

    def __init__(self) -> None:
        import SharedArray

        self._library, self._made = SharedArray, 0
        self._name = f"headrace-bench-{os.getpid()}"

    def put(self, index: int) -> None:
        self._library.create(f"shm://{self._name}-{index}", IMAGE, np.uint8)[:] = _Images()[index]

    def open(self) -> Callable[[int], Any]:
        arrays = [self._library.attach(f"shm://{self._name}-{index}") for index in range(SAMPLES)]
        return arrays.__getitem__

    def close(self) -> None:
        for index in range(SAMPLES):
            self._library.delete(f"shm://{self._name}-{index}")


class _Lmdb:
    def __init__(self) -> None:
        import lmdb

        self._folder = tempfile.mkdtemp(dir=_root())
        self._environment = lmdb.open(self._folder, map_size=1 << 30, sync=False)

    def put(self, index: int) -> None:
        with self._environment.begin(write=True) as entry:
            entry.put(b"%d" % index, _Images()[index].tobytes())

    def open(self) -> Callable[[int], Any]:
        entry = self._environment.begin()
        return lambda index: np.frombuffer(entry.get(b"%d" % index), np.uint8).reshape(IMAGE)

    def close(self) -> None:
        self._environment.close()
        shutil.rmtree(self._folder)


class _Joblib:
    def __init__(self) -> None:
        import joblib

        self._folder = tempfile.mkdtemp(dir=_root())
        self._get = joblib.Memory(self._folder, verbose=0).cache(_image)

    def put(self, index: int) -> None:
        self._get(index)

    def open(self) -> Callable[[int], Any]:
        return self._get

    def close(self) -> None:
        shutil.rmtree(self._folder)


def _image(index: int) -> Any:
    return IMAGES[index % len(IMAGES)]


class _Ours:
    def __init__(self) -> None:
        self._samples = headrace.cache_samples(_Images(), "512M", name="bench", version=1)

    def put(self, index: int) -> None:
        self._samples[index]

    def open(self) -> Callable[[int], Any]:
        return self._samples.view

    def close(self) -> None:
        self._samples.drop()


def _ways() -> dict[str, Any]:
    found: dict[str, Any] = {OURS: _Ours}
    for name, way in (("SharedArray", _SharedArrays), ("lmdb", _Lmdb), ("joblib", _Joblib)):
        try:
            way().close() if name != "SharedArray" else way()
            found[name] = way
        except ImportError:
            print(f"{name} is not installed")
    return found


def _samples() -> list[Row]:
    values: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, make in _ways().items():
            way = make()
            filled = 1e6 / _time_each(way.put)
            read = way.open()
            copy = way._samples.__getitem__ if name == OURS else lambda index, read=read: np.array(read(index))
            results = {FILLED: filled, READ: _time_each(read), COPIED: _time_each(copy)}
            for work, value in results.items():
                values.setdefault((work, name), []).append(value)
            del read, copy
            way.close()
    units = {FILLED: "1/s", READ: "us", COPIED: "us"}
    return [Row(work, name, 0, statistics.median(found), units[work]) for (work, name), found in values.items()]


def _fill_alone(count: int) -> float:
    """Returns the samples per second that `count` processes keep together, without the time to make them."""
    samples = headrace.cache_samples(_Images(), "512M", name="together", version=1)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count + 1)
    parts = [range(number, SAMPLES, count) for number in range(count)]
    processes = [context.Process(target=_fill_part, args=(samples, part, barrier)) for part in parts]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - start
    assert samples.report()["ready"] == SAMPLES
    samples.drop()
    return SAMPLES / seconds


def _fill_part(samples: Any, part: range, barrier: Any) -> None:
    samples.fill([])
    barrier.wait()
    samples.fill(part)


def _filled_together() -> list[Row]:
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for count in found:
            found[count].append(_fill_alone(count))
    return [
        Row(f"{FILLED} by {count} processes", OURS, 0, statistics.median(times), "1/s")
        for count, times in found.items()
    ]


def _sample_jobs() -> list[Row]:
    """Eight jobs of one seed at once, each with two workers: without and with the cache."""
    rows = []
    for rival in ("without", OURS):
        folder = Path(tempfile.mkdtemp(dir=_root()))
        arguments = [
            sys.executable,
            str(SAMPLES_SCRIPT),
            str(JOB_SAMPLES),
            str(folder),
            "cached" if rival == OURS else "no",
        ]
        jobs = [
            subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            for _ in range(JOBS)
        ]
        for job in jobs:
            assert job.stdout is not None and job.stdout.readline() == "ready\n"
        for job in jobs:
            _tell(job)
        results = [json.loads(job.stdout.readline()) for job in jobs if job.stdout is not None]
        for job in jobs:
            _tell(job)
            job.wait()
        assert len({result["sum"] for result in results}) == 1
        made = (folder / "made").stat().st_size
        rows.append(Row(f"{JOB_WORK}: samples made / samples", rival, 0, made / JOB_SAMPLES, "x"))
        rows.append(Row(f"{JOB_WORK}: two epochs", rival, 0, max(result["seconds"] for result in results), "s"))
        if rival == OURS:
            size = JOB_SAMPLES * int(np.prod(IMAGE))
            rows.append(
                Row(f"{JOB_WORK}: PSS of all mappings / the data", rival, 0, sum(r["pss"] for r in results) / size, "x")
            )
        shutil.rmtree(folder)
    return rows


# ---- copying files ----


def _warm() -> list[Row]:
    folder = _root() / "files"
    folder.mkdir()
    for number in range(32):
        np.save(folder / f"part{number}.npy", np.random.default_rng(number).random(MIB << 12))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    found: dict[str, list[float]] = {OURS: [], "cp": []}
    for _ in range(ROUNDS):
        start = time.perf_counter()
        headrace.cache.add("files", folder)
        found[OURS].append((time.perf_counter() - start) / size)
        gc.collect()
        headrace.cache.rm("files")
        start = time.perf_counter()
        subprocess.run(["cp", "-r", folder, _root() / "copy"], check=True)
        found["cp"].append((time.perf_counter() - start) / size)
        shutil.rmtree(_root() / "copy")
    shutil.rmtree(folder)
    return [
        Row("copy files into memory, per GB", rival, 0, 1e3 * statistics.median(times), "ms")
        for rival, times in found.items()
    ]


CASES = [
    Case("attach", _attach),
    Case("jobs", lambda: _jobs(0)),
    Case("killed-one", lambda: _jobs(1)),
    Case("killed-two", lambda: _jobs(2)),
    Case("workers", _workers),
    Case("warm", _warm),
    Case("samples", _samples),
    Case("together", _filled_together),
    Case("sample-jobs", _sample_jobs),
]


def goals() -> list[Goal]:
    worker = f"spawned worker, {SPAWNED_MIB} MiB of arrays"
    killed = [Key(f"{JOBS} jobs, {count} builders killed: next builder after a death", OURS) for count in (1, 2)]
    return [
        Goal("time to attach an array", Key(ATTACH, OURS), 100, unit="us"),
        Goal(
            "PSS of the mappings of 8 jobs / the data",
            Key(f"{JOBS} jobs: PSS of all mappings / the data", OURS),
            1.02,
            unit="x",
        ),
        Goal("builds of 8 jobs that start at once", Key(f"{JOBS} jobs: builds", OURS), 1, unit="builds"),
        *(Goal("time from a builder's death to the next builder", key, 50, unit="ms") for key in killed),
        Goal("spawned worker with cached arrays: more time", Key(f"{worker}: more ms", OURS), 10, unit="ms"),
        Goal("spawned worker with cached arrays: more memory", Key(f"{worker}: more MB", OURS), 1, unit="MB"),
        Goal(
            "copying files, against cp",
            Key("copy files into memory, per GB", OURS),
            1.5,
            Key("copy files into memory, per GB", "cp"),
        ),
        Goal("time to view a sample", Key(READ, OURS), 1.5, unit="us"),
        Goal("time to copy a sample", Key(COPIED, OURS), 1.2, Key(COPIED, "SharedArray")),
        Goal("time to keep a sample", Key(FILLED, "SharedArray"), 1.0, Key(FILLED, OURS)),
        Goal(
            "time to keep a sample, two processes",
            Key(f"{FILLED} by 1 processes", OURS),
            1 / 1.7,
            Key(f"{FILLED} by 2 processes", OURS),
        ),
        Goal(
            "samples made by 8 jobs of one seed / samples",
            Key(f"{JOB_WORK}: samples made / samples", OURS),
            1.05,
            unit="x",
        ),
        Goal(
            "PSS of the samples of 8 jobs with 2 workers / the samples",
            Key(f"{JOB_WORK}: PSS of all mappings / the data", OURS),
            1.02,
            unit="x",
        ),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hrc-bench-", dir="/dev/shm") as folder:
        os.environ["HEADRACE_CACHE"] = folder
        run_all(__doc__ or "", CASES, lambda case: list(case.run()), show_against(), goals)
