# SPDX-License-Identifier: Apache-2.0
"""Jobs in a terminal: debuggers, prompts and keys work as without a launcher."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from jobs import HEADRACE, state_of
from processes import until
from terminals import Terminal

DEBUGGED = """from ranks import *
value = 40
if RANK == 0:
    breakpoint()
    announce("done")
await_all("done")
say("value", value + RANK)
"""


def test_debugger_works_on_rank_0(tmp_path: Path) -> None:
    with Terminal(tmp_path, DEBUGGED, env={"HOME": str(tmp_path)}) as terminal:
        terminal.await_text(r"\(Pdb\) $")
        terminal.type("value + 2\n")
        terminal.await_text(r"^\[0\] 42\r+$")
        terminal.await_text(r"\(Pdb\) $")
        terminal.type("!value = 50\n")
        terminal.await_text(r"\(Pdb\) $")
        terminal.type("c\n")
        assert terminal.finish() == 0, terminal.screen
        assert "value 50" in terminal.screen and "[1] value 41" in terminal.screen
        assert terminal.has_echo()
        terminal.job.assert_nothing_is_left()


def test_quitting_the_debugger_ends_the_job(tmp_path: Path) -> None:
    with Terminal(tmp_path, DEBUGGED, env={"HOME": str(tmp_path)}) as terminal:
        terminal.await_text(r"\(Pdb\) $")
        terminal.type("q\n")
        if sys.version_info >= (3, 14):
            terminal.await_text(r"\[y/n\] $")
            terminal.type("y\n")
        assert terminal.finish() == 1, terminal.screen
        assert "rank 0 failed first: it ended with exit code 1" in terminal.screen
        terminal.job.assert_nothing_is_left()


@pytest.mark.parametrize("nproc", [1, 2])
def test_prompts_read_the_keyboard(tmp_path: Path, nproc: int) -> None:
    code = """from ranks import *
import getpass
if RANK == 0:
    name = input("name: ")
    secret = getpass.getpass("secret: ")
    say(f"<{name}> <{secret[::-1]}> {sys.stdin.isatty()} {sys.stdout.isatty()}")
    say([line for line in sys.stdin])
else:
    say(f"other <{sys.stdin.read()}> {sys.stdin.isatty()}")
"""
    with Terminal(tmp_path, code, nproc=nproc) as terminal:
        terminal.await_text("name: ")
        terminal.type("wrog\x7f\x7fong\n")  # two backspaces
        terminal.await_text("secret: ")
        terminal.type("abc\n")
        terminal.await_text("<wrong> <cba> True True")
        terminal.type("one\ntwo\n\x04")
        terminal.await_text(r"\['one\\n', 'two\\n'\]")
        assert terminal.finish() == 0, terminal.screen
        assert "abc" not in terminal.screen
        assert terminal.has_echo()


def test_ctrl_c_ends_the_job_by_the_signal(tmp_path: Path) -> None:
    code = """from ranks import *
try:
    meet()
    sleep_forever()
finally:
    announce(f"cleaned.{RANK}")
"""
    with Terminal(tmp_path, code) as terminal:
        terminal.job.await_files("met.0", "met.1")
        terminal.type("\x03")
        assert terminal.finish() == -signal.SIGINT, terminal.screen
        terminal.job.await_files("cleaned.0", "cleaned.1")
        assert terminal.has_echo()
        terminal.job.assert_nothing_is_left()


def test_ctrl_c_that_a_script_catches_is_no_failure(tmp_path: Path) -> None:
    code = """from ranks import *
try:
    meet()
    sleep_forever()
except KeyboardInterrupt:
    say("stopping early")
"""
    with Terminal(tmp_path, code) as terminal:
        terminal.job.await_files("met.0", "met.1")
        terminal.type("\x03")
        assert terminal.finish() == 0, terminal.screen
        assert terminal.screen.count("stopping early") == 2
        assert "headrace:" not in terminal.screen


def test_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with Terminal(tmp_path, "from ranks import *\nignore(*DEAF)\nmeet()\nsleep_forever()\n") as terminal:
        terminal.job.await_files("met.0", "met.1")
        terminal.type("\x03")
        terminal.await_text(r"headrace: note: 2 ranks are still running, and killed in \d+ s; .*Ctrl-C", 3)
        terminal.type("\x03")
        assert terminal.finish(0.5) == -signal.SIGINT
        terminal.job.assert_nothing_is_left()


def test_ctrl_z_stops_all_and_the_shell_continues_them(tmp_path: Path) -> None:
    code = """from ranks import *
child = subprocess.Popen(["sleep", "1000"])
announce(f"pid.{RANK}", f"{os.getpid()} {child.pid}")
await_all("go")
if RANK == 0: say("<" + input("key: ") + ">")
child.kill()
"""
    with Terminal(
        tmp_path, code, words=["bash", "--norc", "--noediting", "-i"], env={"PS1": "ready> ", "PS2": ""}
    ) as terminal:
        job = terminal.job
        terminal.await_text("ready> ")
        terminal.type(f"{HEADRACE} run --nproc 2 train.py\n")
        job.await_files("pid.0", "pid.1")
        pids = [int(pid) for rank in (0, 1) for pid in job.read(f"pid.{rank}").split()]
        for _ in range(2):
            terminal.type("\x1a")
            terminal.await_text("Stopped")
            terminal.await_text("ready> ")
            assert until(lambda: {state_of(pid) for pid in pids} == {"T"})
            terminal.type("bg\n")
            terminal.await_text("ready> ")
            assert until(lambda: {state_of(pid) for pid in pids} == {"S"})
            terminal.type("fg\n")
            terminal.await_text("train.py")
        (tmp_path / "shared/go").touch()
        terminal.await_text("key: $")
        terminal.type("k\n")
        terminal.await_text("<k>")
        terminal.await_text("ready> ")
        terminal.type("echo code $?\n")
        terminal.await_text("^code 0")
        terminal.type("exit\n")
        terminal.finish()
        assert job.left() == []


def test_job_in_the_background_of_a_shell_does_not_stop(tmp_path: Path) -> None:
    """Another program has the keyboard, which a job in the background must not read."""
    code = "from ranks import *\nsay('output', RANK)\nawait_all('go')\n"
    with Terminal(tmp_path, code, words=["bash", "--norc", "--noediting", "-i"], env={"PS1": "ready> "}) as terminal:
        terminal.await_text("ready> ")
        terminal.type(f"{HEADRACE} run --nproc 2 train.py &\n")
        terminal.await_text("output 0")
        terminal.type("echo mine\n")
        terminal.await_text("^mine")
        terminal.type("touch shared/go; wait; echo code $?\n")
        terminal.await_text("^code 0")
        terminal.type("exit\n")
        terminal.finish()


def test_hangup_of_the_terminal_ends_the_job(tmp_path: Path) -> None:
    with Terminal(tmp_path, "from ranks import *\nmeet()\nsleep_forever()\n") as terminal:
        terminal.job.await_files("met.0", "met.1")
        os.close(terminal.master)
        terminal.master = os.open("/dev/null", os.O_RDONLY)
        assert terminal.job.process.wait(20) == 129
        terminal.job.assert_nothing_is_left()


def test_size_of_the_terminal_is_passed_on(tmp_path: Path) -> None:
    code = """from ranks import *
def show(*_):
    say("size", *os.get_terminal_size()) if RANK == 0 else announce("told")
signal.signal(signal.SIGWINCH, show)
show()
meet()
await_all("go")
"""
    with Terminal(tmp_path, code) as terminal:
        terminal.job.await_files("met.0", "met.1")
        (tmp_path / "shared/told").unlink()
        terminal.resize(31, 97)
        terminal.await_text("size 97 31")
        terminal.job.await_files("told")
        (tmp_path / "shared/go").touch()
        assert terminal.finish() == 0


def test_blocked_terminal_does_not_block_the_job(tmp_path: Path) -> None:
    """Ctrl-S blocks it, or a window of tmux that waits. The logs have every line."""
    code = "from ranks import *\nfor i in range(20000): print('line', i)\nannounce(f'end.{RANK}')\n"
    with Terminal(tmp_path, code, "-t", "3", "--log-dir", "logs") as terminal:
        terminal.job.await_files("end.0", "end.1", expected_s=5)
        assert terminal.job.process.wait(50) == 0
        logs = sorted(tmp_path.glob("logs/*/attempt_0/*/stdout.log"))
        assert [log.read_text().count("\n") for log in logs] == [20000, 20000]


def test_terminal_that_goes_on_says_what_it_has_missed(tmp_path: Path) -> None:
    code = """from ranks import *
for i in range(2000): print('early', i)
announce(f"printed.{RANK}")
await_all("blocked")
if RANK == 1:
    for i in range(30): print("late", i)
announce(f"end.{RANK}")
await_all("go")
say("last")
"""
    with Terminal(tmp_path, code, "--stdin", "none") as terminal:
        terminal.job.await_files("printed.0", "printed.1")
        time.sleep(1.5)  # a terminal counts as blocked after 1 s
        (tmp_path / "shared/blocked").touch()
        terminal.job.await_files("end.0", "end.1")
        terminal.await_text(r"headrace: \d+ lines were not shown, because the terminal was blocked", 5)
        (tmp_path / "shared/go").touch()
        terminal.await_text("last")
        assert terminal.finish() == 0
