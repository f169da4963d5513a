# SPDX-License-Identifier: Apache-2.0
"""Corners of headrace run: what it inherits, wrapped ranks, output that cannot be written, attempts that fail."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from jobs import HEADRACE, Job, name_of, parent_of, run
from processes import until
from terminals import Terminal

RETURNS = "from ranks import *\nmeet()\n"
FAILS = "from ranks import *\nmeet()\nif RANK == 1: sys.exit(7)\nsleep_forever()\n"


def shell_that_ignores(number: int) -> tuple[str, ...]:
    code = f"import os, signal, sys; signal.signal({number}, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    return sys.executable, "-S", "-c", code


# ---- what is inherited ----


def test_ignored_sigchld_does_not_hide_the_ends(tmp_path: Path) -> None:
    with Job(tmp_path, FAILS, "--grace", "1", prefix=shell_that_ignores(signal.SIGCHLD)) as job:
        assert job.finish().code == 7
        job.assert_nothing_is_left()


def test_children_that_were_there_before_are_spared(tmp_path: Path) -> None:
    """A shell that becomes headrace keeps its background jobs as children."""
    words = ["bash", "-c", f"sleep 1000 & exec {HEADRACE} run --nproc 2 --grace 1 train.py"]
    with Job(tmp_path, FAILS, words=words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        assert job.finish().code == 7
        left = job.left()
        assert len(left) == 1 and "sleep" in left[0], left


def test_exec_outlives_the_script_that_has_started_it(tmp_path: Path) -> None:
    code = 'import pathlib, time\ntime.sleep(2.5)\npathlib.Path("shared/end").write_text("")\n'
    words = ["sh", "-c", f"{HEADRACE} exec {sys.executable} train.py & exit 0"]
    with Job(tmp_path, code, words=words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        assert job.finish().code == 0
        job.await_files("end")


def test_exec_of_a_rank_ends_with_its_launcher(tmp_path: Path) -> None:
    code = "from ranks import *\nannounce('begun')\nsleep_forever()\n"
    words = ["sh", "-c", f"{HEADRACE} exec {sys.executable} train.py & wait"]
    with Job(
        tmp_path, code, words=words, env={"RANK": "3"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        job.await_files("begun")
        job.send(signal.SIGKILL)
        job.assert_nothing_is_left()


# ---- ranks that are shells ----


def test_shell_that_goes_on_after_python_is_not_over(tmp_path: Path) -> None:
    """An interpreter that has ended says nothing about the shell that started it."""
    script = f"{sys.executable} -c pass; sleep 3; echo end"
    words = [HEADRACE, "run", "--nproc", "2", "--exit-timeout", "1", "--no-python", "bash", "-c", script]
    with Job(tmp_path, "", words=words) as job:
        result = job.finish(4)
        assert result.code == 0, result.stderr
        assert sorted(result.stdout.splitlines()) == ["[0] end", "[1] end"]


def test_rank_that_fails_when_asked_to_end_is_not_first(tmp_path: Path) -> None:
    """The main program of rank 0 has returned. It waits in an atexit handler, and TERM makes it exit with 1."""
    code = """from ranks import *
import atexit
if RANK == 0:
    def wait():
        announce("waits")
        sleep_forever()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    atexit.register(wait)
else:
    await_all("waits")
    sys.exit(7)
"""
    result = run(tmp_path, code, "--grace", "5")
    assert result.code == 7, result.stderr
    result.assert_says("rank 1 failed first")


# ---- signals ----


def test_signal_that_comes_twice_at_once_counts_once(tmp_path: Path) -> None:
    code = """from ranks import *
def save(*_):
    time.sleep(0.3)
    announce(f"saved.{RANK}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
meet()
sleep_forever()
"""
    with Job(tmp_path, code) as job:
        job.await_files("met.0", "met.1")
        job.send(signal.SIGTERM)
        job.send(signal.SIGTERM)
        assert job.finish().code == 0
        job.await_files("saved.0", "saved.1")


# ---- output ----


def test_stdout_that_does_not_block_loses_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    code = "from ranks import *\nfor i in range(5000): print('line', i)\n"
    with Job(tmp_path, code, stdout=writer) as job:
        os.close(writer)
        with open(reader, encoding="utf-8") as stream:
            assert len(stream.read().splitlines()) == 10000
        assert job.finish().code == 0


def test_full_disk_on_stdout_is_said(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, Job(tmp_path, "from ranks import *\nsay('line')\n", stdout=full) as job:
        result = job.finish()
        assert "headrace: standard output could not be written, and output is lost: No space left" in result.stderr


def test_process_that_writes_on_after_success_is_left(tmp_path: Path) -> None:
    code = "from ranks import *\nsubprocess.Popen(['yes'])\n"
    with Job(tmp_path, code, stdout=subprocess.DEVNULL) as job:
        result = job.finish()
        assert result.code == 0
        assert re.search(r"the ranks have left \d process", result.stderr)


def test_report_to_a_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report")
    with Job(tmp_path, RETURNS, "--report", "report") as job:
        result = job.finish()
        assert result.code == 2
        assert "the report report cannot be written" in result.stderr


# ---- ends ----


def test_helper_that_ends_by_itself_is_not_called_left(tmp_path: Path) -> None:
    """Python's resource tracker ends a moment after the process that has started it."""
    code = """from ranks import *
from multiprocessing import resource_tracker
resource_tracker.ensure_running()
meet()
"""
    result = run(tmp_path, code)
    assert (result.code, result.stderr) == (0, "")


def test_all_threads_that_keep_a_rank_are_named(tmp_path: Path) -> None:
    code = """from ranks import *
import threading
for name in "one", "two": threading.Thread(target=time.sleep, args=(1000,), name=name).start()
"""
    result = run(tmp_path, code, "--exit-timeout", "1", nproc=1)
    assert result.code == 124
    result.assert_says(r"threads that keep it: one \(time.sleep\), two \(time.sleep\)")


def test_attempt_that_cannot_begin_ends_the_job(tmp_path: Path) -> None:
    """The ranks remove the folder of the logs."""
    code = "from ranks import *\nimport shutil\nmeet()\nshutil.rmtree('logs', ignore_errors=True)\nsys.exit(3)\n"
    options = ("--max-restarts", "2", "--log-dir", "logs", "--report", "report.json", "--grace", "1")
    result = run(tmp_path, code, *options)
    assert result.code == 125, result.stderr
    assert "headrace: the ranks cannot be started again: launch: cannot create the log folder" in result.stderr
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 125


def test_front_that_is_killed_restores_the_terminal(tmp_path: Path) -> None:
    code = "from ranks import *\nmeet()\nannounce('begun')\nsleep_forever()\n"
    shell = ("sh", "-c", 'stty -g > shared/before; "$@"; sleep 1000', "sh")
    with Terminal(tmp_path, code, prefix=shell) as terminal:
        job = terminal.job
        job.await_files("begun")
        modes = subprocess.run(["stty", "-g"], stdin=terminal.master, capture_output=True, text=True, check=True)
        assert modes.stdout != job.read("before")
        (front,) = (pid for pid in job.processes() if parent_of(pid) == job.process.pid)
        os.kill(front, signal.SIGKILL)
        assert until(lambda: not any("train.py" in name_of(pid) for pid in job.processes()[1:]))
        modes = subprocess.run(["stty", "-g"], stdin=terminal.master, capture_output=True, text=True, check=True)
        assert modes.stdout == job.read("before")
