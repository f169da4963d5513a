# SPDX-License-Identifier: Apache-2.0
"""Restarts after failures, and what is left after success."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from jobs import Job, name_of, run

# ---- restarts ----

COUNTED = """from ranks import *
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
announce(f"{count}.{RANK}", os.environ["MASTER_PORT"] + " " + os.environ["TORCHELASTIC_MAX_RESTARTS"])
meet(f"met.{count}")
if RANK == 1 and count < FAILS: raise ValueError(f"attempt {count}")
if count < FAILS: sleep_forever()
"""


def test_all_ranks_are_started_again_with_another_port(tmp_path: Path) -> None:
    with Job(tmp_path, COUNTED.replace("FAILS", "2"), "--max-restarts", "3", "--report", "report.json") as job:
        result = job.finish(3)
        job.assert_nothing_is_left()
        ports = [job.read(f"{count}.{rank}") for count in range(3) for rank in range(2)]
    assert result.code == 0, result.stderr
    assert len(set(ports)) == 3 and all(port.endswith(" 3") for port in ports)
    assert result.stderr.count("headrace: rank 1 failed first") == 2
    assert "headrace: all ranks are started again; 2 restarts are left" in result.stderr
    assert "headrace: all ranks are started again; 1 restart is left" in result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [attempt["reason"] for attempt in report["attempts"]] == ["failure", "failure", "success"]


def test_restarts_come_to_an_end(tmp_path: Path) -> None:
    result = run(tmp_path, COUNTED.replace("FAILS", "9"), "--max-restarts", "2", "--log-dir", "logs", "-t", "3")
    assert result.code == 1
    assert result.stderr.count("are started again") == 2
    assert "ValueError: attempt 2" in result.stderr
    assert result.stderr.splitlines()[-1] == "headrace: exit code 1"
    assert sorted(path.name for path in tmp_path.glob("logs/*/*")) == ["attempt_0", "attempt_1", "attempt_2"]


def test_signal_ends_a_job_that_may_restart(tmp_path: Path) -> None:
    code = "from ranks import *\nmeet()\nsleep_forever()\n"
    for number, wanted in ((signal.SIGTERM, 143), (signal.SIGINT, -2)):
        with Job(tmp_path, code, "--max-restarts", "5") as job:
            job.await_files("met.0", "met.1")
            for name in os.listdir(tmp_path / "shared"):
                (tmp_path / "shared" / name).unlink()
            job.send(number)
            assert job.finish().code == wanted
            assert os.listdir(tmp_path / "shared") == []


def test_signal_while_ranks_end_prevents_a_restart(tmp_path: Path) -> None:
    code = """from ranks import *
signal.signal(signal.SIGTERM, lambda *_: announce("told"))
meet()
if RANK == 1: sys.exit(7)
sleep_forever()
"""
    with Job(tmp_path, code, "--max-restarts", "5", "--grace", "50") as job:
        job.await_files("told")
        job.send(signal.SIGTERM)
        result = job.finish()
        job.assert_nothing_is_left()
    assert "are started again" not in result.stderr
    assert result.code == 7


# ---- success ----


def test_daemon_is_left_and_named_after_success(tmp_path: Path) -> None:
    """It holds stdout, which must not keep headrace."""
    code = """from ranks import *
if RANK == 0:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    announce("child", str(child.pid))
meet()
"""
    with (tmp_path / "out").open("wb") as out:
        with Job(tmp_path, code, stdout=out) as job:
            result = job.finish()
            child = int(job.read("child"))
            assert name_of(child) == "sleep 1000 "
            assert result.code == 0
            note = f"headrace: note: the ranks have left 1 process running: sleep (pid {child})"
            assert result.stderr == f"{note} (headrace help processes-left)\n"
            assert [name_of(pid) for pid in job.processes()] == ["sleep 1000 "]


def test_success_says_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "from ranks import *\nmeet()\n", nproc=4)
    assert (result.code, result.stdout, result.stderr) == (0, "", "")


def test_rank_that_returns_early_is_no_failure(tmp_path: Path) -> None:
    code = "from ranks import *\nif RANK == 1: time.sleep(0.5)\nannounce(f'end.{RANK}')\n"
    result = run(tmp_path, code, nproc=2)
    assert (result.code, result.stderr) == (0, "")
