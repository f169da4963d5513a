# SPDX-License-Identifier: Apache-2.0
"""The headrace program: its arguments, its output and its exit codes."""

import os
import re
import shutil
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from program import PROGRAM, run


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_the_packages(option: str) -> None:
    result = run(option)
    assert result.returncode == 0
    assert result.stdout == f"headrace {metadata.version('headrace')}\n"
    assert result.stderr == ""


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_goes_to_standard_output(option: str) -> None:
    result = run(option)
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: headrace ")
    assert "--version" in result.stdout
    assert "headrace replay SOURCE INDEX" in result.stdout
    assert "headrace doctor [SOURCE]" in result.stdout
    assert "headrace cache COMMAND" in result.stdout
    assert "headrace run [OPTION...] SCRIPT" in result.stdout
    assert "headrace exec [OPTION...] [--] COMMAND" in result.stdout
    assert result.stderr == ""


def test_help_fits_a_terminal() -> None:
    assert max(map(len, run("--help").stdout.splitlines())) <= 80


def test_no_arguments_are_a_usage_error_that_shows_the_help() -> None:
    result = run()
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["pour"], "unknown command 'pour'"), (["--pour"], "unknown option '--pour'"), ([""], "unknown command ''")],
)
def test_an_unknown_word_is_named_with_what_exists(arguments: list[str], named: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    names = "--version, --help, cache, completion, doctor, exec, help, index, record, replay, report, run, top"
    assert result.stderr == f"headrace: {named}; there is {names}\n"


def test_an_argument_too_many_is_named() -> None:
    result = run("--version", "please")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "unexpected argument 'please'" in result.stderr


def test_output_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        result = run("--help", stdout=full)
    assert result.returncode == 1
    assert re.match("headrace: standard output: .+", result.stderr)


@pytest.fixture
def lone_program(tmp_path: Path) -> Path:
    """The program in a folder without an interpreter."""
    return Path(shutil.copy2(PROGRAM, tmp_path))


def without_python() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON"))}


def test_program_without_an_interpreter_next_to_it_says_so(lone_program: Path) -> None:
    result = run("replay", "data:dataset", "1", program=lone_program, env=without_python())
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "headrace: replay needs Python, and there is no interpreter in the directory of this program; name the one in "
        "which headrace is installed: HEADRACE_PYTHON=python3 headrace replay ...\n"
    )


def test_an_environment_variable_names_the_interpreter(lone_program: Path) -> None:
    result = run("replay", "--help", program=lone_program, env={**os.environ, "HEADRACE_PYTHON": sys.executable})
    assert result.returncode == 0
    assert result.stdout.startswith("usage: headrace replay ")


def test_an_interpreter_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "python3")
    result = run("replay", "--help", env={**os.environ, "HEADRACE_PYTHON": nowhere})
    assert result.returncode == 2
    assert result.stderr == f"headrace: cannot start the interpreter '{nowhere}': No such file or directory\n"


def test_an_interpreter_without_the_package_is_named(tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    program = Path(shutil.copy2(PROGRAM, tmp_path / "bin"))
    result = run("replay", "--help", program=program, env=without_python())
    assert result.returncode == 2
    assert result.stderr == (
        f"headrace: {tmp_path}/bin/python3 does not have the package (No module named 'headrace'); install headrace "
        "there, or set HEADRACE_PYTHON to an interpreter that has it\n"
    )
