# SPDX-License-Identifier: Apache-2.0
"""Measures headrace.cache: attaching, eight jobs that need the same data, builders that are killed, and workers whose
dataset holds cached arrays. Rivals: SharedArray, lmdb, numpy.load(mmap_mode="r") of a file in /dev/shm."""

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
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, status_bytes

MIB = 64 if QUICK else 1024
JOBS = 8
ATTACHES = 200
OURS, WITHOUT = "headrace", "without arrays"
ATTACH = "attach an array of 16 MiB"
SPAWNED_MIB = 256 if QUICK else 4096
SCRIPT = Path(__file__).resolve().parent / "cache_script.py"


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
    ]


def show(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.work:60} {row.rival:24} {row.value:12.3f} {row.unit}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hrc-bench-", dir="/dev/shm") as folder:
        os.environ["HEADRACE_CACHE"] = folder
        run_all(__doc__ or "", CASES, lambda case: list(case.run()), show, goals)
