# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of these tests under torchrun and under headrace run, and writes a table of both (docs/launch.md).

`against_torchrun.py [WORD...]`: the cases whose names contain a word. It takes ten minutes, because torchrun waits for
30 s in many cases, so it is no test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "python/lib"))

from cases import FAILURES, HANGS, OTHERS, START, failing, hanging
from jobs import HEADRACE, Job, Result, of_cookie, parent_of
from processes import until

TORCHRUN = str(Path(sys.executable).parent / "torchrun")
LIMIT_S = 120.0
SLEEP = f"{START}sleep_forever()\n"
DEAF = "from ranks import *\nignore(*DEAF)\nleave_daemons(20)\nmeet()\nsleep_forever()\n"
ACT = Callable[[Job], None]


def _wait(job: Job, *names: str) -> None:
    shared = job.folder / "shared"
    assert until(lambda: all((shared / name).exists() for name in names), LIMIT_S), os.listdir(shared)


def send(*numbers: int, wait: tuple[str, ...] = ("met.0", "met.1"), pause_s: float = 0.5) -> ACT:
    def act(job: Job) -> None:
        _wait(job, *wait)
        for number in numbers:
            time.sleep(pause_s)
            job.send(number)

    return act


def kill_a_helper(job: Job) -> None:
    """The guardian; torchrun has none."""
    _wait(job, "met.0", "met.1")
    children = [pid for pid in of_cookie(job.cookie) if parent_of(pid) == job.process.pid]
    os.kill(children[0], signal.SIGKILL)


def close_output(job: Job) -> None:
    assert job.process.stdout is not None
    os.read(job.process.stdout.fileno(), 10)
    job.process.stdout.close()
    job.process.stdout = None
    (job.folder / "shared/closed").touch()


@dataclass
class Case:
    name: str
    code: str
    act: ACT | None = None
    options: tuple[str, ...] = ()  # of headrace
    others: tuple[str, ...] = ()  # of torchrun
    prefix: tuple[str, ...] = ()


TORCH = "from ranks import *\nimport torch\nimport torch.distributed as dist\n"
CASES = [
    Case("all ranks return 0", f"{START}"),
    *(Case(name, failing(name)) for name in FAILURES),
    *(Case(f"exit 7, and the other rank {name}", hanging(name)) for name in HANGS),
    Case(
        "two failures, 30 ms apart; the second rank is dead first",
        "from ranks import *\nimport atexit\nif RANK == 0:\n    await_all('failing')\n    time.sleep(0.03)\n"
        "    os._exit(9)\natexit.register(time.sleep, 0.3)\nignore(*DEAF)\nannounce('failing')\n"
        "raise ValueError('mine')\n",
    ),
    Case(
        "exception of rank 1 while rank 0 waits in all_reduce",
        TORCH + "dist.init_process_group('gloo')\nvalue = torch.ones(1)\ndist.all_reduce(value)\n"
        "if RANK == 1: raise ValueError('mine')\ndist.all_reduce(value)\n",
    ),
    Case(
        "rank 0 fails before init_process_group",
        "from ranks import *\nif RANK == 0:\n    await_all('importing')\n    time.sleep(3)\n"
        "    raise ValueError('mine')\nannounce('importing')\n"
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    ),
    Case(
        "rank 1 has a batch less",
        TORCH + "dist.init_process_group('gloo')\nfor i in range(78 - RANK): dist.all_reduce(torch.ones(1))\n"
        "dist.destroy_process_group()\n",
    ),
    Case(
        "a finished rank does not exit: a thread (here for 20 s)",
        START
        + "import threading\nif RANK == 1: threading.Thread(target=time.sleep, args=(20,), name='uploader').start()\n",
        options=("--exit-timeout", "3"),
    ),
    Case(
        "rank 1 is elsewhere, and the others wait in a barrier",
        TORCH + "def load_shard(): time.sleep(1000)\ndist.init_process_group('gloo')\ndist.barrier()\n"
        "if RANK == 1: load_shard()\ndist.barrier()\n",
        options=("--stall-after", "30"),
    ),
    Case(
        "SIGTERM, ranks save and return 0",
        CHECKPOINT := "from ranks import *\ndef save(*_):\n    announce(f'saved.{RANK}')\n"
        "    sys.exit()\nsignal.signal(signal.SIGTERM, save)\nmeet()\nsleep_forever()\n",
        act=send(signal.SIGTERM),
    ),
    Case("SIGTERM to the launcher", SLEEP, act=send(signal.SIGTERM)),
    Case("SIGINT to the launcher", SLEEP, act=send(signal.SIGINT)),
    Case("SIGHUP to the launcher", SLEEP, act=send(signal.SIGHUP)),
    Case(
        "SIGUSR1, for which the ranks have a handler",
        "from ranks import *\nsignal.signal(signal.SIGUSR1, lambda *_: announce(f'got.{RANK}'))\nmeet()\n"
        "await_all('got.0', 'got.1')\n",
        act=send(signal.SIGUSR1),
    ),
    Case("SIGINT twice, deaf ranks and 40 deaf descendants", DEAF, act=send(signal.SIGINT, signal.SIGINT)),
    Case("SIGKILL of the launcher, deaf ranks and 40 deaf descendants", DEAF, act=send(signal.SIGKILL)),
    Case("SIGKILL of a child of the launcher, the same", DEAF, act=kill_a_helper),
    Case(
        "SIGHUP under nohup, then the ranks return 0",
        f"{START}time.sleep(3)\n",
        act=send(signal.SIGHUP),
        prefix=("nohup",),
    ),
    Case(
        "the reader of stdout ends (`| head`), then the ranks return 0",
        "from ranks import *\nsay('first')\nawait_all('closed')\nfor i in range(5000): print('line', i)\n",
        act=close_output,
    ),
    Case(
        "3 restarts, each attempt fails",
        START + OTHERS + "sys.exit(7)\n",
        options=("--max-restarts", "3"),
        others=("--max-restarts", "3"),
    ),
    Case(
        "success, and a daemon that holds stdout",
        "from ranks import *\nif RANK == 0: subprocess.Popen(['sleep', '1000'], start_new_session=True)\nmeet()\n",
    ),
]


def _words(launcher: str, case: Case) -> list[str]:
    if launcher == "torchrun":
        return [TORCHRUN, "--standalone", "--nproc-per-node", "2", *case.others, "train.py"]
    return [HEADRACE, "run", "--nproc", "2", *case.options, "train.py"]


def _end(job: Job, case: Case) -> Result:
    if case.act:
        case.act(job)
    begun = time.monotonic()
    try:
        job.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return Result(-999, "", "", LIMIT_S)
    seconds = time.monotonic() - begun
    text = (job.folder / "stderr").read_text(errors="replace")
    return Result(job.process.returncode, "", text, seconds if case.act else time.monotonic() - job.begun)


def _what_it_says(launcher: str, text: str) -> str:
    if launcher == "torchrun":
        names = re.findall(r"Root Cause .*?rank\s*: (\d+).*?exitcode\s*: (\S+)", text, re.DOTALL)
        if names:
            return f"rank {names[-1][0]}, exitcode {names[-1][1]}"
        last = [line for line in text.splitlines() if re.match(r"\S*(Error|Exception)", line)]
        return last[-1][:80] if last else "-"
    lines = [line for line in text.splitlines() if line.startswith("headrace: ") and "exit code" not in line[:20]]
    return re.sub(r" \(pid.*| \(pid \d+\)", "", lines[0].removeprefix("headrace: "))[:160] if lines else "-"


def measure(launcher: str, case: Case) -> list[str]:
    """Returns the cells of the table: exit code, seconds, what it says, and what is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with (path / "stderr").open("wb") as stderr:
            job = Job(path, case.code, words=_words(launcher, case), prefix=case.prefix, stderr=stderr)
            with job:
                result = _end(job, case)
                time.sleep(1)
                left = len(of_cookie(job.cookie))
        print(f"--- {launcher}: {case.name}\n{result.stderr}", file=sys.stderr, flush=True)
    code = "none" if result.code == -999 else str(result.code)
    code = f"signal {-result.code}" if -100 < result.code < 0 else code
    return [code, f"{result.seconds:.1f}", _what_it_says(launcher, result.stderr), str(left)]


def main(words: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and pass this on
    print("| case | torchrun: code | s | names | left | headrace: code | s | says | left |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        cells = [*measure("torchrun", case), *measure("headrace", case)]
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
