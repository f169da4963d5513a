# SPDX-License-Identifier: Apache-2.0
"""The check that runs after each test finds what a test has left, and nothing that another program has made."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import warm
from leftovers import SHARED, VARIABLE, Leftovers, describe
from processes import alive, parent_of, until

ROOT = pathlib.Path(__file__).parents[2]
DEADLINE_S = 60

# Makes files in /dev/shm, named after its own pid if the name has a {pid}, and holds them until stdin ends.
HOLD = """
import os, sys
names = [name.format(pid=os.getpid()) for name in sys.argv[1:]]
files = [open("/dev/shm/" + name, "w") for name in names]
print(os.getpid(), *names, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leftovers() -> Iterator[Leftovers]:
    found = Leftovers(pathlib.Path(tempfile.gettempdir()))
    yield found
    found.close()


def new(leftovers: Leftovers, act: Callable[[], Any], patience_s: float = 0.3) -> tuple[Any, dict[str, set[Any]]]:
    """Returns what an action returns, and what it leaves."""
    before = leftovers.state()
    result = act()
    return result, leftovers.left(before, patience_s)


@contextlib.contextmanager
def holder(*names: str, is_foreign: bool = False) -> Iterator[list[str]]:
    """A process that holds new files in /dev/shm: of this run, or of no run. Gives its pid and the files' names."""
    environment, prefix = dict(os.environ), []
    if is_foreign:
        del environment[VARIABLE]
        prefix = ["setsid", "--fork"]  # which makes it an orphan
    command = [*prefix, sys.executable, "-c", HOLD, *names]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        pid, *made = process.stdout.readline().split()
        yield [pid, *made]
        process.stdin.close()
        assert until(lambda: not alive(int(pid)))
    for name in made:
        (SHARED / name).unlink()


MINE = f"leftovers-{os.getpid()}"  # another run of this test may be at the same place
NAMES = ["torch_{pid}_1_0", "headrace-{pid}-abc", "pym-{pid}-abc", f"psm_{MINE}", f"sem.mp-{MINE}"]


def test_shared_file_of_a_process_of_the_run_is_found(leftovers: Leftovers) -> None:
    before = leftovers.state()
    with holder(*NAMES) as (_, *made):
        assert leftovers.left(before, 0.3)["files in /dev/shm"] == set(made)


def test_shared_file_of_a_dead_process_is_found(leftovers: Leftovers) -> None:
    before = leftovers.state()
    with holder(*NAMES) as (pid, *made):
        leftovers.state()
        os.kill(int(pid), signal.SIGKILL)
        assert until(lambda: not alive(int(pid)))
        assert leftovers.left(before, 0.3)["files in /dev/shm"] == set(made)


def test_shared_file_of_another_program_is_not_found(leftovers: Leftovers) -> None:
    with holder(*NAMES, is_foreign=True) as (_, *made):
        assert all((SHARED / name).exists() for name in made)
        assert leftovers.state()["files in /dev/shm"] & set(made) == set()


def test_shared_file_with_another_name_is_not_found(leftovers: Leftovers) -> None:
    with holder(f"{MINE}-tmp") as (_, name):
        assert name not in leftovers.state()["files in /dev/shm"]


def test_temporary_file_is_found(leftovers: Leftovers) -> None:
    (descriptor, path), left = new(leftovers, tempfile.mkstemp)
    os.close(descriptor)
    os.unlink(path)
    assert left["temporary files"] == {os.path.basename(path)}


def test_child_is_found(leftovers: Leftovers) -> None:
    before = leftovers.state()
    with holder() as (pid,):
        left = leftovers.left(before, 0.3)
        assert left["processes"] == {int(pid)}
        assert f"process {pid}, child of {os.getpid()}, state " in describe(left)


def test_orphan_is_found(leftovers: Leftovers) -> None:
    before = leftovers.state()
    code = "import os, sys\nif os.fork(): os._exit(0)\nos.setsid(); print(os.getpid(), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        pid = int(process.stdout.readline())
        process.wait()
        assert leftovers.left(before, 0.3)["processes"] == {pid}
        process.stdin.close()
        assert until(lambda: not alive(pid))


def test_adopted_process_that_has_ended_is_not_found(leftovers: Leftovers) -> None:
    """Pytest becomes the parent of orphans while it asks a warm server for a process, and has to reap them."""
    before = leftovers.state()
    here, there = socket.socketpair()
    code = "import subprocess; child = subprocess.Popen(['sleep', '1000']); print(child.pid, flush=True); input()"
    command = [sys.executable, "-c", code]
    with there, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        orphan = int(parent.stdout.readline())

        def answer() -> None:
            there.recv(1000)
            parent.kill()
            until(lambda: parent_of(orphan) == os.getpid(), DEADLINE_S)
            there.send(b"1\n!\n")

        thread = threading.Thread(target=answer)
        thread.start()
        server = warm.Server(here.detach(), None)
        server.start({}, [])
        server.close()
        thread.join()
    assert leftovers.left(before, 0.3)["processes"] == {orphan}
    os.kill(orphan, signal.SIGKILL)
    assert leftovers.left(before, DEADLINE_S) == {}


ORPHANS = r"""
import os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
connection.recv(1000)
ready, told = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while os.getppid() != int(sys.argv[2]):
            time.sleep(0.001)
        os.write(told, b"%d" % os.getpid())
    os._exit(0)
os.wait()
connection.send(b"1\n" + os.read(ready, 9) + b"!\n")
"""


def test_orphan_that_was_born_meanwhile_is_not_found(leftovers: Leftovers) -> None:
    before = leftovers.state()
    here, there = socket.socketpair()
    command = [sys.executable, "-c", ORPHANS, str(there.fileno()), str(os.getpid())]
    with subprocess.Popen(command, pass_fds=[there.fileno()]):
        there.close()
        server = warm.Server(here.detach(), None)
        server.start({}, [])
        server.close()
    assert leftovers.left(before, DEADLINE_S) == {}


def test_process_of_another_program_is_not_found(leftovers: Leftovers) -> None:
    with holder(is_foreign=True) as (pid,):
        assert int(pid) not in leftovers.state()["processes"]


def test_socket_of_a_loader_is_found(leftovers: Leftovers) -> None:
    name = f"headrace/{os.getuid()}/{os.getpid()}/leftovers"
    with socket.socket(socket.AF_UNIX) as bound:
        _, left = new(leftovers, lambda: bound.bind("\0" + name))
    assert left["sockets"] == {"@" + name}


@pytest.mark.parametrize("kind", ["socket", "pipe", "file"])
def test_descriptor_is_found(leftovers: Leftovers, kind: str) -> None:
    make: dict[str, Callable[[], tuple[int, ...]]] = {
        "socket": lambda: tuple(one.detach() for one in socket.socketpair()),
        "pipe": os.pipe,
        "file": lambda: (os.open(os.devnull, os.O_RDONLY),),
    }
    opened, left = new(leftovers, make[kind])
    for descriptor in opened:
        os.close(descriptor)
    assert {descriptor for descriptor, _ in left["descriptors"]} == set(opened)


def test_mapping_is_found(leftovers: Leftovers) -> None:
    def make() -> mmap.mmap:
        descriptor = os.memfd_create("headrace-leftovers")
        os.truncate(descriptor, mmap.PAGESIZE)
        mapping = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)
        return mapping

    mapping, left = new(leftovers, make)
    mapping.close()
    assert left["mappings"] == {"/memfd:headrace-leftovers"}


def test_blocked_signal_is_found(leftovers: Leftovers) -> None:
    before, left = new(leftovers, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert left["blocked signals"] == {signal.SIGUSR2}


def test_leftovers_are_empty_after_a_clean_test(leftovers: Leftovers) -> None:
    def act() -> None:
        with holder(*NAMES, "leftovers-test-tmp"), tempfile.NamedTemporaryFile():
            pass

    assert new(leftovers, act, patience_s=10.0)[1] == {}


ENDLESS = """
import os, time

def test_endless():
    print(os.environ["HEADRACE_CACHE"], file=open({path!r}, "w"), flush=True)
    time.sleep({seconds})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_run_leaves_no_folder_of_caches(number: int, tmp_path: pathlib.Path, inner_pytest: Any) -> None:
    path = tmp_path / "folder"
    (tmp_path / "test_endless.py").write_text(ENDLESS.format(path=str(path), seconds=DEADLINE_S))
    command, environment = inner_pytest
    with subprocess.Popen([*command, str(tmp_path)], env=environment, stdout=subprocess.DEVNULL) as process:
        assert until(lambda: path.exists() and path.read_text().endswith("\n"), DEADLINE_S)
        folder = pathlib.Path(path.read_text().strip())
        assert folder.parent == SHARED and folder.is_dir()
        process.send_signal(number)
    assert until(lambda: not folder.exists(), DEADLINE_S)
