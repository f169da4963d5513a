# SPDX-License-Identifier: Apache-2.0
"""The ranks that bench_launch.py starts. `launch_script.py WHAT FOLDER` says in files of the folder how far it is.

Times are of CLOCK_MONOTONIC, which all processes share.
"""

import atexit
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])
APART_S, EXIT_S = 0.03, 0.1
LINES, LINE_EVERY_S = 50, 0.02
CHILDREN = 19  # of each of two ranks: 40 processes with the ranks
WORKERS, STEPS_AFTER_TERM = 4, 12  # the workers have made 8 batches ahead


def announce(folder: Path, name: str, text: object = "") -> None:
    """Creates a file with this text at once, so that no process reads half of it."""
    draft = folder / f".{name}"
    draft.write_text(str(text))
    draft.rename(folder / name)


def await_file(path: Path) -> str:
    while not path.exists():
        time.sleep(0.001)
    return path.read_text()


def be_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def sleep_forever() -> None:
    while True:
        time.sleep(1000)


def fail_next_to_a_deaf_peer(folder: Path) -> None:
    if RANK == 0:
        be_deaf()
        announce(folder, "deaf")
        sleep_forever()
    await_file(folder / "deaf")
    announce(folder, "failed", time.monotonic())
    sys.exit(7)


def fail_one_after_the_other(folder: Path) -> None:
    """Rank 1 raises an exception, and takes a moment to exit, as one that frees a GPU. Rank 0 raises another one 30 ms
    later, as one whose peer is lost, and exits at once."""
    if RANK == 1:
        await_file(folder / "ready")
        atexit.register(time.sleep, EXIT_S)
        announce(folder, "failed", time.monotonic())
        raise ValueError("the first failure")
    announce(folder, "ready")
    time.sleep(max(0.0, float(await_file(folder / "failed")) + APART_S - time.monotonic()))
    raise RuntimeError("a later failure")


def start_deaf_children(folder: Path) -> None:
    be_deaf()
    pids = [os.getpid()]
    for _ in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            sleep_forever()
        pids.append(pid)
    announce(folder, f"pids.{RANK}", " ".join(map(str, pids)))
    sleep_forever()


def write_times(folder: Path) -> None:
    """Writes a time per line; the other rank writes nothing."""
    for _ in range(LINES if RANK == 0 else 0):
        os.write(1, f"{time.monotonic()}\n".encode())
        time.sleep(LINE_EVERY_S)


def write_lines_in_pieces(folder: Path, count: str) -> None:
    """Both ranks write at the same time, as `python -u` writes print("step", number, "of rank", rank)."""
    announce(folder, f"ready.{RANK}")
    await_file(folder / f"ready.{1 - RANK}")
    for number in range(int(count)):
        for piece in ("step ", str(number), " of rank ", str(RANK), "\n"):
            os.write(1, piece.encode())


def save_at_sigterm(folder: Path, library: str) -> None:
    """Trains, and writes a checkpoint some steps after SIGTERM, with batches that the workers make after it."""
    import torch.utils.data

    class Samples(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> int:
            time.sleep(0.002)
            return index

    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    kind: Any = importlib.import_module({"torch": "torch.utils.data", "headrace": "headrace.torch"}[library]).DataLoader
    left = STEPS_AFTER_TERM
    for step, _ in enumerate(kind(Samples(), 4, num_workers=WORKERS, multiprocessing_context="fork")):
        if step == 3:
            announce(folder, f"trains.{RANK}")
        left -= bool(asked)
        if left == 0:
            break
    announce(folder, f"checkpoint.{RANK}")


WHATS: dict[str, Any] = {
    "deaf": fail_next_to_a_deaf_peer,
    "apart": fail_one_after_the_other,
    "children": start_deaf_children,
    "times": write_times,
    "pieces": write_lines_in_pieces,
    "checkpoint": save_at_sigterm,
}

if __name__ == "__main__":
    WHATS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
