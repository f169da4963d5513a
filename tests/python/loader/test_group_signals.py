# SPDX-License-Identifier: Apache-2.0
"""Signals to the process group of a trainer: it may write a checkpoint, and its workers go on."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest
from loaders import only_headrace
from processes import Script, run, until

pytestmark = only_headrace

NUMPY, TORCH = "headrace.Loader", "headrace.torch.DataLoader"
ALL = [(kind, method) for kind in (NUMPY, TORCH) for method in ("fork", "forkserver", "spawn")]
IN_SOAK = "HEADRACE_SOAK" in os.environ  # `make soak` tries each loader with each start method
WAYS = pytest.mark.parametrize(("kind", "method"), ALL if IN_SOAK else [(NUMPY, "fork"), (TORCH, "forkserver")])
STARTED = [way for way in ALL if way[1] != "fork"]
STARTED_WAYS = pytest.mark.parametrize(
    ("kind", "method"), STARTED if IN_SOAK else [(NUMPY, "spawn"), (TORCH, "forkserver")]
)
METHODS = pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
TRAINER = """
import os, pathlib, signal, warnings
import headrace
{imports}

class Data:
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        return os.getpid()

def as_list(samples):
    return list(samples)

def note(number, frame):
    arrived.append(number)

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch finds that there are few cores
    arrived = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, note)
    options = dict(num_workers=4, collate_fn=as_list, multiprocessing_context={method!r})
    for attempt in range({attempts}):
        arrived.clear()
        iterator = iter({kind}(Data(), 2, **options))
        pids = set()
        while len(pids) < 4:
            pids.update(next(iterator))
        print("ready", *pids, flush=True)
        while signal.SIGTERM not in arrived:
            next(iterator)
        for _ in range(3):
            pids.update(next(iterator))
        assert len(pids) == 4
        pathlib.Path(f"checkpoint{{attempt}}").write_text(" ".join(map(str, arrived)))
"""


def start(folder: pathlib.Path, kind: str, method: str, attempts: int) -> Script:
    imports = "import headrace.torch" if "torch" in kind else ""
    return Script(folder, TRAINER.format(kind=kind, method=method, imports=imports, attempts=attempts))


def send_to_group(group: int, number: signal.Signals) -> None:
    """Sends it from a process that does not belong to the trainer."""
    subprocess.run(["kill", f"-{int(number)}", "--", f"-{group}"], check=True)


@WAYS
def test_checkpoint_is_written_after_sigterm_to_group(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    attempts = 2 if method == "spawn" else 20  # spawned workers take longer to start
    with start(tmp_path, kind, method, attempts) as script:
        for _ in range(attempts):
            assert script.line().startswith("ready ")
            send_to_group(script.process.pid, signal.SIGTERM)
        assert script.finish() == 0, script.stderr
        assert script.stderr == ""
        for attempt in range(attempts):
            assert (tmp_path / f"checkpoint{attempt}").read_text() == str(int(signal.SIGTERM))
        assert script.left() == []


@WAYS
def test_workers_go_on_after_signals_of_other_processes(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    with start(tmp_path, kind, method, 1) as script:
        pids = list(map(int, script.line().split()[1:]))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            send_to_group(script.process.pid, number)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # this process has started the trainer, not the worker
        send_to_group(script.process.pid, signal.SIGTERM)
        assert script.finish() == 0, script.stderr
        arrived = (tmp_path / "checkpoint0").read_text().split()
        assert sorted(map(int, arrived)) == sorted([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])


INTERRUPTED = """
import asyncio, os, pathlib, time, warnings
import headrace
{imports}

class Data:
    def __len__(self):
        return 16
    def __getitem__(self, index):
        asyncio.run(asyncio.sleep(0))  # sets a handler of SIGINT and takes it back
        if index == 3:
            pathlib.Path("runs").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
        return index

def as_list(samples):
    return list(samples)

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch finds that there are few cores
    options = dict(num_workers=2, collate_fn=as_list, multiprocessing_context={method!r}, persistent_workers=True)
    loader = {kind}(Data(), 2, **options)
    iterator, seen = iter(loader), []
    workers = [one.pid for one in iterator._engine.processes]
    seen += next(iterator)
    try:
        print("ready", flush=True)
        while True:
            seen += next(iterator)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        pathlib.Path("go").touch()
    for batch in iterator:
        seen += batch
    assert seen == list(range(16)), seen
    assert sum(loader, []) == list(range(16))
    assert workers == [one.pid for one in iterator._engine.processes]
    print("right", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "method"),
    [*ALL, (TORCH, "headrace")] if IN_SOAK else [(NUMPY, "fork"), (TORCH, "spawn"), (TORCH, "forkserver")],
)
def test_workers_go_on_after_ctrl_c_to_group(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    """The sample that runs is finished, the batch that was due comes, and persistent workers live on."""
    imports = "import headrace.torch" if "torch" in kind else ""
    with Script(tmp_path, INTERRUPTED.format(kind=kind, method=method, imports=imports)) as script:
        assert script.line() == "ready"
        assert until((tmp_path / "runs").exists)
        send_to_group(script.process.pid, signal.SIGINT)
        assert script.line() == "interrupted"
        assert script.finish() == 0, script.stderr
        assert script.stdout == "right\n"
        assert script.stderr == ""
        assert script.left() == []


STARTING = """
import os, pathlib, signal, time
import headrace
{imports}

if not pathlib.Path("imports").exists() and __name__ != "__main__":
    pathlib.Path("imports").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
    loader = {kind}(range(8), 2, num_workers=1, multiprocessing_context={method!r})
    print(len(list(loader)), flush=True)
"""


@STARTED_WAYS
def test_workers_that_start_go_on_after_sigterm_to_group(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    imports = "import headrace.torch" if "torch" in kind else ""
    with Script(tmp_path, STARTING.format(kind=kind, method=method, imports=imports)) as script:
        assert until((tmp_path / "imports").exists, 100)
        send_to_group(script.process.pid, signal.SIGTERM)
        (tmp_path / "go").touch()
        assert script.line() == "saved"
        assert script.finish() == 0, script.stderr
        assert (script.stdout, script.stderr) == ("4\n", "")


ASKED = """
import os, signal, subprocess, time
import headrace
{imports}

{define}

class Data:
    def __init__(self):
        self.own = Own()
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return act()

def init(*_):
    {init}

def as_is(sample):
    return sample

def send(pid, number):
    subprocess.run(["kill", f"-{{int(number)}}", str(pid)], check=True)

if __name__ == "__main__":
    options = dict(batch_size=None, collate_fn=as_is, num_workers=1, multiprocessing_context={method!r})
    print(*{kind}(Data(), worker_init_fn=init, **options), flush=True)
"""
HANDLES = """
arrived = []
def set_handler():
    signal.signal(signal.SIGTERM, lambda *_: arrived.append("mine"))

class Own:
    def __setstate__(self, state):
        {unpickled}
    def __getstate__(self):
        return {{}}

def act():
    send(os.getpid(), signal.SIGTERM)
    return arrived
"""
FORKS = """
class Own:
    pass

def act():
    ends = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
            os._exit(0)
        send(pid, number)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    child = subprocess.Popen(["sleep", "1000"])
    child.terminate()
    ends.append(child.wait())
    return ends
"""


def ask(folder: pathlib.Path, kind: str, method: str, define: str, init: str = "pass") -> str:
    imports = "import headrace.torch" if "torch" in kind else ""
    return run(folder, ASKED.format(kind=kind, method=method, imports=imports, define=define, init=init))


@WAYS
def test_handler_of_worker_init_fn_wins(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    define = HANDLES.format(unpickled="pass")
    assert ask(tmp_path, kind, method, define, "set_handler()") == "['mine']\n"


@STARTED_WAYS
def test_handler_of_unpickled_dataset_wins(tmp_path: pathlib.Path, kind: str, method: str) -> None:
    assert ask(tmp_path, kind, method, HANDLES.format(unpickled="set_handler()")) == "['mine']\n"


@METHODS
def test_processes_of_worker_end_by_signals(tmp_path: pathlib.Path, method: str) -> None:
    numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
    assert ask(tmp_path, "headrace.Loader", method, FORKS) == f"{[-int(number) for number in numbers]}\n"


ENDS = """
import os, signal, time
import headrace

class Pids:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index:
            time.sleep(1000)
        return os.getpid()

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGUSR1):
        options = dict(batch_size=None, num_workers=1, max_restarts=0, multiprocessing_context={method!r})
        iterator = iter(headrace.Loader(Pids(), **options))
        try:
            os.kill(int(next(iterator)), number)
            list(iterator)
        except RuntimeError as error:
            print(str(error).partition(". ")[0].partition(") ")[2])
"""


@METHODS
def test_worker_ends_by_signal_of_trainer(tmp_path: pathlib.Path, method: str) -> None:
    names = "is killed by signal: Terminated\nis killed by signal: User defined signal 1\n"
    assert run(tmp_path, ENDS.format(method=method)) == names
