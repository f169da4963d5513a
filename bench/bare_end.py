# SPDX-License-Identifier: Apache-2.0
"""Measures how long the kernel takes a process down that has imported torch and nothing else.

No loader can close a worker, or notice its death, any sooner. `bare_end.py METHOD...` starts processes by
multiprocessing and prints, as JSON, {method: [s, ...]}: from SIGKILL until the pidfd reports the end. measure.py runs
it.
"""

import json
import multiprocessing
import os
import select
import signal
import sys
import time

import torch  # noqa: F401  (A spawned process imports this script, and so torch.)

COUNT = 3


def sleep(connection: "multiprocessing.connection.Connection") -> None:
    connection.send("here")
    signal.pause()


def end_one(method: str) -> float:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=sleep, args=(there,))
    process.start()
    here.recv()
    assert process.pid
    pidfd = os.pidfd_open(process.pid)
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    start = time.perf_counter()
    process.kill()
    ended.poll()
    seconds = time.perf_counter() - start
    process.join()
    os.close(pidfd)
    return seconds


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["torch"])
    print(json.dumps({method: [end_one(method) for _ in range(COUNT)] for method in sys.argv[1:]}))
