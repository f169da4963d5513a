# SPDX-License-Identifier: Apache-2.0
"""The scripts of jobs that fail or hang. Tests look at what `headrace run` makes of them, and against_torchrun.py at
what torchrun does.

Rank 1 fails. Rank 0 would sleep for ever. All start with both ranks being there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    code: str  # what rank 1 does
    exit_code: int
    says: str  # a pattern for what the summary says about it


START = """from ranks import *
meet()
"""
OTHERS = """
if RANK != 1:
    sleep_forever()
"""

FAILURES = {
    "exception": Failure(
        'raise ValueError("there is no sample 7")', 1, r"exit code 1, after ValueError: there is no sample 7 \(pid"
    ),
    "exit 7": Failure("sys.exit(7)", 7, "ended with exit code 7"),
    "_exit 9": Failure("os._exit(9)", 9, "ended with exit code 9"),
    "SIGSEGV": Failure("import ctypes; ctypes.string_at(0)", 139, r"was ended by signal 11 \(Segmentation fault\)"),
    "SIGABRT": Failure("os.abort()", 134, r"was ended by signal 6 \(Aborted\)"),
    "SIGKILL": Failure(
        "os.kill(os.getpid(), signal.SIGKILL)", 137, r"was ended by signal 9 \(Killed\); another process killed it"
    ),
    "ImportError": Failure("import nothing_like_it", 1, "ModuleNotFoundError: No module named 'nothing_like_it'"),
    "exit after a caught exception": Failure(
        "try:\n    int('x')\nexcept ValueError as error:\n    print('Error:', error, file=sys.stderr)\n    sys.exit(3)",
        3,
        r"ended with exit code 3(.|\n)*Error: invalid literal for int",
    ),
    # click, typer and hydra catch all exceptions, print them, and call sys.exit.
    "exit of a framework": Failure(
        "import traceback\ntry:\n    {}['key']\nexcept Exception:\n    traceback.print_exc()\n    sys.exit(1)",
        1,
        r"ended with exit code 1(.|\n)*KeyError: 'key'",
    ),
    "SystemExit with a text": Failure("sys.exit('the configuration is wrong')", 1, "the configuration is wrong"),
    "text that begins with an empty line": Failure(
        "raise ValueError('\\n\\n  the file is empty')", 1, "after ValueError: the file is empty"
    ),
    "ExceptionGroup": Failure(
        "raise ExceptionGroup('several', [KeyError('x'), OSError('y')])",
        1,
        r"after KeyError: 'x' \(the first of 2 exceptions in ExceptionGroup: several \(2 sub-exceptions\)\)",
    ),
    "hook of its own": Failure(
        "sys.excepthook = lambda *_: print('my hook')\nraise KeyError('x')", 1, "after KeyError: 'x'"
    ),
}


def failing(name: str) -> str:
    return START + OTHERS + FAILURES[name].code + "\n"


# What a rank does while another one fails, and what must be said about it.
HANGS = {
    "sleeps": ("sleep_forever()", "rank 0 ended when asked to"),
    "is stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "rank 0 ended when asked to"),
    "is deaf to SIGTERM": (
        "def deaf(): time.sleep(1000)\nignore(*DEAF)\nannounce('deaf')\ndeaf()",
        "rank 0 did not end and was killed after [0-9.]+ s; it was .*(\n.*)*in deaf",
    ),
    "holds the GIL": (
        "def compute(): hold_gil()\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nannounce('deaf')\ncompute()",
        "rank 0 did not end and was killed after [0-9.]+ s; it was .*(\n.*)*in compute",
    ),
    "is stuck in atexit": (
        "import atexit\ndef flush(): time.sleep(1000)\natexit.register(flush)\n"
        "ignore(*DEAF)\natexit.register(announce, 'deaf')",
        "rank 0 did not end and was killed after [0-9.]+ s; it was .*(\n.*)*in flush",
    ),
    "waits for a thread": (
        "import threading\nignore(*DEAF)\nthreading.Thread(target=sleep_forever).start()\nannounce('deaf')",
        "rank 0 did not end and was killed after",
    ),
    "has 40 deaf descendants": (
        "leave_daemons(40)\nsleep_forever()",
        "rank 0 ended when asked to\n  40 processes that the ranks had started were killed",
    ),
}
READY = {"is deaf to SIGTERM": "deaf", "holds the GIL": "deaf", "is stuck in atexit": "deaf"} | {
    "waits for a thread": "deaf",
    "has 40 deaf descendants": "daemons.0",
}


def hanging(name: str) -> str:
    """Rank 0 hangs, and rank 1 exits with 7 when it does."""
    ready = READY.get(name)
    awaits = f"await_all({ready!r})\n" if ready else ""
    body = "\n".join(f"    {line}" for line in HANGS[name][0].splitlines())
    return f"{START}if RANK == 0:\n{body}\nelse:\n    {awaits.strip()}\n    time.sleep(0.1)\n    sys.exit(7)\n"
