# SPDX-License-Identifier: Apache-2.0
"""The end of a job whose parent has ended, and the environment in which its ranks run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import headrace
import pytest
from jobs import HEADRACE, Job, name_of, run
from processes import until

CODE = "from ranks import *\nmeet()\nannounce(f'begun.{RANK}')\nawait_all('go on')\n"
BOTH = ("begun.0", "begun.1")
SHELL = ("sh", "-c", '"$@" & wait', "sh")
NOHUP = ("sh", "-c", 'trap "" HUP; "$@" & wait', "sh")


@pytest.mark.parametrize("shell", [SHELL, NOHUP], ids=["shell", "nohup"])
def test_job_ends_with_its_parent_if_it_is_told_to(tmp_path: Path, shell: tuple[str, ...]) -> None:
    options = ("--end-with-parent", "--report", "report.json", "--grace", "1")
    with Job(tmp_path, CODE, *options, prefix=shell) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGKILL)
        result = job.finish()
        job.assert_nothing_is_left()
    assert "headrace: the process that started headrace has ended" in result.stderr
    assert json.loads((tmp_path / "report.json").read_text())["attempts"][0]["reason"] == "parent-died"


def test_job_outlives_its_parent_by_default(tmp_path: Path) -> None:
    """torchrun does the same: a shell that ends sends SIGHUP if it means the job."""
    with Job(tmp_path, CODE, "--report", "report.json", prefix=SHELL) as job:
        job.await_files(*BOTH)
        job.send(signal.SIGKILL)
        job.process.wait(10)
        assert any("train.py" in name_of(pid) for pid in job.processes())
        (tmp_path / "shared/go on").touch()
        assert until(lambda: (tmp_path / "report.json").exists() and (tmp_path / "report.json").read_text(), 100)
        job.finish()
    assert json.loads((tmp_path / "report.json").read_text())["attempts"][0]["reason"] == "success"


def test_active_environment_with_this_headrace_runs_the_ranks(tmp_path: Path) -> None:
    """Without headrace, or with another version, its packages are missing, and the summary says who ran."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    packages = other / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (packages / "only_here.py").touch()
    program = f"{other}/bin:{os.environ['PATH']}"
    code = "import only_here, sys\nprint(sys.prefix)\n"
    versions = {headrace.__version__: True, "0.0.9": False, "": False}
    for env in ({"VIRTUAL_ENV": str(other)}, {"CONDA_PREFIX": str(other)}, {"PATH": program}):
        for version, is_taken in versions.items():
            for old in packages.glob("headrace-*"):
                shutil.rmtree(old)
            if version:
                (packages / f"headrace-{version}.dist-info").mkdir()
                (packages / f"headrace-{version}.dist-info/METADATA").touch()
            result = run(tmp_path, code, nproc=1, env={"PYTHON_EXEC": "", **env})
            if is_taken:
                assert (result.code, result.stdout) == (0, f"{other}\n"), result.stderr
                continue
            assert result.code == 1
            result.assert_says(
                "after ModuleNotFoundError: No module named 'only_here'", r"it ran under \S+/bin/python3"
            )
            says_active = f"VIRTUAL_ENV={other}): install headrace there" in result.stderr
            assert says_active == ("VIRTUAL_ENV" in env)


def test_note_says_which_interpreter_was_chosen(tmp_path: Path) -> None:
    """It comes if another environment is active than that of the interpreter."""
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    own = Path(HEADRACE).parent.parent
    note = r"note: the ranks run under \S+/python3?, which is in the directory of headrace, and not in the active "
    note += f"environment {other}; PYTHON_EXEC={other}/bin/python3 chooses that\n"
    chosen = run(tmp_path, "", nproc=1, env={"VIRTUAL_ENV": str(other), "PYTHON_EXEC": ""})
    assert re.fullmatch(f"headrace: {note}", chosen.stderr), chosen.stderr
    for env in ({"VIRTUAL_ENV": str(own)}, {"CONDA_PREFIX": str(tmp_path / "gone")}, {}):
        assert run(tmp_path, "", nproc=1, env={"PYTHON_EXEC": "", **env}).stderr == ""
    assert run(tmp_path, "", nproc=1, env={"VIRTUAL_ENV": str(other), "PYTHON_EXEC": sys.executable}).stderr == ""
