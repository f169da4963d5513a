# SPDX-License-Identifier: Apache-2.0
"""Shells complete the commands and options of the program."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from program import PROGRAM, run

SHELLS = ["bash", "zsh", "fish"]
# The line up to the cursor, words that must be offered, and a word that must not.
CASES = [
    ("headrace ", {"cache", "completion", "doctor", "exec", "help", "index"}, "warm"),
    ("headrace ", {"record", "replay", "report", "run", "top"}, "warm"),
    ("headrace r", {"record", "replay", "report", "run"}, "cache"),
    ("headrace cache ", {"warm", "ls", "info", "verify", "rm", "gc"}, "run"),
    ("headrace run --max", {"--max-restarts"}, "--nnodes"),
    ("headrace cache warm --req", {"--require-keys"}, "--name"),
    ("headrace exec --gr", {"--grace"}, "--nnodes"),
]
# How zsh's bashcompinit calls the function.
AS_BASHCOMPINIT = """
ask() {{
    emulate -L sh
    setopt kshglob noshglob braceexpand ksharrays
    {}
    _headrace
    printf '%s\\n' "${{COMPREPLY[@]}}"
}}
ask
"""


def complete(shell: str, line: str) -> set[str]:
    """Returns what a shell offers at the end of a line."""
    script = run("completion", shell).stdout
    if shell == "fish":
        script += f"complete -C {line!r}\n"
    elif shell == "bash":
        script += f"{set_line(line)}\n_headrace\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    else:
        script = f"autoload -U +X compinit && compinit -D -u\n{script}\n{AS_BASHCOMPINIT.format(set_line(line))}"
    env = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": "/nonexistent"}
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    offered = {row.split("\t")[0] for row in done.stdout.split("\n") if row}
    return {word for word in offered if shell != "zsh" or word.startswith(line.split(" ")[-1])}  # zsh itself does this


def set_line(line: str) -> str:
    words = line.split(" ")
    return f"COMP_WORDS=({' '.join(word or repr('') for word in words)}); COMP_CWORD={len(words) - 1}"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line, wanted, other", CASES)
def test_shell_completes_line(shell: str, line: str, wanted: set[str], other: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    offered = complete(shell, line)
    assert wanted <= offered and other not in offered


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_other_shells_are_refused(words: list[str]) -> None:
    result = run("completion", *words)
    assert (result.returncode, result.stdout) == (2, "") and "bash, zsh or fish" in result.stderr
