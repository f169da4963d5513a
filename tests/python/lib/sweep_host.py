# SPDX-License-Identifier: Apache-2.0
"""Runs trainers that are killed or stopped at a point: a case per line of stdin, what became of it per line of stdout.

Each trainer is forked from this process, which has imported everything, and which its workers fall to when it dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

import headrace
import scenes
from mishaps import Marks

PR_SET_CHILD_SUBREAPER = 36
GONE_WITHIN_S = 10.0


def kind_of(name: str) -> Any:
    if name == "numpy":
        return headrace.Loader
    from headrace.torch import DataLoader  # not above: workers that are spawned import this module

    return DataLoader


def be_trainer(case: dict[str, Any], folder: str) -> None:
    code = 1
    try:
        os.environ["HEADRACE_STOP"] = f"{case['point']}:{case['signal']}:1"
        ends_hard = case["point"].startswith("crew.")
        scenes.run_trainer(
            kind_of(case["loader"]), case["dataset"], Marks(pathlib.Path(folder)), case["method"], ends_hard
        )
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def reap_all(deadline: float) -> bool:
    """Waits for every child's end. False: some still run."""
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.0005)  # no event tells the end of any child within a deadline
        except ChildProcessError:
            return True
    return False


def run(case: dict[str, Any], folder: str) -> dict[str, Any]:
    before = set(os.listdir("/proc/self/fd"))
    pid = os.fork()
    if pid == 0:
        be_trainer(case, folder)
    _, status = os.waitpid(pid, os.WUNTRACED)
    was_stopped = os.WIFSTOPPED(status)
    if was_stopped:
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
    start = time.monotonic()
    is_gone = reap_all(start + GONE_WITHIN_S)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "was_stopped": was_stopped,
        "gone_s": time.monotonic() - start if is_gone else None,
        "left": sorted(set(os.listdir("/proc/self/fd")) - before),
    }


def main() -> None:
    kind_of("torch")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(run(json.loads(line), folder)), flush=True)


if __name__ == "__main__":
    main()
