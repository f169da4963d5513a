# SPDX-License-Identifier: Apache-2.0
"""headrace top, metrics and recordings of loaders that wait for the network, and of the fetcher."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from headrace import _core, sources
from headrace._base import program
from headrace.torch import DataLoader
from processes import until
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from remote_runs import BIG, fetchers_of, token_bytes
from remote_server import RemoteServer

PROGRAM = str(program.find())


def top(*words: str) -> str:
    found = subprocess.run(
        [PROGRAM, "top", str(os.getpid()), *words],
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    return found.stdout


@pytest.fixture
def server() -> Any:
    with RemoteServer({"big.bin": token_bytes(BIG)}) as found:
        yield found


@contextlib.contextmanager
def iterated(loader: Any) -> Iterator[threading.Thread]:
    """Iterates a loader in a thread. Workers are forked before: one that is forked while the test starts a process
    keeps the pipe of that process open."""
    iterator = iter(loader)
    thread = threading.Thread(target=lambda: list(iterator))
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def looked_at(loaders: list[dict[str, Any]]) -> dict[str, Any]:
    (loader,) = loaders
    return loader


@pytest.mark.parametrize("workers", [0, 1])
def test_top_shows_that_a_loader_waits_for_the_network(
    workers: int, server: RemoteServer, tmp_path: pathlib.Path
) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500)
    server.latency_s = 60
    loader = DataLoader(remote, 4, sampler=[3000, 100, 2000, 1000], num_workers=workers, persistent_workers=workers > 0)
    with iterated(loader):
        seen: list[dict[str, Any]] = []

        def is_seen() -> bool:
            seen[:] = [json.loads(top("--json"))]
            return bool(seen[0]["loaders"]) and looked_at(seen[0]["loaders"])["state"] == "network"

        try:
            until(is_seen)
            picture = top("--once")
        finally:
            server.release()
    found = looked_at(seen[0]["loaders"])
    assert found["network_seconds_total"] > 0 and found["remote_waits_total"] >= 1
    assert [worker["phase"] for worker in found["workers"]] == ["network"] * workers
    fetcher = seen[0]["fetcher"]
    assert [fetcher["pid"]] == fetchers_of(tmp_path / "remote")
    assert fetcher["place"] == str(tmp_path / "remote/v1/remote") and fetcher["fetcher_requests_total"] >= 1
    assert "FETCHER           MB/S" in picture and f"pid {fetcher['pid']}" in picture and " network" in picture

    list(loader)  # of what is kept
    list(loader)
    until(lambda: json.loads(top("--json"))["fetcher"]["fetcher_bytes_total"] > 0)
    families = {family.name: family for family in text_string_to_metric_families(top("--prometheus"))}
    values = {name: sum(sample.value for sample in family.samples) for name, family in families.items()}
    assert values["headrace_network_seconds"] > 0 and values["headrace_remote_waits"] >= 1
    assert values["headrace_remote_hits"] >= 4
    assert values["headrace_fetcher_bytes"] > 0 and values["headrace_fetcher_requests"] >= 2
    assert values["headrace_fetcher_kept_bytes"] > 0 and values["headrace_fetcher_retries"] == 0


def test_without_a_fetcher_nothing_is_shown_of_it(tmp_path: pathlib.Path) -> None:
    loader = DataLoader(range(8), 4, num_workers=0)
    list(loader)
    assert json.loads(top("--json"))["fetcher"] is None
    assert "FETCHER" not in top("--once") and "headrace_fetcher" not in top("--prometheus")
    assert not (tmp_path / "remote").exists()


def test_recording_has_the_waits_and_the_requests(
    server: RemoteServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept, so that each read waits."""
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")
    server.latency_s = 0.3
    indices = range(0, 3900, 300)
    folder = tmp_path / "run"
    script = f"""
from headrace import sources
from headrace.torch import DataLoader

remote = sources.Tokens({server.url("big.bin")!r}, length=500)
list(DataLoader(remote, 1, sampler={indices!r}, num_workers=1, record={str(folder)!r}))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100, stdin=subprocess.DEVNULL)
    until(lambda: folder.is_dir() and any(_core.Recording(one).ended for one in folder.glob("*.hrr")))
    (path,) = folder.glob("*.hrr")
    read = _core.Recording(path)
    (worker,) = read.second_workers
    waited_s = sum(worker["network_ns"]) / 1e9
    assert 0.25 <= waited_s <= (sum(worker["fetch_ns"]) + sum(worker["collate_ns"])) / 1e9 + 0.1
    assert sum(read.seconds["wait_count"]) >= len(indices) and sum(read.seconds["hit_count"]) == 0
    assert sum(read.seconds["requests"]) > 0 and sum(read.seconds["fetched_bytes"]) > 0
    assert sum(read.seconds["network_ns"]) == 0, "the trainer reads nothing itself"


def test_killed_worker_counts_on_in_its_place(server: RemoteServer) -> None:
    remote = sources.Tokens(server.url("big.bin"), length=500)
    server.latency_s = 60
    loader = DataLoader(remote, 4, sampler=[3000], num_workers=1, max_restarts=1)
    with iterated(loader):
        pids: list[int] = []

        def waits() -> bool:
            loaders = json.loads(top("--json"))["loaders"]
            pids[:] = (
                [one["pid"] for one in looked_at(loaders)["workers"] if one["phase"] == "network"] if loaders else []
            )
            return bool(pids)

        try:
            until(waits)
            first = pids[0]
            os.kill(first, 9)
            until(lambda: waits() and pids[0] != first)
        finally:
            server.release()
