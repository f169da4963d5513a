# SPDX-License-Identifier: Apache-2.0
"""Remote sources in loaders: workers of all start methods, torch's own loader, headrace.Loader, states, mixtures, and
fetchers that are killed while workers read."""

from __future__ import annotations

import os
import pathlib
import resource
import threading
import time
import traceback
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace import sources
from headrace.torch import DataLoader
from remote_runs import BIG, FILES, SOURCES, as_text, kill_fetchers, token_bytes, write_files
from remote_server import RemoteServer
from torch.utils.data import DataLoader as TorchLoader


@pytest.fixture
def server() -> Any:
    with RemoteServer(dict(FILES)) as found:
        yield found


def open_remote(name: str, server: RemoteServer, query: str = "") -> Any:
    make, files = SOURCES[name]
    return make([server.url(file, query) for file in files], None)


def open_local(name: str, folder: pathlib.Path) -> Any:
    write_files(folder / "local")
    make, files = SOURCES[name]
    return make([str(folder / "local" / file) for file in files], None)


def as_list(samples: list[Any]) -> list[Any]:
    return [as_text(sample) for sample in samples]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "headrace"])
@pytest.mark.parametrize("name", SOURCES)
def test_workers_of_all_start_methods_read(
    name: str, method: str, server: RemoteServer, tmp_path: pathlib.Path
) -> None:
    """The query is a secret that workers need: the server refuses requests without it."""
    server.needs = "?X-Amz-Signature=word"
    local = open_local(name, tmp_path)
    remote = open_remote(name, server, "?X-Amz-Signature=word")
    context = {} if method == "headrace" else {"multiprocessing_context": method}
    loader = DataLoader(remote, batch_size=32, num_workers=2, collate_fn=as_list, **context)
    found = [sample for batch in loader for sample in batch]
    assert found == [as_text(local[i]) for i in range(len(local))]


def test_torchs_own_loader_reads(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    local, remote = open_local("Tar", tmp_path), open_remote("Tar", server)
    loader = TorchLoader(remote, batch_size=16, num_workers=2, collate_fn=as_list)
    assert [one for batch in loader for one in batch] == [as_text(local[i]) for i in range(len(local))]


def test_batches_of_tokens_are_gathered(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    local, remote = open_local("Tokens", tmp_path), open_remote("Tokens", server)
    for workers in (0, 2):
        torch.manual_seed(1)
        wanted = list(DataLoader(local, batch_size=64, shuffle=True))
        torch.manual_seed(1)
        loader = DataLoader(remote, batch_size=64, shuffle=True, num_workers=workers)
        found = list(loader)
        assert loader.report()["rows"] == "Tokens"
        assert all((a == b).all() for x, y in zip(wanted, found, strict=True) for a, b in zip(x, y, strict=True))


def test_numpy_loader_mixture_and_state(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    local, remote = open_local("Tokens", tmp_path), open_remote("Tokens", server)
    wanted = list(headrace.Loader(local, 50, shuffle=True, seed=3))
    found = list(headrace.Loader(remote, 50, shuffle=True, seed=3, num_workers=2))
    assert all((a[0] == b[0]).all() for a, b in zip(wanted, found, strict=True))
    mix = headrace.Mixture({"far": remote, "near": local}, weights={"far": 0.5, "near": 0.5}, seed=0, until="first")
    assert sum(len(batch[0]) for batch in DataLoader(mix.dataset, 64, sampler=mix, num_workers=2)) == len(mix)
    loader = DataLoader(remote, 50, sampler=headrace.Order(len(remote), seed=1), num_workers=2)
    first = [batch for _, batch in zip(range(5), loader, strict=False)]
    again = DataLoader(remote, 50, sampler=headrace.Order(len(remote), seed=1), num_workers=0)
    again.load_state_dict(loader.state_dict())
    rest = [batch[0] for batch in again]
    whole = [batch[0] for batch in DataLoader(remote, 50, sampler=headrace.Order(len(remote), seed=1))]
    seen = [batch[0] for batch in first] + rest
    assert torch.cat(seen).shape == torch.cat(whole).shape and (torch.cat(seen) == torch.cat(whole)).all()


def test_fetchers_killed_while_workers_read(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    local, remote = open_local("Tar", tmp_path), open_remote("Tar", server)
    server.latency_s = 0.02
    killed: list[list[int]] = []
    got = []
    for batch in DataLoader(remote, batch_size=8, num_workers=2, collate_fn=as_list):
        if len(killed) < 3:  # while the batches after this one are made
            killed.append(kill_fetchers(tmp_path / "remote"))
        got += batch
    assert got == [as_text(local[i]) for i in range(len(local))]
    assert killed[0], "no fetcher ran"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_child_of_a_fork_reads(moment: str, server: RemoteServer, tmp_path: pathlib.Path) -> None:
    local, remote = open_local("Objects", tmp_path), open_remote("Objects", server)
    server.latency_s = 0.05
    if moment == "after":
        assert remote[3] == local[3]
    thread = threading.Thread(target=lambda: [remote[i] for i in range(len(remote))])
    if moment == "during":
        thread.start()
        time.sleep(0.02)
    pid = os.fork()
    if pid == 0:
        is_right = all(remote[i] == local[i] for i in range(len(local)))
        os._exit(0 if is_right else 1)
    assert all(remote[i] == local[i] for i in range(len(local)))
    assert os.waitpid(pid, 0)[1] == 0
    if moment == "during":
        thread.join()


def test_retries_do_not_repeat_what_the_fetcher_tried(server: RemoteServer) -> None:
    server.files["big.bin"] = token_bytes(BIG)
    remote = sources.Tokens(server.url("big.bin"), length=500, storage={"retry_s": 0.2})
    server.files["big.bin"] = token_bytes(BIG, seed=1)
    loader = DataLoader(remote, 4, sampler=[3000], retries=3)
    with pytest.raises(OSError, match="was replaced") as raised:
        list(loader)
    assert loader.report()["retried"] == 0
    assert "was tried" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("on_stall", ["raise", "restart"])
def test_stall_for_the_network_only_warns(on_stall: str, server: RemoteServer) -> None:
    server.files["big.bin"] = token_bytes(BIG)
    remote = sources.Tokens(server.url("big.bin"), length=500)
    server.latency_s = 6
    loader = DataLoader(remote, 4, sampler=[3000], num_workers=1, stall_after=1.5, on_stall=on_stall, max_restarts=1)
    what = r"it waits for a remote object, so headrace waits on\n  http://\S+/big\.bin: no answer yet, for \d+ s\n"
    with pytest.warns(UserWarning, match=what):
        (batch,) = loader
    assert batch.numpy().astype("uint16").tobytes() == server.files["big.bin"][3_000_000:3_001_000]
    server.latency_s = 0


def test_bad_samples_are_left_out(server: RemoteServer) -> None:
    remote = open_remote("Objects", server)
    server.refused.add("objects/11.dat")
    loader = DataLoader(remote, 4, collate_fn=as_list, num_workers=2, on_bad_sample="skip")
    with pytest.warns(UserWarning, match=r"11\.dat"):
        assert sum(len(batch) for batch in loader) == len(remote) - 1


def test_each_byte_is_fetched_once_by_several_jobs(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    """Eight processes read all samples at the same time, in different orders."""
    remote = open_remote("Tokens", server)
    server.latency_s = 0.01
    total = sum(len(FILES[name]) - 65536 for name in SOURCES["Tokens"][1])  # the first units are kept already
    before = server.sent_bytes
    pids = []
    for seed in range(8):
        pid = os.fork()
        if pid == 0:
            for index in np.random.default_rng(seed).permutation(len(remote)).tolist():
                remote[index]
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    assert server.sent_bytes - before == total


def test_few_open_files_are_enough(server: RemoteServer) -> None:
    """A process that may have 64 files open, and its fetcher, read 150 objects."""
    names = [f"few/{number:03}" for number in range(150)]
    server.files.update({name: name.encode() * (1 + 9000 * (int(name[-1]) % 3)) for name in names})
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        remote = sources.Objects([server.url(name) for name in names])
        os._exit(0 if all(remote[i] == server.files[names[i]] for i in range(150)) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_ctrl_c_ends_a_wait(server: RemoteServer) -> None:
    import signal

    server.files["big.bin"] = token_bytes(BIG)
    remote = sources.Tokens(server.url("big.bin"), length=500)
    server.latency_s = 20
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        remote[3000]
    assert time.monotonic() - begin < 10
    server.latency_s = 0
