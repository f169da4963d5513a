# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of loaders that can be seen: the overhead of counting, and `headrace top` itself.

    python bench/seeing.py overhead --before FOLDER --after FOLDER [--pairs 30]
    python bench/seeing.py top [--loaders 64] [--workers 8] [--processes 700] [--descriptors 40]

overhead: CPU of trainer and worker for a batch. FOLDER is where a release build is installed (build/site). Both take
turns in processes of their own, so that a busy machine slows both. top: by sockets, and by a walk over processes of
another network namespace (as root).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

CHILD = """
import sys, time
import numpy as np
from headrace import Loader

class Busy:
    def __init__(self, turns, count):
        self.turns, self.count = turns, count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        sum(range(self.turns))
        return index

def cpu_s(loader):
    workers = loader.report()["per_worker"] if loader.num_workers else []
    ns = [int(open(f"/proc/{one['pid']}/schedstat").read().split()[0]) for one in workers]
    return time.process_time() + sum(ns) / 1e9

# Of turns that take about so long.
CASES = {"smallest": (0, 20000, 1), "100 us": (7000, 1000, 1), "10 ms": (700000, 20, 1), "in process": (0, 20000, 0)}
loaders = {}
for name, (turns, count, workers) in CASES.items():
    data = Busy(turns, count) if turns else range(count)
    loaders[name] = Loader(data, batch_size=1, num_workers=workers, prefetch_factor=8, persistent_workers=workers > 0)
    for _ in loaders[name]:
        pass
print("ready", flush=True)
for line in sys.stdin:
    loader, count = loaders[line.strip()], 0
    began = cpu_s(loader)
    for _ in loader:
        count += 1
    print((cpu_s(loader) - began) / count, flush=True)
"""
CASES = ("smallest", "100 us", "10 ms", "in process")
CLONE_NEWNET = 0x40000000
PROGRAM = Path(sysconfig.get_path("scripts")) / "headrace"


class Side:
    """A process that measures with the package of one folder."""

    def __init__(self, folder: str) -> None:
        env = {**os.environ, "PYTHONPATH": folder}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", CHILD], env=env, stdin=pipe, stdout=pipe, text=True)
        self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def measure(self, case: str) -> float:
        assert self.process.stdin is not None
        print(case, file=self.process.stdin, flush=True)
        return float(self._read())


def measure_overhead(before: str, after: str, pairs: int) -> None:
    sides = [Side(before), Side(after)]
    print(f"{'case':12} {'before':>10} {'after':>10} {'difference':>11}   (medians of {pairs} pairs)")
    for case in CASES:
        ratios, times = [], ([], [])  # type: ignore[var-annotated]
        for turn in range(pairs):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            found = {side: sides[side].measure(case) for side in order}
            ratios.append(found[1] / found[0])
            for side in order:
                times[side].append(found[side])
        one, two = (statistics.median(side) * 1e6 for side in times)
        print(f"{case:12} {one:8.2f} us {two:8.2f} us {100 * (statistics.median(ratios) - 1):+10.2f} %", flush=True)


def start_loaders(count: int, workers: int, moves: bool) -> subprocess.Popen[str]:
    """Starts a process that has so many loaders. moves: in another network namespace."""
    code = (
        "import ctypes, sys\n"
        + (f"assert ctypes.CDLL(None).unshare({CLONE_NEWNET}) == 0\n" if moves else "")
        + "from headrace import _core\nkept = []\n"
        + f"for i in range({count}):\n"
        + "    show = _core.Show(f'train.py:{i}'.encode(), -1, 1)\n"
        + f"    loader = _core.Loader({workers}, 2, True, 1 << 24)\n"
        + "    loader.show(show); show.begin(0, 0); kept.append((show, loader))\n"
        + "print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def start_others(count: int, descriptors: int) -> list[int]:
    """Forks processes with open files, of another network namespace if that is possible, so that a walk visits them."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, 9)  # die with this process
            for _ in range(descriptors - 3):
                os.open("/dev/null", os.O_RDONLY)
            time.sleep(1000)
            os._exit(0)
        pids.append(pid)
    return pids


def measure_top(name: str) -> None:
    """Measures one picture: with --prometheus, which looks once."""
    walls, cpus = [], []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        text = subprocess.run([PROGRAM, "top", "--prometheus"], capture_output=True, text=True, check=True).stdout
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        found = text.count("headrace_loader_info{")
    wall, cpu = statistics.median(walls) * 1e3, statistics.median(cpus) * 1e3
    print(f"{name:12} {found:3} loaders: {wall:7.1f} ms, {cpu:7.1f} ms of CPU a look")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "top"])
    parser.add_argument("--before")
    parser.add_argument("--after")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--loaders", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=700)
    parser.add_argument("--descriptors", type=int, default=40)
    options = parser.parse_args()
    if options.what == "overhead":
        measure_overhead(options.before, options.after, options.pairs)
        return
    job = start_loaders(options.loaders, options.workers, moves=False)
    measure_top("by socket")
    job.kill()
    job.wait()
    if os.geteuid() == 0:
        job = start_loaders(options.loaders, options.workers, moves=True)
        # The others fork from this process while it is in another namespace, so that the walk visits them, too.
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None)
        libc.unshare(CLONE_NEWNET)
        others = start_others(options.processes, options.descriptors)
        libc.setns(own, CLONE_NEWNET)
        measure_top("by walk")
        for pid in others:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        job.kill()
        job.wait()


if __name__ == "__main__":
    main()
