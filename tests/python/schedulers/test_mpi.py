# SPDX-License-Identifier: Apache-2.0
"""Ranks of Open MPI, and of MPICH and Intel MPI, which both have Hydra. Each is a child of `headrace exec`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import alive, until
from ranks_of_loaders import (
    FAIL,
    HEADRACE,
    SAVE,
    TRAIN,
    assert_ranks_agree,
    assert_under_exec,
    await_files,
    clean,
    command_of,
    what_ranks_saw,
)

BUILD = pathlib.Path(os.environ.get("HEADRACE_SCHEDULERS", "."))
AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
SOURCES = {
    "openmpi": "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
    "mpich": "PMI_RANK, PMI_SIZE",
    "impi": "PMI_RANK, PMI_SIZE",
}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["openmpi", "mpich", "impi"])
def kind(request: pytest.FixtureRequest) -> str:
    if not (BUILD / request.param / "bin/mpiexec").exists():
        pytest.skip(f"{request.param} is not installed: make test-schedulers does it")
    name: str = request.param
    return name


@contextlib.contextmanager
def started(kind: str, ranks: int, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    more = ["--oversubscribe"] if kind == "openmpi" else []  # more ranks than cores
    launcher = [str(BUILD / kind / "bin/mpiexec"), *more, "-n", str(ranks), *command]
    pipe, environment = subprocess.PIPE, clean(**AS_ROOT)
    with subprocess.Popen(
        launcher, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def pids_of(folder: pathlib.Path, *names: str) -> list[int]:
    await_files(folder, *names)
    assert until(lambda: all((folder / name).read_text() for name in names))
    return [int((folder / name).read_text()) for name in names]


def assert_ended(pids: list[int], seconds: float = 20) -> None:
    assert until(lambda: not any(map(alive, pids)), seconds), pids


def test_ranks_find_their_place_and_agree(kind: str, tmp_path: pathlib.Path) -> None:
    with started(kind, 3, command_of(tmp_path, TRAIN)) as launcher:
        output, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, (output, errors)
    seen = what_ranks_saw(tmp_path, 3)
    assert {rank["source"] for rank in seen} == {f"environment: {SOURCES[kind]}"}
    assert sorted(rank["local"] for rank in seen) == [[number, 3] for number in range(3)]
    assert_ranks_agree(seen)
    assert_under_exec(seen)


def test_failure_is_explained_and_nothing_is_left(kind: str, tmp_path: pathlib.Path) -> None:
    """Hydra lets the other ranks go on if they do not use MPI: then it ends them here when it is asked to."""
    with started(kind, 2, command_of(tmp_path, FAIL)) as launcher:
        pids = pids_of(tmp_path, "pid.0", "pid.1", "daemon")
        assert_ended(pids[1:])
        if kind != "openmpi":
            launcher.terminate()
        _, errors = launcher.communicate(timeout=100)
    assert launcher.returncode == 7 or kind != "openmpi", errors
    assert "headrace: the command ended with exit code 7" in errors
    assert_ended(pids)


def test_ranks_end_when_the_launcher_is_killed(kind: str, tmp_path: pathlib.Path) -> None:
    """Without headrace exec, some of them live on."""
    with started(kind, 2, command_of(tmp_path, FAIL.replace("sys.exit(7)", "time.sleep(1000)"))) as launcher:
        pids = pids_of(tmp_path, "pid.0", "pid.1", "daemon")
        launcher.kill()
        launcher.wait(100)
        assert_ended(pids, 60)


def test_signal_reaches_each_rank_once(kind: str, tmp_path: pathlib.Path) -> None:
    """Open MPI passes SIGUSR1 on. After SIGTERM it kills the ranks within 0.3 s, also without headrace."""
    with started(kind, 2, command_of(tmp_path, SAVE)) as launcher:
        await_files(tmp_path, "ready.0", "ready.1")
        launcher.send_signal(signal.SIGUSR1 if kind == "openmpi" else signal.SIGTERM)
        await_files(tmp_path, "checkpoint.0", "checkpoint.1", seconds=30)
        launcher.communicate(timeout=100)
    assert [(tmp_path / f"checkpoint.{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_pmix_without_a_size_is_refused(tmp_path: pathlib.Path) -> None:
    """prterun starts programs that need not be of Open MPI, and does not say how many there are."""
    prterun = BUILD / "openmpi/bin/prterun"
    if not prterun.exists():
        pytest.skip("openmpi is not installed: make test-schedulers does it")
    code = "from headrace._ranks.where import find; find()"
    command = [str(prterun), "-n", "1", HEADRACE, "exec", sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **AS_ROOT}, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "PMIX_RANK is '0', but no variable says how many ranks there are" in done.stderr


def test_example_in_c_reads_each_record_once(tmp_path: pathlib.Path) -> None:
    compiler = BUILD / "mpich/bin/mpicc"
    if not compiler.exists():
        pytest.skip("mpich is not installed: make test-schedulers does it")
    root = pathlib.Path(__file__).resolve().parents[3]
    program = tmp_path / "mpi_frozen"
    library = [str(root / "build/dev/src/libheadrace.a"), "-lz", "-ljpeg", "-lm", "-lpthread", "-ldl"]
    command = [compiler, "-std=c11", "-Wall", "-Werror", f"-I{root}/include", root / "examples/mpi_frozen.c", *library]
    subprocess.run([*command, "-o", program], check=True)
    done = subprocess.run(
        [BUILD / "mpich/bin/mpiexec", "-n", "4", program, tmp_path / "squares"],
        env=clean(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.partition(" records")[0] for line in lines[:4]] == [f"rank {n} of 4 read 250" for n in range(4)]
    assert lines[4] == f"sum of all: {sum(number * number for number in range(1000))}"
