# SPDX-License-Identifier: Apache-2.0
"""What a user types and sees."""

import re
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

PROGRAM = Path(sysconfig.get_path("scripts")) / "headrace"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30)


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
    assert result.stderr == ""


def test_help_fits_a_terminal() -> None:
    assert max(map(len, run("--help").stdout.splitlines())) <= 80


def test_nothing_asked_is_a_usage_error_that_shows_the_help() -> None:
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
    assert result.stderr == f"headrace: {named}; there is --version, --help\n"


def test_an_argument_too_many_is_named() -> None:
    result = run("--version", "please")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "unexpected argument 'please'" in result.stderr


def test_output_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert result.returncode == 1
    assert re.match("headrace: standard output: .+", result.stderr)
