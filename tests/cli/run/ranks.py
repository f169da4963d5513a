# SPDX-License-Identifier: Apache-2.0
"""Functions for the scripts of these tests, in a rank. It imports neither torch nor pytest: a rank starts in 50 ms."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
SHARED = pathlib.Path(os.environ.get("HEADRACE_TESTS_SHARED", "."))
DEADLINE_S = 100


def say(*words: object) -> None:
    print(*words, flush=True)


def announce(name: str, text: str = "") -> None:
    """Creates a file with this text at once, so that no other rank reads half of it."""
    draft = SHARED / f"{name}.{os.getpid()}.draft"
    draft.write_text(text)
    draft.rename(SHARED / name)


def await_all(*names: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not all((SHARED / name).exists() for name in names):
        assert time.monotonic() < end, names
        time.sleep(0.002)


def meet(name: str = "met") -> None:
    """Returns when all ranks are here."""
    announce(f"{name}.{RANK}")
    await_all(*(f"{name}.{rank}" for rank in range(WORLD_SIZE)))


def sleep_forever() -> None:
    """Not one long sleep: Python runs no handler of a signal that comes just before time.sleep enters the kernel."""
    while True:
        time.sleep(0.1)


def ignore(*numbers: int) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def hold_gil() -> None:
    """C code that never gives the GIL back: no handler in Python runs."""
    sum(iter(int, 1))


DEAF = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT]


def leave_daemons(count: int, numbers: Sequence[int] = DEAF) -> None:
    """Starts processes that are in sessions of their own, whose parents have ended, and that ignore these signals."""
    code = (
        "import os, signal, sys, time\n"
        f"for number in {[int(number) for number in numbers]}: signal.signal(number, signal.SIG_IGN)\n"
        f"for _ in range({count}):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.write(1, b'.')\n"
        "        while True: time.sleep(1000)\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        seen = b""
        while len(seen) < count:
            seen += (more := os.read(starter.stdout.fileno(), count))
            assert more, "the daemons were killed"
    announce(f"daemons.{RANK}")
