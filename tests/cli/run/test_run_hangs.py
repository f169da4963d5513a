# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not end: they are ended in time, and what they did is said. Nothing survives."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import HANGS, hanging
from jobs import Job, run
from processes import Tracer


@pytest.mark.parametrize("name", HANGS)
def test_rank_that_hangs_next_to_a_failure_is_ended(tmp_path: Path, name: str) -> None:
    result = run(tmp_path, hanging(name), "--grace", "0.5", expected_s=1)
    assert result.code == 7, result.stderr
    result.assert_says("rank 1 failed first: it ended with exit code 7", HANGS[name][1])


KEEPS = {
    "a thread": (
        "import threading\ndef drain(): sleep_forever()\nthreading.Thread(target=drain, name='uploader').start()\n",
        r"threads that keep it: uploader \(__main__.drain\)",
    ),
    "atexit": ("import atexit\ndef flush(): time.sleep(1000)\natexit.register(flush)\n", "it is .*in flush"),
    "a child": (
        "import atexit\nchild = subprocess.Popen(['sleep', '1000'])\natexit.register(child.wait)\n",
        r"its children: sleep \(pid \d+\)",
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_finished_rank_that_does_not_exit_is_explained(tmp_path: Path, name: str) -> None:
    code = f"from ranks import *\nmeet()\nif RANK == 0: sys.exit()\n{KEEPS[name][0]}"
    result = run(tmp_path, code, "--exit-timeout", "0.5", "--grace", "0.5", expected_s=3)
    assert result.code == 124, result.stderr
    result.assert_says(
        r"^headrace: rank 1 finished its main program, but did not exit within 0.5 s \(--exit-timeout\)", KEEPS[name][1]
    )


def test_rank_that_cannot_be_killed_is_named(tmp_path: Path) -> None:
    """A tracer keeps rank 0 as a disk that does not answer keeps a process that waits for it."""
    code = """from ranks import *
announce(f"pid.{RANK}", str(os.getpid()))
await_all("traced")
if RANK == 1: sys.exit(7)
sleep_forever()
"""
    with Job(tmp_path, code, "--grace", "0.3") as job:
        job.await_files("pid.0", "pid.1")
        with Tracer(int(job.read("pid.0"))) as may_trace:
            if not may_trace:
                pytest.skip("this system does not allow tracing")
            (tmp_path / "shared/traced").touch()
            result = job.finish(3)
    assert result.code == 7, result.stderr
    pid = r"\(pid \d+\)"
    result.assert_says(
        "rank 1 failed first: it ended with exit code 7",
        f"rank 0 {pid} could not be killed; it was ",
        f"1 process could not be killed, and may still run: .* {pid}",
    )
