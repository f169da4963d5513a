# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.spawn raises the failure that came first, and shows where the other processes are."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import sys
import threading
import time
from typing import Any

import headrace.torch
import pytest
import torch
import torch.distributed as dist
from loaders import only_headrace
from processes import until
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

pytestmark = only_headrace
FAILURES = ProcessExitedException, ProcessRaisedException


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def wait_for(path: pathlib.Path) -> None:
    assert until(path.exists, 100)


def fail_and_linger(index: int, folder: pathlib.Path) -> None:
    """Process 1 fails first, but a thread keeps it. Process 0 loses it, and exits at once."""
    if index == 1:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        (folder / "failed").touch()
        raise ValueError("came first")
    wait_for(folder / "failed")
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")


def test_spawn_raises_first_failure_of_process_that_lingers(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        headrace.torch.spawn(fail_and_linger, (tmp_path,), nprocs=2)
    assert caught.value.error_index == 1
    assert "ValueError: came first" in str(caught.value)


def reduce_with_lost_peer(index: int, port: int, number: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=index, world_size=2)
    ones = torch.ones(4)
    dist.all_reduce(ones)
    if index == 1 and number:
        os.kill(os.getpid(), number)
    if index == 1:
        raise ValueError("came first")
    for _ in range(1000):
        dist.all_reduce(ones)


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_spawn_raises_cause_of_lost_peer(number: int) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with pytest.raises(FAILURES) as caught:
        headrace.torch.spawn(reduce_with_lost_peer, (port, number), nprocs=2)
    assert caught.value.error_index == 1
    assert ("terminated with signal SIGKILL" if number else "ValueError: came first") in str(caught.value)


def hang() -> None:
    while True:
        time.sleep(1000)


def fail_next_to_hanging_one(index: int, folder: pathlib.Path) -> None:
    if index == 0:
        (folder / "hangs").touch()
        hang()
    wait_for(folder / "hangs")
    raise ValueError("of one")


def test_spawn_shows_stacks_of_process_that_hangs(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        headrace.torch.spawn(fail_next_to_hanging_one, (tmp_path,), nprocs=2)
    assert caught.value.error_index == 1
    text = text_of(caught.value)
    assert "\nprocess 0 (pid " in text and " was still running when process 1 had failed; its stacks:\n" in text
    assert f'File "{__file__}", line ' in text and "in hang" in text


def test_spawn_without_join_raises_first_failure(tmp_path: pathlib.Path) -> None:
    context = headrace.torch.spawn(fail_and_linger, (tmp_path,), nprocs=2, join=False)
    with pytest.raises(ProcessRaisedException) as caught:
        while not context.join(timeout=1.0):
            pass
    assert caught.value.error_index == 1


def leave(index: int, code: int) -> None:
    sys.exit(code if index == 1 else 0)


@pytest.mark.parametrize("code", [0, 3])
def test_spawn_ends_as_torchs(code: int) -> None:
    def outcome(spawn: Any) -> Any:
        try:
            return spawn(leave, (code,), nprocs=2)
        except ProcessExitedException as error:
            return str(error), error.error_index, error.exit_code

    assert outcome(headrace.torch.spawn) == outcome(torch.multiprocessing.spawn)
