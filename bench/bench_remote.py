# SPDX-License-Identifier: Apache-2.0
"""Measures remote objects: a server of this machine that answers after 20 ms, tar files with samples of 110 KB, in
random order. The rival is one connection that reads sample by sample. The server is Python too, and takes a part of the
cores, so the first epoch shows what it can send. Where only speed counts and no latency, nginx is the server if it is
installed (Debian's package), and the rows say which one it was.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_shards import LARGE, write
from headrace import _core, sources
from headrace.torch import DataLoader
from measure import QUICK, Case, Goal, Key, Row, in_turn, run_all, show_against

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

OURS, ONE, LOCAL = "headrace", "one connection", "local files"
LEAST = "3 round trips, its bytes, the start of a fetcher"
SAMPLES, SHARDS = (512, 2) if QUICK else (2048, 4)
LATENCY_S = 0.02
FIRST = "first epoch, 2 workers, batches of 64, a sample"
SECOND = "second epoch, a sample"
KEPT = "a kept sample, CPU time"
TIMES = "bytes that the server sent, of the size of the files"
JOBS = "8 processes, one epoch each at the same time"
HALF = "quota of half of the files, second epoch"
TAKEN_OVER = "fetcher killed, until bytes come again"
FIRST_BATCH = "first batch of 64, index kept, nothing else"
CPU = "fetcher, requests of 1 MiB, with checksums, CPU time of a GB"
SPEED = "fetcher, requests of 1 MiB, time of a GB"
ANNOUNCED = "announcing, CPU time of the trainer, a sample"


@contextmanager
def served(quota: str = "") -> Iterator[tuple[Any, list[str], list[str]]]:
    """Gives the server, the URLs, and the paths of the same files."""
    from remote_runs import end_fetchers
    from remote_server import RemoteServer

    content = random.Random(0).randbytes(LARGE)
    with tempfile.TemporaryDirectory() as folder, RemoteServer({}) as server:
        paths = []
        for shard in range(SHARDS):
            paths.append(write(f"{folder}/{shard}.tar", SAMPLES // SHARDS, lambda number: content))
            server.files[f"{shard}.tar"] = Path(paths[-1]).read_bytes()
            sources._index.save_index(_core.INDEX_TAR, paths[-1])  # type: ignore[attr-defined]
            server.files[f"{shard}.tar.hri"] = Path(f"{paths[-1]}.hri").read_bytes()
        os.environ.update(HEADRACE_REMOTE=f"{folder}/kept", HEADRACE_REMOTE_IDLE_MS="500", HEADRACE_REMOTE_QUOTA=quota)
        _core.remote_close()
        yield server, [server.url(f"{shard}.tar") for shard in range(SHARDS)], paths
        _core.remote_close()
        end_fetchers(Path(f"{folder}/kept"))


def open_tar(paths: list[str]) -> Any:
    return sources.Tar(paths, fields=("jpg", "cls"), decode=None, keep="job")


def epoch_us(dataset: Any) -> float:
    torch.manual_seed(0)
    begin = time.perf_counter()
    count = sum(len(batch) for batch in DataLoader(dataset, 64, shuffle=True, num_workers=2, collate_fn=list))
    return 1e6 * (time.perf_counter() - begin) / count


def one_by_one_us(server: Any, dataset: Any, count: int = 64) -> float:
    """Reads the ranges of samples on one connection that stays open."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    begin = time.perf_counter()
    for index in random.Random(1).sample(range(len(dataset)), count):
        number, members = dataset._tar.find(index)
        first, last = members[0][1], members[-1][1] + members[-1][3]
        connection.request("GET", f"/{number}.tar", headers={"Range": f"bytes={first}-{last}"})
        connection.getresponse().read()
    connection.close()
    return 1e6 * (time.perf_counter() - begin) / count


def of_epochs() -> list[Row]:
    with served() as (server, urls, paths):
        local = open_tar(paths)
        remote = open_tar(urls)
        server.latency_s = LATENCY_S
        size = sum(map(len, server.files.values()))
        before = server.sent_bytes
        rows = [Row(FIRST, ONE, 0, one_by_one_us(server, local), "us"), Row(FIRST, OURS, 0, epoch_us(remote), "us")]
        sent = (server.sent_bytes - before - 64 * (LARGE + 2048)) / size
        order = random.Random(2).sample(range(len(local)), len(local))
        rows += in_turn(SECOND, {LOCAL: partial(epoch_us, local), OURS: partial(epoch_us, remote)}, "us")
        rows += in_turn(KEPT, {LOCAL: partial(cpu_us, local, order), OURS: partial(cpu_us, remote, order)}, "us")
        rows.append(Row(TIMES, "one epoch", 0, sent, ""))
        rows.append(Row(TAKEN_OVER, OURS, 0, taken_over_ms(server), "ms"))
        return rows


def cpu_us(dataset: Any, order: list[int]) -> float:
    begin = time.thread_time()
    for index in order:
        dataset[index]
    return 1e6 * (time.thread_time() - begin) / len(order)


def taken_over_ms(server: Any) -> float:
    """Returns the time of a read after the fetcher was killed, of bytes that are not kept."""
    from remote_runs import kill_fetchers

    server.files["big.bin"] = bytes(1 << 27)
    dataset = sources.Tokens(server.url("big.bin"), length=1000, dtype="uint16")
    found = []
    for turn in range(3):
        dataset[1000 + 2000 * turn]
        kill_fetchers(Path(os.environ["HEADRACE_REMOTE"]))
        begin = time.perf_counter()
        dataset[30_000 + 2000 * turn]
        found.append(1e3 * (time.perf_counter() - begin))
    return sorted(found)[1]


def read_all(dataset: Any, seed: int) -> None:
    for index in random.Random(seed).sample(range(len(dataset)), len(dataset)):
        dataset[index]


def in_processes(works: list[Callable[[], None]]) -> None:
    pids = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(works)


def of_jobs() -> list[Row]:
    with served() as (server, urls, _):
        size = sum(map(len, server.files.values()))
        remote = open_tar(urls)
        server.latency_s = LATENCY_S
        in_processes([partial(read_all, remote, seed) for seed in range(8)])
        return [Row(TIMES, JOBS, 0, server.sent_bytes / size, "")]


def of_quota() -> list[Row]:
    with served(str(SAMPLES * LARGE // 2)) as (server, urls, _):
        size = sum(map(len, server.files.values()))
        remote = open_tar(urls)
        server.latency_s = LATENCY_S
        epoch_us(remote)
        before = server.sent_bytes
        passed = epoch_us(remote)
        sent = (server.sent_bytes - before) / size
        return [Row(TIMES, HALF, 0, sent, ""), Row(SECOND, "quota of half of the files", 0, passed, "us")]


# ---- the first batch ----


def of_first_batch() -> list[Row]:
    """The time from the call of sources.Tar on, with the index in the cache, and an empty folder without a fetcher."""
    with served() as (server, urls, paths):
        os.environ["HEADRACE_CACHE"] = str(Path(paths[0]).parent / "cache")
        open_cached(urls)
        server.latency_s = LATENCY_S
        bytes_us = one_by_one_us(server, open_tar(paths)) - 1e6 * LATENCY_S
        found = [first_batch_ms(urls, Path(f"{paths[0]}.{turn}")) for turn in range(3)]
        start_ms = sorted(one[0] for one in found)[1]
        least = 3e3 * LATENCY_S + 64 * bytes_us / 1e3 + start_ms
        del os.environ["HEADRACE_CACHE"]
        return [
            Row(FIRST_BATCH, LEAST, 0, least, "ms"),
            Row(FIRST_BATCH, OURS, 0, sorted(f[1] for f in found)[1], "ms"),
        ]


def open_cached(urls: list[str]) -> Any:
    return sources.Tar(urls, fields=("jpg", "cls"), decode=None, keep="boot")


def first_batch_ms(urls: list[str], folder: Path) -> tuple[float, float]:
    """Returns how long the start of a fetcher takes, and the first batch with such a start."""
    from remote_runs import end_fetchers

    os.environ["HEADRACE_REMOTE"] = str(folder)
    found = []
    for is_whole in (False, True):
        _core.remote_close()
        begin = time.perf_counter()
        if is_whole:
            torch.manual_seed(0)
            iterator = iter(DataLoader(open_cached(urls), 64, shuffle=True, num_workers=2, collate_fn=list))
            next(iterator)
        else:
            _core.remote_call(b"status")
        found.append(1e3 * (time.perf_counter() - begin))
        iterator = None
        _core.remote_close()
        end_fetchers(folder)
        shutil.rmtree(folder)
    return found[0], found[1]


# ---- the CPU time of the fetcher, and of announcing ----


@contextmanager
def nginx_over(folder: str) -> Iterator[tuple[str, str]]:
    """Serves the files of a folder by nginx, or without it by the tests' server. Gives the server's name and URL."""
    from remote_server import RemoteServer

    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        with RemoteServer({path.name: path.read_bytes() for path in Path(folder).glob("*.bin")}) as server:
            yield "own server, because nginx is not installed", server.url("")
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root root; " if os.geteuid() == 0 else ""  # else its workers could not read the folder
    text = f"{user}daemon off; worker_processes 1; pid {folder}/pid; events {{ worker_connections 512; }} "
    text += f"http {{ {places} access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}"
    Path(f"{folder}/nginx.conf").write_text(text)
    command = [program, "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/errors"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            wait_for(port, process)
            yield "nginx", f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise RuntimeError("nginx does not answer")


def of_fetcher() -> list[Row]:
    from remote_runs import end_fetchers, fetchers_of

    size = 1 << 28 if QUICK else 1 << 30
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{folder}/big.bin").write_bytes(random.Random(0).randbytes(1 << 20) * (size >> 20))
        with nginx_over(folder) as (name, url):
            os.environ.update(HEADRACE_REMOTE=f"{folder}/kept", HEADRACE_REMOTE_QUOTA="")
            _core.remote_close()
            dataset = sources.Tokens(f"{url}big.bin", length=1 << 19)
            (pid,) = fetchers_of(Path(f"{folder}/kept"))
            before, begin = cpu_of(pid), time.perf_counter()
            dataset._tokens.ask(list(range(len(dataset))))
            for index in range(len(dataset)):
                dataset[index]
            passed, cpu = time.perf_counter() - begin, cpu_of(pid) - before
            _core.remote_close()
            end_fetchers(Path(f"{folder}/kept"))
        return [Row(CPU, name, 0, cpu * 1e9 / size, "s"), Row(SPEED, name, 0, passed * 1e9 / size, "s")]


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_announcing() -> list[Row]:
    """Does for each batch what an iterator does, without the loop. The server does not answer in this time, so that all
    of it is sent."""
    from headrace._loader.trainer.announcing import Announcing

    with served() as (server, urls, _):
        remote = open_tar(urls)
        server.latency_s = 60
        order = random.Random(3).sample(range(len(remote)), len(remote))
        found = []
        for _ in range(3):
            tasks = _core.Tasks(order, 64)
            announcing = Announcing(remote._asked())
            passed = 0.0
            for _ in range(len(order) // 64):
                tasks.draw()
                begin = time.thread_time()
                announcing.step(tasks)
                passed += time.thread_time() - begin
                tasks.done()
            found.append(1e6 * passed / len(order))
            announcing.end()
        return [Row(ANNOUNCED, OURS, 0, sorted(found)[1], "us")]


def goals() -> list[Goal]:
    return [
        Goal(
            "first batch, of 3 round trips, its bytes and the start of a fetcher",
            Key(FIRST_BATCH, OURS),
            1,
            Key(FIRST_BATCH, LEAST),
        ),
        Goal("fetcher: CPU time of a GB", Key(CPU, "nginx"), 0.6, unit="s"),
        Goal("announcing: CPU time of a sample", Key(ANNOUNCED, OURS), 2, unit="us"),
        Goal("first epoch, of one connection", Key(FIRST, OURS), 1 / 40, Key(FIRST, ONE)),
        Goal("second epoch, of local files", Key(SECOND, OURS), 1 / 0.95, Key(SECOND, LOCAL)),
        Goal("a kept sample, of a local file", Key(KEPT, OURS), 1.05, Key(KEPT, LOCAL)),
        Goal("bytes, one epoch", Key(TIMES, "one epoch"), 1.02),
        Goal("bytes, 8 processes", Key(TIMES, JOBS), 1.02),
        Goal("bytes, quota of half", Key(TIMES, HALF), 0.55),
        Goal("another fetcher takes over", Key(TAKEN_OVER, OURS), 1000, unit="ms"),
    ]


CASES = [
    Case("epochs", of_epochs),
    Case("jobs", of_jobs),
    Case("quota", of_quota),
    Case("first_batch", of_first_batch),
    Case("fetcher", of_fetcher),
    Case("announcing", of_announcing),
]


def main() -> None:
    torch.set_num_threads(1)
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against(ONE, LOCAL, LEAST), goals)


if __name__ == "__main__":
    main()
