# SPDX-License-Identifier: Apache-2.0
"""Compares headrace with what else reads remote data: the same bytes from the same server of this machine, after 20 ms.

Each library reads two epochs of 110 KB samples with two workers, in turn, in a process of its own: tar files, or an
object for each sample. Then the server answers wrongly in the ways of FAULTS, and it is counted which samples come with
wrong bytes, or do not come, without an error. A library that is not installed is left out, with a line. The server is
Python too, and takes a part of the cores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import ROUNDS, Case, Goal, Key, Row, in_words, run_all

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

HERE = Path(__file__).resolve().parent
SIZE, SAMPLES, SHARDS = 110_000, 1024, 4
FAULTY_SAMPLES = 128  # of a tar file and of objects, with which the faults are tried
LATENCY_S = 0.02
EPOCH_S = 240  # after which a run is ended
STALL_S = 75  # the same, if the server sends nothing more
AT_TIMES = 2  # answers are wrong
BUCKET, REPO = "bucket", "owner/name"

TAR, OBJECTS = "headrace", "headrace, objects"
FIRST, SECOND = "first epoch, a sample", "second epoch, a sample"
FIRST_CPU, SECOND_CPU = "first epoch, CPU time of a sample", "second epoch, CPU time of a sample"
SENT = "bytes that the server sent in two epochs, of the size of the samples"
WRONG = "samples with other bytes, without any fault"
SILENT = "kinds of faults with wrong or lost samples and no error"


@dataclass(frozen=True)
class Rival:
    """name: as the tables have it. function: in remote_rivals_script.py. needs: what it imports or runs. reads_tar: and
    not objects. looks_first: asks for each file once without reading the answer."""

    name: str
    function: str
    needs: tuple[str, ...]
    reads_tar: bool
    looks_first: bool = False


RIVALS = [
    Rival(TAR, "headrace_tar", (), True),
    Rival("WebDataset, pipe:curl", "webdataset_pipe", ("webdataset", "curl"), True),
    Rival("WebDataset, cache_dir", "webdataset_cache", ("webdataset", "curl"), True),
    Rival("webshart", "webshart_ranges", ("webshart", "openssl"), True),
    Rival("webshart, shard cache", "webshart_cache", ("webshart", "openssl"), True),
    Rival("fsspec, filecache", "fsspec_filecache", ("fsspec", "aiohttp"), True, looks_first=True),
    Rival("fsspec, blockcache", "fsspec_blockcache", ("fsspec", "aiohttp"), True),
    Rival(OBJECTS, "headrace_objects", ("obstore",), False),
    Rival("LitData, raw objects", "litdata_raw", ("litdata", "obstore", "boto3"), False),
    Rival("boto3", "boto3_torch", ("boto3",), False),
    Rival("boto3, sample_threads=16", "boto3_threads", ("boto3",), False),
]

# Each is the answer to two requests. "fewer": a third less of a whole file, or a byte less of a range, with a length
# that says so. "replaced": other contents of the same size from the second request on.
FAULTS = ("503", "429", "cut", "reset", "stall", "fewer", "other_range", "whole", "gzip", "replaced")


def installed() -> list[Rival]:
    found = []
    for rival in RIVALS:
        missing = [name for name in rival.needs if not shutil.which(name) and not importlib.util.find_spec(name)]
        if missing:
            print(f"{rival.name} is left out: {', '.join(missing)} is not installed", flush=True)
        else:
            found.append(rival)
    return found


# ---- the data and the server ----


def content(index: int, version: str) -> bytes:
    return index.to_bytes(8, "little") + random.Random(f"{version} {index}").randbytes(SIZE - 8)


def write(folder: Path, count: int, version: str) -> list[tuple[int, int, int]]:
    """Writes the samples as tar files and as objects. Returns the shard, offset and size of each."""
    places = []
    (folder / "objects").mkdir(parents=True)
    for shard in range(SHARDS):
        files = []
        with tarfile.open(folder / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(shard * count // SHARDS, (shard + 1) * count // SHARDS):
                data = content(index, version)
                info = tarfile.TarInfo(f"{index:05}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                at = tar.offset - (SIZE + 511) // 512 * 512
                places.append((shard, at, SIZE))
                files.append({"path": info.name, "offset": at, "length": SIZE})
                (folder / "objects" / info.name).write_bytes(data)
        (folder / f"{shard}.json").write_text(json.dumps({"files": files}))  # webshart's index
    return places


class Server:
    """The process of rival_server.py, over the samples in a folder. given: what the script is told."""

    def __init__(self, folder: Path, count: int, checks: bool) -> None:
        from certificates import make_certificate
        from headrace import _core, sources

        certificate = ""
        places = write(folder / "files", count, "right")
        if checks:
            write(folder / "newer", count, "newer")
        for shard in range(SHARDS):
            sources._index.save_index(_core.INDEX_TAR, str(folder / f"files/{shard}.tar"))  # type: ignore[attr-defined]
        if shutil.which("openssl"):
            certificate = str(make_certificate(folder, "huggingface.co")[1])
        pipe = subprocess.PIPE
        command = [sys.executable, str(HERE / "rival_server.py"), str(folder)]
        self._process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        versions = ("right", "newer") if checks else ()
        self.given = {
            "count": count,
            "size": SIZE,
            "sums": {name: [zlib.crc32(content(index, name)) for index in range(count)] for name in versions},
            "places": places,
            "firsts": [shard * count // SHARDS for shard in range(SHARDS)],
            "tars": [f"{url}/{shard}.tar" for shard in range(SHARDS)],
            "keys": [f"objects/{index:05}.jpg" for index in range(count)],
            "bucket": BUCKET,
            "repo": REPO,
            "proxy": url,
            "certificate": certificate,
            "s3": {
                "endpoint_url": url,
                "aws_access_key_id": "key",
                "aws_secret_access_key": "secret",
                "region_name": "us-east-1",
            },
        }

    def change(self, **wanted: Any) -> dict[str, Any]:
        print(json.dumps(wanted), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def served(count: int, checks: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), count, checks)
        try:
            yield server
        finally:
            server.close()


# ---- one run ----


@dataclass
class Run:
    """The answers of the script for its epochs, and what the server sent meanwhile. faults: that it made. is_late: the
    script was ended because it took too long."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    sent_bytes: int = 0
    faults: int = 0
    is_late: bool = False


def run(rival: Rival, server: Server, epochs: int, limit_s: float, fault: str = "") -> Run:
    from remote_runs import end_fetchers

    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "AWS_", "HF_")) and not name.lower().endswith("_proxy")
    }
    environment |= {"HEADRACE_REMOTE_IDLE_MS": "500"}
    server.change(kind="", latency_s=0)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "remote_rivals_script.py"), rival.function, f"{folder}/kept"]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        process: Any = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=none, text=True, env=environment, start_new_session=True
        )
        try:
            most = AT_TIMES * (1 + rival.looks_first)
            return follow(process, server, epochs, limit_s, {"kind": fault, "most": most} if fault else {})
        finally:
            end(process)
            with contextlib.suppress(OSError):  # of a line that the script has not read
                process.communicate()
            end_fetchers(Path(folder) / "kept")


def follow(process: Any, server: Server, epochs: int, limit_s: float, wanted: dict[str, Any]) -> Run:
    """Gives the script its lines and takes its answers. limit_s: after which an epoch is ended. wanted: of the server
    from the first epoch on."""
    done = Run()
    wait_for_line(process, json.dumps(server.given), "open", EPOCH_S)
    if wanted.get("kind") == "replaced":
        wanted = {"kind": "", "replaces": wanted["most"]}
    before = server.change(latency_s=LATENCY_S, **wanted)["sent_bytes"]
    for _ in range(epochs):
        begin = time.monotonic()
        line = wait_for_line(process, "", "{", limit_s)
        done.is_late = time.monotonic() - begin >= limit_s
        if not line:
            break
        done.epochs.append(json.loads(line))
    found = server.change(kind="", latency_s=0)
    done.sent_bytes, done.faults = found["sent_bytes"] - before, found["drawn"] + found["replaced"]
    return done


def wait_for_line(process: Any, given: str, begin: str, limit_s: float) -> str:
    """Gives a line to the script, and returns its next one that begins so; "" if it ends, or is ended after limit_s.
    Libraries write lines of their own."""
    timer = threading.Timer(limit_s, end, (process,))
    timer.start()
    try:
        with contextlib.suppress(OSError):
            print(given, file=process.stdin, flush=True)
        return next((line for line in process.stdout if line.startswith(begin)), "")
    finally:
        timer.cancel()


def end(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# ---- the cases ----


def of_epochs() -> list[Row]:
    found: dict[tuple[str, str], list[float]] = {}
    rivals = installed()
    with served(SAMPLES, checks=False) as server:
        for _ in range(ROUNDS):
            for rival in list(rivals):
                done = run(rival, server, 2, EPOCH_S)
                if len(done.epochs) < 2 or any(epoch["error"] for epoch in done.epochs):
                    print(f"{rival.name} is left out, because it has failed: {done}", flush=True)
                    rivals.remove(rival)
                    continue
                for name, cpu, epoch in zip((FIRST, SECOND), (FIRST_CPU, SECOND_CPU), done.epochs, strict=True):
                    found.setdefault((name, rival.name), []).append(1e6 * epoch["seconds"] / SAMPLES)
                    found.setdefault((cpu, rival.name), []).append(1e6 * epoch["cpu_s"] / SAMPLES)
                found.setdefault((SENT, rival.name), []).append(done.sent_bytes / SAMPLES / SIZE)
                right = sum(epoch.get("right", 0) for epoch in done.epochs)
                found.setdefault((WRONG, rival.name), []).append(2 * SAMPLES - right)
    units = {SENT: "", WRONG: f"of {2 * SAMPLES * ROUNDS}"}
    works = (FIRST, SECOND, FIRST_CPU, SECOND_CPU, SENT, WRONG)
    return [
        Row(
            work,
            rival.name,
            0,
            (sum if work == WRONG else statistics.median)(found[work, rival.name]),
            units.get(work, "us"),
        )
        for work in works
        for rival in rivals
    ]


def in_short(done: Run, count: int) -> tuple[str, int]:
    """Returns what came of a run with faults, and how many samples were wrong or lost without an error."""
    if not done.epochs:
        return ("waits" if done.is_late else "no answer"), 0
    (epoch,) = done.epochs
    wrong, newer = epoch.get("wrong", 0), epoch.get("newer", 0)
    lost = 0 if epoch["error"] else count - epoch.get("right", 0) - newer - wrong
    words = [
        f"{number} {what}" for number, what in ((wrong, "wrong"), (lost, "lost"), (newer, "of the newer")) if number
    ]
    words += ["error"] if epoch["error"] else []
    silent = wrong + lost + (newer if 0 < newer < count else 0)
    return ", ".join(words) or "right", silent


def of_faults() -> list[Row]:
    rows = []
    count = FAULTY_SAMPLES
    with served(count, checks=True) as server:
        for rival in installed():
            silent = 0
            for fault in FAULTS:
                limit_s = STALL_S if fault == "stall" else EPOCH_S
                begin = time.monotonic()
                done = run(rival, server, 1, limit_s, fault)
                text, bad = in_short(done, count)
                text = text if done.faults else "not met"
                error = done.epochs[0]["error"].partition("\n")[0][:150] if done.epochs else ""
                passed = time.monotonic() - begin
                print(f"{rival.name:26} {fault:12} {text:32} {passed:6.1f} s  {error}", flush=True)
                silent += bad > 0
            rows.append(Row(SILENT, rival.name, 0, silent, f"of {len(FAULTS)}"))
    return rows


def goals() -> list[Goal]:
    found = [Goal("kinds of faults without an error", Key(SILENT, name), 0) for name in (TAR, OBJECTS)]
    for rival in RIVALS:
        ours = TAR if rival.reads_tar else OBJECTS
        if rival.name != ours:
            found += [
                Goal(f"{work}, of {rival.name}", Key(work, ours), 1, Key(work, rival.name)) for work in (FIRST, SECOND)
            ]
    return found


CASES = [Case("epochs", of_epochs), Case("faults", of_faults)]


def show(rows: list[Row]) -> None:
    is_tar = {rival.name: rival.reads_tar for rival in RIVALS}
    values = {(row.work, row.rival): row.value for row in rows}
    for row in rows:
        ours = values.get((row.work, TAR if is_tar[row.rival] else OBJECTS))
        ratio = in_words(ours / row.value) if ours and row.value else ""
        print(f"{row.work:70} {row.rival:26} {row.value:12.2f} {row.unit:5} {ratio}", flush=True)


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show, goals)


if __name__ == "__main__":
    main()
