# SPDX-License-Identifier: Apache-2.0
"""Signals to headrace, and the death of each of its processes: what the ranks see, the exit code, and what is left."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from jobs import SLACK, Job, parent_of, run, state_of
from loaders import needs_failpoints
from processes import until

SLEEP = "from ranks import *\nmeet()\nsleep_forever()\n"
DEAF = "from ranks import *\nignore(*DEAF)\nmeet()\nsleep_forever()\n"
KILLS = 300 if os.environ.get("HEADRACE_SOAK") == "1" else 5
BOTH = ("met.0", "met.1")
CHECKPOINT = """from ranks import *
def save(*_):
    announce(f"saved.{RANK}")
    sys.exit(CODE)
signal.signal(signal.SIGTERM, save)
meet()
sleep_forever()
"""


# ---- signals that end the job ----


@pytest.mark.parametrize("code", [0, 3])
def test_ranks_save_at_sigterm(tmp_path: Path, code: int) -> None:
    with Job(tmp_path, CHECKPOINT.replace("CODE", str(code))) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGTERM)
        result = job.finish()
        assert (job.read("saved.0"), job.read("saved.1")) == ("", "")
        job.assert_nothing_is_left()
    assert result.code == (0 if code == 0 else 143), result.stderr
    if code == 0:
        assert result.stderr == ""


@pytest.mark.parametrize(("number", "code"), [("TERM", 143), ("HUP", 129), ("INT", -2), ("QUIT", 131)])
def test_signal_ends_ranks_and_gives_the_code(tmp_path: Path, number: str, code: int) -> None:
    with Job(tmp_path, SLEEP, env={"PYTHONFAULTHANDLER": ""}) as job:
        job.await_files(*BOTH)
        job.send(getattr(signal, f"SIG{number}"))
        result = job.finish()
        job.assert_nothing_is_left()
    assert result.code == code, result.stderr
    result.assert_says(r"^headrace: signal \d+ \(.*\) came after [0-9.]+ s, and was passed on to the ranks")


def test_second_signal_kills_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, DEAF) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGINT)
        time.sleep(0.4)  # one that comes sooner means the same
        assert job.process.poll() is None
        begun = time.monotonic()
        job.send(signal.SIGINT)
        result = job.finish()
        assert time.monotonic() - begun < SLACK * 0.4
        job.assert_nothing_is_left()
    assert result.code == -signal.SIGINT
    result.assert_says("rank 0 did not end and was killed after", "rank 1 did not end and was killed after")


def test_ranks_are_killed_when_the_time_to_shut_down_is_over(tmp_path: Path) -> None:
    with Job(tmp_path, DEAF, "--shutdown-timeout", "0.5") as job:
        job.await_files(*BOTH)
        job.send(signal.SIGTERM)
        result = job.finish(1)
        job.assert_nothing_is_left()
    assert result.code == 143


def test_user_signals_reach_ranks_and_change_nothing_else(tmp_path: Path) -> None:
    code = """from ranks import *
for number in signal.SIGUSR1, signal.SIGUSR2:
    signal.signal(number, lambda number, _: announce(f"{number}.{RANK}"))
meet()
await_all("10.0", "10.1", "12.0", "12.1", "go")
"""
    with Job(tmp_path, code) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGUSR1)
        job.await_files("10.0", "10.1")
        job.send(signal.SIGUSR2)
        job.await_files("12.0", "12.1")
        (tmp_path / "shared/go").touch()
        result = job.finish()
    assert (result.code, result.stderr) == (0, "")


def test_named_user_signal_ends_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, SLEEP, "--signals-to-handle", "SIGUSR1") as job:
        job.await_files(*BOTH)
        job.send(signal.SIGUSR1)
        assert job.finish().code == 138


def test_children_of_ranks_get_no_signal(tmp_path: Path) -> None:
    """A data worker must live while its trainer writes a checkpoint."""
    code = """from ranks import *
child = subprocess.Popen(["sleep", "1000"])
def save(*_):
    time.sleep(0.1)
    announce(f"child.{RANK}", str(child.poll()))
    child.kill()
    sys.exit()
signal.signal(signal.SIGTERM, save)
meet()
sleep_forever()
"""
    with Job(tmp_path, code) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGTERM)
        assert job.finish().code == 0
        assert (job.read("child.0"), job.read("child.1")) == ("None", "None")


# ---- nohup, and shells ----


def test_nohup_outlives_sighup(tmp_path: Path) -> None:
    code = (
        "from ranks import *\nmeet()\nawait_all('go')\nsay('end', signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\n"
    )
    with Job(tmp_path, code, "--shutdown-timeout", "0", prefix=("nohup",)) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGHUP)
        time.sleep(0.3)  # so long the ranks live, which would be killed at once
        (tmp_path / "shared/go").touch()
        result = job.finish()
    assert result.code == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] end True", "[1] end True"]


def test_background_job_of_a_script_ignores_ctrl_c(tmp_path: Path) -> None:
    """A shell without job control starts `command &` with SIGINT ignored. The ranks handle it."""
    code = """from ranks import *
announce(f"int.{RANK}", str(signal.getsignal(signal.SIGINT) == signal.default_int_handler))
meet()
sleep_forever()
"""
    with Job(tmp_path, code, prefix=("sh", "-c", '"$@" & echo $! > shared/pid; wait $!', "sh")) as job:
        job.await_files(*BOTH, "pid")
        front = int(job.read("pid"))
        assert job.read("int.0") == "True"
        os.kill(front, signal.SIGINT)
        time.sleep(0.2)
        assert state_of(front) == "S"
        os.kill(front, signal.SIGTERM)
        assert job.finish().code == 143
        job.assert_nothing_is_left()


# ---- headrace's processes are killed or stopped ----

DAEMONS = """from ranks import *
ignore(*DEAF)
leave_daemons(20)
meet()
sleep_forever()
"""


def test_killed_front_leaves_no_process(tmp_path: Path) -> None:
    with Job(tmp_path, DAEMONS) as job:
        job.await_files(*BOTH, expected_s=4)
        assert len(job.processes()) == 2 + 2 + 40
        job.send(signal.SIGKILL)
        begun = time.monotonic()
        assert job.left() == []
        assert time.monotonic() - begun < SLACK * 0.2


def test_killed_guardian_leaves_no_process(tmp_path: Path) -> None:
    with Job(tmp_path, DAEMONS) as job:
        job.await_files(*BOTH, expected_s=4)
        os.kill(job.guardian(), signal.SIGKILL)
        result = job.finish()
        job.assert_nothing_is_left()
    assert result.code == 125
    result.assert_says(
        "^headrace: the process that watches the ranks was killed, and the ranks with it\n  40 processes that"
    )


def test_process_killed_at_random_leaves_no_process(tmp_path: Path) -> None:
    """One of the front, the guardian, the ranks and their children is killed while the job starts, runs or ends."""
    for number in range(KILLS):
        chance = random.Random(number)
        with Job(tmp_path, PASSES["failure"], "--grace", "0.1") as job:
            time.sleep(chance.uniform(0, 0.5))
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(job.processes()), signal.SIGKILL)
            code = job.finish().code
            assert code in (1, 7, 125, 137, -signal.SIGKILL), (number, code)
            assert job.left() == [], number


def test_stopped_front_goes_on_where_it_was(tmp_path: Path) -> None:
    """Ranks write more than a pipe holds, and one fails, while the front is stopped."""
    code = """from ranks import *
meet()
await_all("stopped")
if RANK == 1: os._exit(7)
for i in range(30000): print("line", i)
"""
    with Job(tmp_path, code, "--grace", "20") as job:
        job.await_files(*BOTH)
        ranks = [pid for pid in job.processes() if parent_of(pid) == job.guardian()]
        job.send(signal.SIGSTOP)
        assert until(lambda: state_of(job.process.pid) == "T")
        (tmp_path / "shared/stopped").touch()
        assert until(lambda: any(state_of(pid) in "Z?" for pid in ranks))
        job.send(signal.SIGCONT)
        result = job.finish()
        job.assert_nothing_is_left()
    assert result.code == 7
    lines = [line for line in result.stdout.splitlines() if line.startswith("[0] line ")][
        :-1
    ]  # SIGTERM may cut the last
    assert lines == [f"[0] line {i}" for i in range(len(lines))]


HEADER = Path(__file__).parents[3] / "src/os/failpoints.h"
POINTS = re.findall(r'^ *POINT\(\w+, "([\w.]+)", (LAUNCH|GUARDIAN|FORKED)\)', HEADER.read_text(), re.MULTILINE)
# Both leave a process. Together they pass each point; a point that they do not pass fails its test.
PASSES = {
    "failure": """from ranks import *
ignore(*DEAF)
leave_daemons(1)
meet()
if RANK == 1: sys.exit(7)
sleep_forever()
""",
    "success": "from ranks import *\nmeet()\n",
}


def test_points_are_found() -> None:
    assert {side for _, side in POINTS} == {"LAUNCH", "GUARDIAN", "FORKED"}


def stopped_of(job: Job) -> list[int]:
    return [pid for pid in job.processes() if state_of(pid) == "T"]


@needs_failpoints
@pytest.mark.parametrize(("point", "side"), POINTS)
def test_front_killed_at_a_point_leaves_no_process(tmp_path: Path, point: str, side: str) -> None:
    for code in PASSES.values():
        with Job(tmp_path, code, "--grace", "0.2", env={"HEADRACE_STOP": f"{point}:{int(signal.SIGSTOP)}"}) as job:
            stopped: list[int] = []
            until(lambda: stopped_of(job) or job.process.poll() is not None, SLACK * 2)
            stopped = stopped_of(job)
            if not stopped:
                continue
            assert side == "FORKED" or len(stopped) == 1
            job.send(signal.SIGKILL)
            if side == "GUARDIAN" and stopped != [job.process.pid]:
                os.kill(stopped[0], signal.SIGCONT)  # it can do nothing as long as it is stopped
            assert job.left() == []
        return
    pytest.fail("no run passes this point")


@needs_failpoints
@pytest.mark.parametrize(("point", "side"), POINTS)
def test_process_killed_at_a_point_leaves_no_process(tmp_path: Path, point: str, side: str) -> None:
    for code in PASSES.values():
        env = {"HEADRACE_STOP": f"{point}:{int(signal.SIGKILL)}"}
        with Job(tmp_path, code, "--grace", "0.2", env=env) as job:
            result = job.finish()
            assert job.left() == []
        if result.code != 0 or side == "LAUNCH":
            break
    if side == "LAUNCH":
        assert result.code == -signal.SIGKILL
    elif side == "GUARDIAN":
        assert result.code in (7, 125), result.stderr
        assert result.summary[-1] == f"headrace: exit code {result.code}"
    else:
        assert result.code == 137
        result.assert_says("failed first: it was ended by signal 9")


def test_sigchld_that_is_ignored_at_the_start_changes_nothing(tmp_path: Path) -> None:
    """The kernel would throw the exit codes away."""
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    code = "from ranks import *\nmeet()\nif RANK == 1: sys.exit(7)\nsleep_forever()\n"
    result = run(tmp_path, code, prefix=(sys.executable, "-c", ignore))
    assert result.code == 7, result.stderr
