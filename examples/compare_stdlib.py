# SPDX-License-Identifier: Apache-2.0
"""Trains examples/train_stdlib.py through headrace, then through torch's DataLoader, and compares.

Every number is measured here and now. The exit status is 0 if the model learned and nothing was left behind,
1 if not, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

HERE = Path(__file__).resolve().parent
LEARNED_LOSS = 3.0  # nats per byte; guessing costs 5.5, the bytes' frequencies alone about 3.2
PR_SET_CHILD_SUBREAPER = 36  # The value is that of <linux/prctl.h>.

QUIET_AND_LOCAL = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",
    # If fork is not the default, tqdm's lock has a file, and the resource tracker of a killed run would warn about it.
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
}


# ---- What is left behind


def adopt_orphans() -> None:
    """Makes descendants whose parent ends our children, so that it finds all of them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Returns all processes below this one, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2]
                children.setdefault(int(after_name.split()[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, []))
    return found[1:]


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def left_processes(patience: float) -> list[int]:
    """Returns the descendants that have not ended after `patience` seconds."""
    deadline = time.monotonic() + patience
    reap()
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(0.02)
        reap()
    return left


def end_all() -> None:
    """Ends every descendant by SIGTERM, and after a second by SIGKILL."""
    for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0)):
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        left_processes(patience)


def shared_files() -> dict[str, int]:
    """Returns the files in /dev/shm and their inodes."""
    with os.scandir("/dev/shm") as entries:
        return {entry.name: entry.inode() for entry in entries}


def inodes_in_use() -> set[int]:
    """Returns the inodes of the files in /dev/shm that a living process has mapped or open."""
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # The process may have just ended, or be another user's.
            lines = (process / "maps").read_text().splitlines()
            found.update(int(line.split()[4]) for line in lines if "/dev/shm/" in line)
            paths = (Path(os.path.realpath(descriptor)) for descriptor in (process / "fd").iterdir())
            found.update(path.stat().st_ino for path in paths if path.parent == Path("/dev/shm"))
    return found


def left_files(before: dict[str, int], patience: float) -> list[str]:
    """Returns the new files in /dev/shm after `patience` seconds. Files in use are of other programs."""
    deadline = time.monotonic() + patience
    while True:
        new = {name: inode for name, inode in shared_files().items() if name not in before}
        in_use = inodes_in_use() if new else set()
        left = sorted(name for name, inode in new.items() if inode not in in_use)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


# ---- The runs


class Left(NamedTuple):
    """The processes and files that a run left behind."""

    processes: list[int]
    files: list[str]


def run(what: str, *arguments: str) -> Left:
    """Runs Python in a session of its own, so that only this process gets a Ctrl-C of the terminal. It ends all."""
    files = shared_files()
    command = [sys.executable, *arguments]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(command, env={**os.environ, **QUIET_AND_LOCAL}, **options) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.kill()  # Of `headrace run`, too: it would tell how each rank ended. Its guardian ends them.
            raise
    if status:
        sys.exit(f"compare_stdlib: {what} ended with status {status}; its output is above")
    processes = left_processes(3.0)
    end_all()
    return Left(processes, left_files(files, 3.0))


def train(loader: str, args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Left]:
    """Trains with two ranks through `loader`, and returns the report of the script and what it left behind."""
    seconds, workers = args.seconds, args.workers
    print(f"\nTraining through {loader}: 2 ranks x {workers} workers, {seconds:.0f} s", flush=True)
    report = folder / f"{loader}.json"
    launch = ["-m", "headrace", "run", "--nproc=2"]
    script = [str(HERE / "train_stdlib.py"), f"--loader={loader}", f"--workers={workers}"]
    if args.freeze and loader == "headrace":
        script.append("--freeze")
    left = run(f"the training through {loader}", *launch, *script, f"--seconds={seconds}", f"--report={report}")
    return json.loads(report.read_text()), left


# ---- The fixed cost of a batch


class TinySamples:
    """Samples of two tiny tensors that exist already, so that a batch costs only its transport to the trainer."""

    def __init__(self, count: int) -> None:
        import torch

        self.count = count
        self.sample = (torch.zeros(4), torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sample


def microseconds_per_batch(batches: Iterable[object], warmup: int) -> float:
    iterator = iter(batches)
    for _ in range(warmup):
        next(iterator)
    started = time.perf_counter()
    count = sum(1 for _ in iterator)
    return (time.perf_counter() - started) / count * 1e6


def fixed_costs(rounds: int = 7, batches: int = 200, warmup: int = 20) -> dict[str, float]:
    """Returns the median microseconds per batch of 2 samples, by loader. The loaders take turns."""
    import headrace.torch
    import torch.utils.data

    ours, torchs = headrace.torch.DataLoader, torch.utils.data.DataLoader
    if ours is torchs:
        raise ImportError("headrace's engine could not start, headrace.torch.DataLoader is torch's own")
    torch.set_num_threads(1)
    samples: Any = TinySamples(2 * (batches + warmup))
    loaders: dict[str, Iterable[object]] = {
        "headrace": ours(samples, batch_size=2, num_workers=1, persistent_workers=True),
        "torch": torchs(samples, batch_size=2, num_workers=1, persistent_workers=True),
        "in-process": torchs(samples, batch_size=2),
    }
    costs: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            costs[name].append(microseconds_per_batch(loader, warmup))
    return {name: statistics.median(cost) for name, cost in costs.items()}


def write_fixed_costs(report: Path) -> None:
    try:
        report.write_text(json.dumps(fixed_costs()))
    except ImportError as error:
        sys.exit(f"compare_stdlib: {error}; is headrace installed for {sys.executable}?")


# ---- The memory of a worker that reads all the data


class Reads:
    """A dataset that reads each record of the corpus; a sample is the length of the record."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> int:
        record = self.records[index]
        return len(record["path"]) + len(record["text"]) + int(record["length"])


def worker_memory(loader: Any) -> int:
    """Returns the private bytes of the one worker after it has read everything in random order."""
    from train_stdlib import private_bytes

    before = set(descendants())
    iterator = iter(loader)
    for _ in iterator:
        pass
    (worker,) = set(descendants()) - before  # The worker stays for the next epoch.
    return private_bytes(worker)


def worker_memories() -> dict[str, int]:
    """Returns the memory of a worker with frozen records, and with ordinary Python objects."""
    import headrace.torch
    import torch.utils.data
    from train_stdlib import SourceBlocks

    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": 1, "persistent_workers": True}
    options["multiprocessing_context"] = "fork"
    records = SourceBlocks(Path(sysconfig.get_paths()["stdlib"]), 192).records
    without = worker_memory(torch.utils.data.DataLoader(Reads(records), **options))  # type: ignore[arg-type]
    frozen = worker_memory(headrace.torch.DataLoader(Reads(records), freeze=True, **options))  # type: ignore[arg-type]
    return {"headrace": frozen, "torch": without}


# ---- The table


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


def rows(measured: dict[str, Any], left: Left, fixed_cost: float) -> Iterator[tuple[str, str]]:
    """The table's lines for one loader."""
    descriptors, workers = measured["descriptors"], measured["worker_private_bytes"]
    yield "loss, first to last", f"{measured['first_loss']:.2f} to {measured['last_loss']:.2f}"
    yield "samples/s", f"{measured['samples_per_second']:.1f}"
    yield "the trainer waited for data", f"{measured['wait_seconds']:.2f} s, {measured['wait_share']:.1%}"
    yield "  for the first batch", milliseconds(measured["first_batch_seconds"])
    yield "  for a later epoch's first batch", milliseconds(measured["later_first_batch_seconds"])
    yield "fixed cost per batch", f"{fixed_cost:.0f} us"
    yield "private memory per worker", f"{statistics.median(workers) / 2**20:.1f} MiB" if workers else "-"
    yield "open descriptors, loader at work", f"{descriptors['live']}"
    yield "  before it, after it", f"{descriptors['before']}, {descriptors['after']}"
    yield "files left in /dev/shm", f"{len(left.files)}"
    yield "processes left", f"{len(left.processes)}"


def print_table(
    runs: dict[str, tuple[dict[str, Any], Left]], costs: dict[str, float], memories: dict[str, int] | None
) -> None:
    print(f"\n{'':34}{'headrace':>20}{'torch':>20}")
    columns = [rows(measured, left, costs[name]) for name, (measured, left) in runs.items()]
    for (label, ours), (_, torchs) in zip(*columns, strict=True):
        print(f"{label:34}{ours:>20}{torchs:>20}")
        if memories and label.startswith("private memory"):
            ours, torchs = (f"{memories[name] / 2**20:.1f} MiB" for name in ("headrace", "torch"))
            print(f"{'  one that has read every record':34}{ours:>20}{torchs:>20}")
    print("\nThe trainer is rank 0 of 2; both runs train equally long, one after the other.")
    print(f"Fixed cost: 1 worker, batches of 2 tiny samples; {costs['in-process']:.0f} us without a worker.")


def complaints(what: str, left: Left, last_loss: float = 0.0) -> Iterator[str]:
    if not last_loss < LEARNED_LOSS:
        yield f"{what}: the model did not learn, its loss is {last_loss:.2f}"
    if left.files:
        yield f"{what}: left in /dev/shm: {', '.join(left.files)}"
    if left.processes:
        yield f"{what}: processes left: {', '.join(map(str, left.processes))}"


# ---- The comparison


def compare(args: argparse.Namespace, folder: Path) -> int:
    print("Measuring the fixed cost of a batch ...", flush=True)
    left = run("the measurement", str(HERE / "compare_stdlib.py"), f"--fixed-costs={folder / 'costs.json'}")
    costs = json.loads((folder / "costs.json").read_text())
    runs = {name: train(name, args, folder) for name in ("headrace", "torch")}
    memories = None
    failures = list(complaints("fixed cost", left))
    if args.freeze:
        print("\nReading every record of the corpus, frozen and not ...", flush=True)
        left = run("the measurement of memory", str(HERE / "compare_stdlib.py"), f"--memory={folder / 'memory.json'}")
        memories = json.loads((folder / "memory.json").read_text())
        failures += complaints("memory", left)
    print_table(runs, costs, memories)
    if memories:
        print("headrace's workers read the corpus (path, text and length of each record) from frozen data, which is")
        print(
            "made before the first batch. torch's worker copies the pages of the Python objects that it reads, because"
        )
        print("reading an object changes its reference count.")
    for name, (measured, left) in runs.items():
        failures += complaints(name, left, measured["last_loss"])
    for failure in failures:
        print(f"compare_stdlib: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Train through headrace and through torch's DataLoader, and compare.")
    parser.add_argument("--seconds", type=float, default=26, help="of training through each of the two loaders")
    parser.add_argument("--workers", type=int, default=2, help="data loading processes per rank")
    parser.add_argument("--freeze", action="store_true", help="headrace shares the records between its workers")
    parser.add_argument("--memory", type=Path, metavar="FILE", help="measure only a worker's memory, into a JSON file")
    parser.add_argument("--fixed-costs", type=Path, metavar="FILE", help="measure only this, into a JSON file")
    args = parser.parse_args()
    if args.fixed_costs:
        write_fixed_costs(args.fixed_costs)
        return 0
    if args.memory:
        args.memory.write_text(json.dumps(worker_memories()))
        return 0
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-compare-") as folder:
            return compare(args, Path(folder))
    except KeyboardInterrupt:
        print("\ncompare_stdlib: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C must not leave anything running.
        end_all()


if __name__ == "__main__":
    sys.exit(main())
