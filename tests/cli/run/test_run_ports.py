# SPDX-License-Identifier: Apache-2.0
"""Ports, environment, limits of the machine, runs in runs, and process 1."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest
from jobs import HEADRACE, Job, run

PORT = "from ranks import *\nannounce(f'port.{RANK}', os.environ['MASTER_PORT'])\nmeet()\nawait_all('go')\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


# ---- ports ----


def test_port_is_kept_for_the_store_of_rank_0(tmp_path: Path) -> None:
    """It is the same in all ranks. Clients are refused until rank 0 listens, so they try again; nothing else gets it by
    chance. After the job it is free."""
    with Job(tmp_path, PORT) as job:
        job.await_files("met.0", "met.1")
        port = int(job.read("port.0"))
        assert job.read("port.1") == str(port)
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", port))
            store.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
        (tmp_path / "shared/go").touch()
        assert job.finish().code == 0
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            pass


def test_two_jobs_get_two_ports(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with Job(folders[0], PORT) as one, Job(folders[1], PORT) as other:
        for job in (one, other):
            job.await_files("met.0", "met.1")
        assert one.read("port.0") != other.read("port.0")


def test_port_of_another_program_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(tmp_path, "print('started')\n", "--master-port", str(port))
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"headrace: launch: the port {port} cannot be used: Address already in use; give")
    assert result.stderr.count("\n") == 1


def test_port_of_another_job_is_refused(tmp_path: Path) -> None:
    port = free_port()
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with Job(folders[0], PORT, "--master-port", str(port)) as job:
        job.await_files("met.0", "met.1")
        assert job.read("port.0") == str(port)
        result = run(folders[1], "print('started')\n", "--master-port", str(port))
        assert (result.code, result.stdout) == (2, "")
        assert f"another job of headrace run on this machine uses the port {port}" in result.stderr
        (folders[0] / "shared/go").touch()
        assert job.finish().code == 0
    assert run(folders[1], "", "--master-port", str(port)).code == 0


# ---- environment ----


def test_ranks_get_torchruns_environment(tmp_path: Path) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
        "MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
        "TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS"
    ).split()
    code = (
        f"from ranks import *\nimport json\nannounce(f'env.{{RANK}}', json.dumps([os.environ[n] for n in {names}]))\n"
    )
    with Job(tmp_path, code, "--rdzv-id", "job", "--role", "trainer", nproc=2) as job:
        assert job.finish().code == 0
        for rank in range(2):
            assert json.loads(job.read(f"env.{rank}")) == [
                *(str(rank), str(rank), "2", "2", "0", "1", str(rank), "2", "trainer"),
                *("127.0.0.1", "0", "0", "job", "False", "1", "1"),
            ]


def test_rank_finds_no_trace_of_headrace_in_python(tmp_path: Path) -> None:
    code = """from ranks import *
say(os.environ.get("PYTHONPATH"), "sitecustomize" in sys.modules, [p for p in sys.path if "/proc/" in p])
say(subprocess.run([sys.executable, "-c", "import sys; print(any('/proc/' in p for p in sys.path))"],
                   capture_output=True, text=True).stdout.strip())
"""
    with Job(tmp_path, code, nproc=1) as job:
        result = job.finish()
        assert result.stdout.splitlines() == [f"{job.env['PYTHONPATH']} False []", "False"]


def test_run_in_a_run_gets_its_own_ranks(tmp_path: Path) -> None:
    code = f"""from ranks import *
if len(sys.argv) == 1:
    done = subprocess.run([{HEADRACE!r}, "run", "--nproc", "3", "train.py", "inner"], capture_output=True, text=True)
    say("outer", RANK, WORLD_SIZE, done.returncode, sorted(done.stdout.split()), done.stderr)
else:
    print(f"{{RANK}}/{{WORLD_SIZE}}")
"""
    result = run(tmp_path, code, "--prefix", "never")
    inner = sorted(word for rank in range(3) for word in (f"[{rank}]", f"{rank}/3"))
    assert result.code == 0
    assert sorted(result.stdout.splitlines()) == [f"outer {rank} 2 0 {inner} " for rank in range(2)]


# ---- limits ----


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_lack_of_processes_is_explained(tmp_path: Path) -> None:
    """RLIMIT_NPROC counts the processes of the user, and root has no limit."""
    os.chmod(tmp_path, 0o777)
    for parent in tmp_path.parents[:3]:
        os.chmod(parent, 0o755)
    user, room = 64000 + os.getpid() % 1000, 4

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (room, room))
        os.setgid(user)
        os.setuid(user)

    code = "import time\ntime.sleep(1000)\n"
    words = [HEADRACE, "run", "--nproc", "8", "--grace", "0.5", "--no-python", "sleep", "1000"]
    with Job(tmp_path, code, words=words, preexec_fn=limit) as job:
        result = job.finish()
        job.assert_nothing_is_left()
    assert result.code == 125, result.stderr
    result.assert_says(r"rank \d (failed first: it )?could not be started: Resource temporarily unavailable")


# ---- process 1 ----


def _has_namespaces() -> bool:
    probe = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    return probe.returncode == 0


needs_namespaces = pytest.mark.skipif("not _has_namespaces()", reason="no namespace of processes can be made here")
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@needs_namespaces
def test_process_1_reaps_and_gives_the_code(tmp_path: Path) -> None:
    """It is so in a container whose entry point is headrace. A child is a zombie until process 1 has run again."""
    code = """import contextlib
from ranks import *

def states():
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it is gone
                yield open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[0]

leave_daemons(5, [])
meet()
if RANK == 1:
    end = time.monotonic() + 50
    while "Z" in (found := " ".join(states())) and time.monotonic() < end:
        time.sleep(0.01)
    announce("states", found)
    sys.exit(7)
sleep_forever()
"""
    with Job(tmp_path, code, prefix=CONTAINER) as job:
        result = job.finish()
        assert "Z" not in job.read("states")
        job.assert_nothing_is_left()
    assert result.code == 7
    result.assert_says("rank 1 failed first: it ended with exit code 7")


@needs_namespaces
@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
def test_process_1_ends_at_a_signal(tmp_path: Path, name: str, code: int) -> None:
    """The kernel does not let a signal end process 1, so it exits."""
    script = f"from ranks import *\nmeet()\nif RANK == 0: os.kill(1, signal.SIG{name})\nsleep_forever()\n"
    result = run(tmp_path, script, prefix=CONTAINER)
    assert result.code == code, result.stderr
