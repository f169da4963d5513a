# SPDX-License-Identifier: Apache-2.0
"""Scripts that run as the ranks of a job."""

from __future__ import annotations

import contextlib
import pathlib
import uuid
from collections.abc import Iterator, Sequence

from processes import Script

PRELUDE = """
import multiprocessing, os, pathlib, sys, time, warnings
multiprocessing.set_start_method("fork")  # there is no main guard
warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)  # CPython's, since 3.12
import headrace
from headrace._ranks import agreement
from headrace._ranks.agreement import Agreement, Facts
from headrace._ranks.loader_identity import LoaderIdentity
from processes import until

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SHARED = pathlib.Path(os.environ["TEST_SHARED"])

def facts(steps=78, epoch=0, length=-1, seed=-1, digest=-1, samples=-1):
    return Facts(length, steps, seed, epoch, digest, samples)

class Stepped(Agreement):
    def step(self, steps):
        # As _core.Iterator does it.
        if self.show_step is not None and (ended := self.show_step(steps)) is not None:
            self.check_end(steps, ended)

def agree(where="train.py:12", rank=RANK, world_size=WORLD_SIZE):
    return Stepped(LoaderIdentity([where]), rank, world_size)

def announce(name):
    (SHARED / name).touch()

def await_all(*names):
    assert until(lambda: all((SHARED / name).exists() for name in names), 100), names

def attempt(call, *arguments):
    try:
        call(*arguments)
    except headrace.RanksDisagree as error:
        print(error, flush=True)
    else:
        print("fine", flush=True)

def meet(name):
    # Returns when all ranks are here, so that no process ends before. os._exit may follow, so all output is written.
    sys.stdout.flush()
    announce(f"{name}.{RANK}")
    await_all(*(f"{name}.{rank}" for rank in range(WORLD_SIZE)))
"""


@contextlib.contextmanager
def started(folder: pathlib.Path, code: str, environments: Sequence[dict[str, str | None]]) -> Iterator[list[Script]]:
    """Starts a script once for each environment, without waiting for it."""
    with contextlib.ExitStack() as stack:
        scripts = []
        for number, environment in enumerate(environments):
            own = folder / f"{uuid.uuid4().hex}-{number}"
            own.mkdir()
            scripts.append(stack.enter_context(Script(own, PRELUDE + code, **environment)))
        yield scripts


def environments(folder: pathlib.Path, world_size: int, **changes: str | None) -> list[dict[str, str | None]]:
    """Returns the environments of the ranks of a new job on one machine, as torchrun sets them."""
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": uuid.uuid4().hex, "TEST_SHARED": str(folder)}
    sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size))
    return [{**common, **sizes, **rank, **changes} for rank in ranks]


def finish(scripts: Sequence[Script], report: str = "") -> list[str]:
    """Waits for scripts that must succeed and print nothing on stderr, or only a line that begins with `report`, which
    the thread of the board prints. Returns what each of them printed."""
    statuses = [script.finish() for script in scripts]
    assert statuses == [0] * len(scripts), [script.stderr for script in scripts]
    for script in scripts:
        assert script.stderr == "" or (report and script.stderr.startswith(report) and script.stderr.count("\n") == 1)
    return [script.stdout for script in scripts]


def run_ranks(folder: pathlib.Path, world_size: int, code: str, report: str = "", **changes: str | None) -> list[str]:
    """Runs a script as all ranks of a job on one machine. Returns what each of them printed. See finish()."""
    with started(folder, code, environments(folder, world_size, **changes)) as scripts:
        return finish(scripts, report)
