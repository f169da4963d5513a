# SPDX-License-Identifier: Apache-2.0
"""A script under the installed `headrace run`, and what it has left on the machine.

All processes of a job, also those that have left its session, have HEADRACE_TESTS_JOB in their environment: so the
tests find them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import alive, is_still, until

HERE = Path(__file__).parent
HEADRACE = str(Path(sys.executable).parent / "headrace")
COOKIE = "HEADRACE_TESTS_JOB"
# What changes a launch: the variables of the tests' own environment must not.
FOREIGN = (
    "PET_",
    "TORCH",
    "PYTHON",
    "CUDA_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "HEADRACE_",
    "SLURM_",
    "VIRTUAL_",
    "CONDA_",
)
SLACK = 10  # a deadline is ten times what is expected


@dataclass
class Result:
    code: int  # negative: of the signal that ended it
    stdout: str
    stderr: str
    seconds: float

    @property
    def summary(self) -> list[str]:
        """The lines from the first one of the summary."""
        lines = self.stderr.splitlines()
        for number, line in enumerate(lines):
            if line.startswith("headrace: ") and not line.startswith("headrace: note:"):
                return lines[number:]
        return []

    def assert_says(self, *patterns: str) -> None:
        """Asserts that the summary has these patterns, in this order."""
        text, at = "\n".join(self.summary), 0
        for pattern in patterns:
            found = re.compile(pattern, re.MULTILINE).search(text, at)
            assert found, f"no {pattern!r} after {at} in:\n{self.stderr}"
            at = found.end()


def of_cookie(cookie: str) -> list[int]:
    """Returns the processes that have the cookie in their environment and still run."""
    wanted = f"{COOKIE}={cookie}\0".encode()
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes() and alive(int(name)):
                pids.append(int(name))
    return pids


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "?"


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


def state_of(pid: int) -> str:
    """Returns the letter of /proc/PID/stat, "?" if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "?"
    return text[text.rindex(")") + 2]


def environment(folder: Path, cookie: str, **changes: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    for name in ("shared", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier job of the same test
        (folder / name).mkdir()
    env |= {
        COOKIE: cookie,
        "HEADRACE_TESTS_SHARED": str(folder / "shared"),
        "PYTHONPATH": str(HERE),
        "PYTHON_EXEC": sys.executable,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return env | changes


class Job:
    """`headrace run OPTION... train.py`, or other words. Leaving the context ends all that is left of it."""

    def __init__(
        self,
        folder: Path,
        code: str,
        *options: str,
        nproc: int = 2,
        arguments: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        words: list[str] | None = None,
        **popen: Any,
    ) -> None:
        self.folder = folder
        self.cookie = uuid.uuid4().hex
        (folder / "train.py").write_text(code)
        words = words or [HEADRACE, "run", "--nproc", str(nproc), *options, "train.py", *arguments]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.env = environment(folder, self.cookie, **(env or {}))
        self.begun = time.monotonic()
        settings = {**streams, "start_new_session": True, **popen}
        self.process = subprocess.Popen([*prefix, *words], cwd=folder, env=self.env, **settings)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def kill_all(self) -> None:
        """Ends what is left, and what that has started meanwhile."""

        def are_gone() -> bool:
            pids = of_cookie(self.cookie)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(are_gone)

    def await_files(self, *names: str, expected_s: float = 2.0) -> None:
        """Waits until the ranks have announced these names."""
        shared = self.folder / "shared"
        reached = until(lambda: all((shared / name).exists() for name in names), SLACK * expected_s)
        assert reached, f"{names} are not in {sorted(os.listdir(shared))}; {self._output_so_far()}"

    def _output_so_far(self) -> str:
        self.kill_all()
        out, err = self.process.communicate(timeout=10)
        return f"it wrote\n{(out or b'').decode(errors='replace')}\n{(err or b'').decode(errors='replace')}"

    def read(self, name: str) -> str:
        return (self.folder / "shared" / name).read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def processes(self) -> list[int]:
        return of_cookie(self.cookie)

    def guardian(self) -> int:
        """The child of the front."""
        found = until(lambda: [pid for pid in self.processes() if parent_of(pid) == self.process.pid])
        assert len(found) == 1, found
        return int(found[0])

    def finish(self, expected_s: float = 2.0) -> Result:
        """Waits for its end, at most ten times as long as expected."""
        try:
            out, err = self.process.communicate(timeout=SLACK * expected_s)
        except subprocess.TimeoutExpired as error:
            rest = [f"{pid} {name_of(pid)} still={is_still(pid)}" for pid in self.processes()]
            wrote = [(text or b"").decode(errors="replace") for text in (error.stdout, error.stderr)]
            raise AssertionError(f"still runs after {SLACK * expected_s} s: {rest}; wrote {wrote}") from None
        seconds = time.monotonic() - self.begun
        texts = [(text or b"").decode(errors="replace") for text in (out, err)]
        return Result(self.process.returncode, *texts, seconds)

    def left(self, expected_s: float = 0.2) -> list[str]:
        """Returns the command lines of processes that have outlived it."""
        until(lambda: not self.processes(), SLACK * expected_s)
        return [name_of(pid) for pid in self.processes()]

    def assert_nothing_is_left(self) -> None:
        assert self.left() == []
        assert os.listdir(self.folder / "tmp") == []


def run(folder: Path, code: str, *options: str, expected_s: float = 2.0, **settings: Any) -> Result:
    """Runs a job to its end, and asserts that nothing of it is left."""
    with Job(folder, code, *options, **settings) as job:
        result = job.finish(expected_s)
        job.assert_nothing_is_left()
    return result
