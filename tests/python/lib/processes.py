# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes of their own, and what /proc says."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import warm
from process_table import all_pids

HERE = os.path.dirname(os.path.abspath(__file__))


def until(condition: Callable[[], Any], deadline_s: float = 10.0) -> Any:
    """Polls a state that no event announces (another process's end) until it is true or the deadline has passed."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.005)


def _stat(pid: int) -> list[str]:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def parent_of(pid: int) -> int:
    """Returns the pid of a process's parent, 0 if the process has gone. A zombie still has one."""
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def is_stopped(pid: int) -> bool:
    """Returns True if a signal such as SIGSTOP has stopped a process."""
    return _stat(pid)[:1] == ["T"]


def alive(pid: int) -> bool:
    """Returns True if a process runs (a zombie does not)."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def seconds_to_die_with(trainer: subprocess.Popen[Any], pid: int) -> float:
    """Kills a trainer; gives the seconds after which its worker is dead."""
    trainer.kill()
    before = time.monotonic()
    assert until(lambda: not alive(pid), 60)
    return time.monotonic() - before


def is_still(pid: int) -> bool:
    """Returns True if all threads of a process sleep or are stopped, which means that it waits."""
    texts = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            texts.append((task / "stat").read_text())
        except OSError:  # the process or thread has just ended
            continue
    return bool(texts) and all(text[text.rindex(")") + 2] in "STt" for text in texts)


def of_session(session: int) -> list[int]:
    """The processes of a session that still run."""
    return [pid for pid in all_pids() if (stat := _stat(pid)) and int(stat[3]) == session and stat[0] not in "ZX"]


def kill_session(session: int) -> None:
    """Ends what still runs of a session, and what that has started meanwhile."""

    def are_gone() -> bool:
        pids = of_session(session)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended, as workers end with their trainer
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(are_gone)


class Tracer:
    """Keeps a process that is killed, like one that hangs in the kernel: its parent cannot reap it before the context
    ends, or this process."""

    CODE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
PTRACE_SEIZE = 0x4206
failed = libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0)
print(ctypes.get_errno() if failed else "traces", flush=True)
sys.stdin.read()
"""

    def __init__(self, pid: int) -> None:
        command = [sys.executable, "-c", self.CODE, str(pid)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> bool:
        """Returns True if the system allows it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "traces\n"

    def __exit__(self, *_: object) -> None:
        with self.process:  # closes its stdin
            pass


def shared_bytes(pids: Iterable[int]) -> int:
    """Shared memory (memfd, tmpfs) that these processes hold together: the sum of their proportional parts."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Shmem:"):
                total += int(line.split()[1]) * 1024
    return total


def private_bytes(pid: int | str = "self") -> int:
    """Anonymous memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def environment(**changes: str | None) -> dict[str, str]:
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [env.get("PYTHONPATH")])])
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


TORCHS_FACE = "import datasets as d\nfrom loaders import Headrace"
NUMPYS_FACE = "import without_torch as d\nfrom without_torch import Headrace"


def with_method(code: str, method: str, **values: Any) -> str:
    """Fills in a script for a start method: its {imports} give it datasets `d` and a loader `Headrace`. If workers are
    new processes, these are without torch, which takes long to import."""
    imports = TORCHS_FACE if method == "fork" else NUMPYS_FACE
    return code.format(imports=imports, method=method, **values)


def start_python(
    folder: pathlib.Path,
    *words: str,
    prefix: list[str] | None = None,
    start_new_session: bool = False,
    stdin: int = subprocess.DEVNULL,
    before: Callable[[], None] | None = None,
    **env: str | None,
) -> subprocess.Popen[str]:
    """Starts `python WORD...` in a folder. A warm server forks it, unless it has a prefix or a function to call."""
    variables = environment(**env)
    is_warm = not prefix and before is None and warm.fits(words, str(folder), variables)
    kind = warm.WarmPopen if is_warm else subprocess.Popen[str]
    return kind(
        [*(prefix or []), sys.executable, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=start_new_session,
        cwd=folder,
        preexec_fn=before,
    )


def run_python(
    folder: pathlib.Path, *words: str, input: str | None = None, timeout_s: float = 300.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs `python WORD...` in a folder, and returns its exit code and what it printed. See start_python."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with start_python(folder, *words, stdin=stdin, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


class Script:
    """A Python script that runs in a session of its own; leaving the context ends what is left of it."""

    def __init__(self, folder: pathlib.Path, code: str, prefix: list[str] | None = None, **env: str | None) -> None:
        path = folder / "script.py"
        path.write_text(code)
        self.process = start_python(folder, str(path), prefix=prefix, start_new_session=True, **env)
        self.stdout, self.stderr = "", ""

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        kill_session(self.process.pid)
        self.process.wait(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def line(self, timeout_s: float = 200.0) -> str:
        """The next line that the script prints, "" at the end. Byte by byte: what a buffer held would be lost to
        `finish`."""
        assert self.process.stdout is not None
        stream, end, text = self.process.stdout.fileno(), time.monotonic() + timeout_s, b""
        while not text.endswith(b"\n"):
            ready = select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]
            assert ready, f"no line in {timeout_s} s, only {text!r}"
            byte = os.read(stream, 1)
            if not byte:
                break
            text += byte
        return text.decode().strip()

    def finish(self, timeout_s: float = 200.0) -> int:
        """Waits for its end and returns the exit code."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            left = {pid: pathlib.Path(f"/proc/{pid}/wchan").read_text() for pid in of_session(self.process.pid)}
            printed = f"printed {error.stdout!r} and {error.stderr!r}"
            raise AssertionError(f"still running after {timeout_s} s: {left}; {printed}") from None
        return self.process.returncode

    def left(self) -> list[int]:
        """Processes that outlived it (10 s of grace)."""
        until(lambda: not of_session(self.process.pid))
        return of_session(self.process.pid)


def run(folder: pathlib.Path, code: str, prefix: list[str] | None = None, timeout_s: float = 200.0, **env: Any) -> str:
    """Runs a script that must succeed, say nothing on stderr and leave no process; returns what it printed."""
    with Script(folder, code, prefix, **env) as script:
        status = script.finish(timeout_s)
        assert status == 0, f"exit code {status}\n{script.stdout}\n{script.stderr}"
        assert script.stderr == "", script.stderr
        assert script.left() == []
    return script.stdout
