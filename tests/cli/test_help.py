# SPDX-License-Identifier: Apache-2.0
"""headrace help explains messages."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from headrace._commands import help as command
from program import PROGRAM, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS = command.list_keys()
# How a message names its page: help_on of headrace/_base/help_key.py in Python, HR_HELP of headrace/face/error.h in C.
_NAMED = {"*.py": re.compile(r'\bhelp_on\(\s*"([^"]+)"\s*\)'), "*.c": re.compile(r'\bHR_HELP\("([^"]+)"\)')}
_CALLED = {"*.py": re.compile(r"(?<!def )\bhelp_on\("), "*.c": re.compile(r"\bHR_HELP\(")}


def list_texts(pattern: str) -> dict[pathlib.Path, str]:
    folders = ("python/headrace", "src", "cli")
    return {path: path.read_text() for folder in folders for path in (ROOT / folder).rglob(pattern)}


def test_pages_are_those_that_messages_name() -> None:
    named = {
        key for pattern, name in _NAMED.items() for text in list_texts(pattern).values() for key in name.findall(text)
    }
    assert named == set(KEYS)


@pytest.mark.parametrize("pattern", _NAMED)
def test_messages_name_their_pages_in_one_way(pattern: str) -> None:
    for path, text in list_texts(pattern).items():
        assert len(_CALLED[pattern].findall(text)) == len(_NAMED[pattern].findall(text)), f"{path}: a key is no literal"
        by_hand = re.findall(r"\(headrace help (?!\{key\})", text)
        assert not by_hand, f"{path}: a message names its page without help_on or HR_HELP"


def test_help_lists_all_pages_and_prints_one() -> None:
    listed = run("help").stdout.splitlines()
    assert [line.split()[0] for line in listed] == KEYS and len(KEYS) >= 30
    page = run("help", "worker-died").stdout
    assert page.startswith("A worker process died\n\nYou see: ") and page.endswith("twice.\n")
    again = subprocess.run([sys.executable, "-m", "headrace", "help", "worker-died"], capture_output=True, text=True)
    assert again.stdout == page


def test_output_may_be_left_unread() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([PROGRAM, "help"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_words_of_message_find_its_page() -> None:
    assert run("help", "killed", "by", "signal").stdout.split()[2] == "worker-died"
    assert "headrace help pickle" in run("help", "cannot pickle").stdout
    assert run("help", "worker-dies").stdout.split()[2] == "worker-died"
    unknown = run("help", "zzzz")
    assert unknown.returncode == 2 and "no page is about 'zzzz'" in unknown.stderr


@pytest.mark.parametrize("key", KEYS)
def test_page_says_what_is_seen_and_what_to_do(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = command.read_page(key)
    assert command.main([key]) == 0 and capsys.readouterr().out == text.removeprefix("# ")
    assert command.PAGES.parent.parent != ROOT / "python"  # it is the installed package
    assert text.startswith("# ") and "\n\nYou see: " in text and "\n\nWhat to do" in text
    assert max(map(len, text.splitlines())) <= 88
