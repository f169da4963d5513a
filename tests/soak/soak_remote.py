# SPDX-License-Identifier: Apache-2.0
"""Random kills of fetchers and of readers of remote objects: every byte that is read is compared.
`soak_remote.py [SECONDS [SEED]]`. What is drawn follows from the seed; when it happens does not.

Readers are processes that fork. Meanwhile `headrace cache rm` and `gc` remove what is kept, and are killed, too, and
`verify` compares it with its checksums. One in four runs has a quota of half of the data, so that bytes are sent, too.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python/lib"))

import numpy as np  # noqa: E402
from headrace import sources  # noqa: E402
from headrace._base import program  # noqa: E402
from remote_runs import end_fetchers, kill_fetchers  # noqa: E402
from remote_server import Faults, RemoteServer  # noqa: E402

OBJECT_BYTES, OBJECTS, READERS, ROUND_S = 3_000_000, 4, 4, 4.0
READ_BYTES = 110_000
RIGHT, WRONG = 0, 1


def read_until(data: list[bytes], dataset: Any, end: float, seed: int, counted: int) -> int:
    """Reads at random and compares. Writes a byte for each read. Forks from time to time, and goes on in the child."""
    drawn = random.Random(seed)
    while time.monotonic() < end:
        number = drawn.randrange(len(dataset))
        file, window = divmod(number, len(dataset) // OBJECTS)
        found = dataset[number].astype(np.uint16).tobytes()
        if found != data[file][window * READ_BYTES : window * READ_BYTES + READ_BYTES]:
            return WRONG
        os.write(counted, b".")
        if drawn.random() < 0.02:
            pid = os.fork()
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return RIGHT


def clean(urls: list[str], drawn: random.Random, counts: Counter[str]) -> None:
    """Removes or verifies what is kept, by a command that is killed as often as not."""
    words = drawn.choice([["rm", "--force", *urls], ["gc", "--older", "0s"], ["verify", *urls]])
    kill_s = drawn.random() * 0.03 if drawn.random() < 0.5 else None
    with subprocess.Popen(
        [str(program.find()), "cache", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        if kill_s is not None:
            time.sleep(kill_s)
            process.kill()
        errors = process.communicate()[1]
    counts[words[0]] += 1
    counts["damaged"] += "differ from their checksums" in errors


def run_round(data: list[bytes], seconds: float, seed: int, has_quota: bool, counts: Counter[str]) -> None:
    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, RemoteServer({}) as server:
        folder = pathlib.Path(name)
        os.environ.update(HEADRACE_REMOTE=name, HEADRACE_REMOTE_IDLE_MS="300")
        os.environ.pop("HEADRACE_REMOTE_QUOTA", None)
        if has_quota:
            os.environ["HEADRACE_REMOTE_QUOTA"] = str(OBJECT_BYTES * OBJECTS // 2)
        server.files = {f"{number}.bin": one for number, one in enumerate(data)}
        server.latency_s = 0.01
        server.faults = Faults(seed=seed, kinds=("503", "cut", "reset", "fewer"), share=0.02)
        urls = [server.url(f"{number}.bin") for number in range(OBJECTS)]
        dataset = sources.Tokens(urls, length=READ_BYTES // 2)
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        end = time.monotonic() + seconds
        pids: dict[int, bool] = {}
        while time.monotonic() < end:
            while len(pids) < READERS:
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, 0)
                    os._exit(read_until(data, dataset, end, drawn.randrange(2**30) + os.getpid(), write_fd))
                pids[pid] = False
            time.sleep(drawn.random() * 0.2)
            if drawn.random() < 0.3:
                clean(urls, drawn, counts)
            elif drawn.random() < 0.5:
                counts["fetchers"] += len(kill_fetchers(folder))
            elif drawn.random() < 0.3:
                pid = drawn.choice(list(pids))
                os.killpg(pid, signal.SIGKILL)
                pids[pid] = True
                counts["readers"] += 1
            for pid in list(pids):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found and not pids.pop(pid) and os.waitstatus_to_exitcode(status) != RIGHT:
                    counts["wrong or failed"] += 1
            counts["reads"] += len(os.read(read_fd, 1 << 16)) if _has_bytes(read_fd) else 0
        for pid, is_killed in pids.items():
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not is_killed and code != RIGHT:
                counts["wrong or failed"] += 1
        os.close(read_fd)
        os.close(write_fd)
        end_fetchers(folder)


def _has_bytes(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], 0)[0])


def main(seconds: float = 60.0, seed: int = 1) -> int:
    drawn = np.random.default_rng(seed)
    data = [drawn.integers(0, 2**16, OBJECT_BYTES // 2).astype(np.uint16).tobytes() for _ in range(OBJECTS)]
    data = [one[: len(one) // READ_BYTES * READ_BYTES] for one in data]
    counts: Counter[str] = Counter()
    begin, number = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        run_round(data, min(ROUND_S, seconds), seed + number, number % 4 == 3, counts)
        number += 1
    print(
        f"soak_remote: seed {seed}: {counts['reads']:,} reads of {READ_BYTES:,} bytes were compared, while "
        f"{counts['fetchers']:,} fetchers and {counts['readers']:,} readers were killed, and what is kept was removed "
        f"by {counts['rm'] + counts['gc']:,} commands and verified by {counts['verify']:,}; "
        f"{counts['wrong or failed']} readers got other bytes or an error, {counts['damaged']} checksums were wrong"
    )
    return 1 if counts["wrong or failed"] or counts["damaged"] or not counts["reads"] else 0


if __name__ == "__main__":
    sys.exit(main(*(float(one) if i == 0 else int(one) for i, one in enumerate(sys.argv[1:3]))))
