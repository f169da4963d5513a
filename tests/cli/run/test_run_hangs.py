# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not end: they are ended in time, and what they did is said. Nothing survives."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import HANGS, hanging
from jobs import run


@pytest.mark.parametrize("name", HANGS)
def test_rank_that_hangs_beside_a_failure_is_ended(tmp_path: Path, name: str) -> None:
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
