# SPDX-License-Identifier: Apache-2.0
"""`python -m headrace run` and the other commands of the program, which are written in C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.__main__ import _COMMANDS
from headrace._base import program
from headrace._commands.program import become
from program import PROGRAM, run


def python_m(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    names = ("PET_", "PYTHON_EXEC", "HEADRACE_", "RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)} | variables
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_run_starts_ranks_with_this_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(os.environ['RANK'], sys.executable, flush=True)\nsys.exit(7)\n")
    result = python_m("run", "--nproc", "2", "--prefix", "never", str(script), PATH="/nowhere")
    assert result.returncode == 7
    assert set(result.stdout.splitlines()) <= {f"{rank} {sys.executable}" for rank in range(2)}
    assert result.stderr.rstrip().endswith("exit code 7")


def test_run_keeps_an_interpreter_that_is_named(tmp_path: Path) -> None:
    named = tmp_path / "python"
    named.write_text("#!/bin/sh\necho named\n")
    named.chmod(0o700)
    assert python_m("run", str(tmp_path), PYTHON_EXEC=str(named)).returncode == 2  # no __main__.py in the folder
    (tmp_path / "__main__.py").touch()
    assert python_m("run", str(tmp_path), PYTHON_EXEC=str(named)).stdout == "named\n"


def test_exec_and_cache_are_the_programs() -> None:
    assert python_m("exec", "echo", "fine").stdout == "fine\n"
    refused = python_m("cache")
    assert (refused.returncode, refused.stderr[:22]) == (2, "Usage: headrace cache ")


def test_only_the_command_that_runs_is_imported() -> None:
    """`python -m headrace run` should not wait for the modules of other commands."""
    code = "import headrace.__main__, sys; print(*(name for name in sys.modules if name.startswith('headrace._')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "headrace._commands.program" in shown.stdout
    others = ("_report", "_core", *(f"_commands.{name}" for name in _COMMANDS))
    assert not [name for name in others if f"headrace.{name}" in shown.stdout.split()]


@pytest.mark.parametrize("packages", ["site", "lib/python3.12/site-packages"])
def test_program_of_this_package_comes_first(tmp_path: Path, packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages lie as `pip install --target site` puts them, and as in a prefix."""
    folder = tmp_path / packages
    module = folder / "headrace" / "_base" / "program.py"
    programs = folder / "bin" if packages == "site" else tmp_path / "bin"
    programs.mkdir(parents=True)
    shutil.copy2(PROGRAM, programs)
    monkeypatch.setattr(program, "__file__", str(module))
    assert program.find() == str(programs / "headrace")


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "places", lambda: iter([Path("/nowhere/bin")]))
    monkeypatch.setenv("PATH", "/nowhere")
    assert become(["run", "train.py"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "which has the command run, is not in /nowhere/bin or in PATH; install the package" in error


def test_help_lists_all_commands() -> None:
    shown = python_m("--help")
    usage = shown.stdout.partition("\n\n")[0].splitlines()[1:]
    assert {line.split()[1] for line in usage} == {
        "cache",
        "completion",
        "doctor",
        "exec",
        "help",
        "index",
        "record",
        "replay",
        "report",
        "run",
        "top",
    }
    assert (shown.returncode, shown.stderr, shown.stdout) == (0, "", run("--help").stdout)


def test_module_knows_what_the_program_knows() -> None:
    """The words come from the program itself, so that a new command of it is tried here, too."""
    refused = run("nonsense")
    words = refused.stderr.split("there is ")[1].rstrip().split(", ")
    assert len(words) == 13
    for word in words:
        asked, expected = python_m(word, "--help"), run(word, "--help")
        assert (asked.returncode, asked.stdout, asked.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    for arguments in ([], ["nonsense"]):
        wrong = python_m(*arguments)
        assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", run(*arguments).stderr)
