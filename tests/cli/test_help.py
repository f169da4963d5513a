# SPDX-License-Identifier: Apache-2.0
"""headrace help explains messages."""

from __future__ import annotations

import subprocess
import sys

import pytest
from headrace._commands import help as command
from program import run

KEYS = command.list_keys()


def test_help_lists_all_pages_and_prints_one() -> None:
    listed = run("help").stdout.splitlines()
    assert [line.split()[0] for line in listed] == KEYS and len(KEYS) >= 30
    page = run("help", "worker-died").stdout
    assert page.startswith("A worker process died\n\nYou see: ") and page.endswith("twice.\n")
    again = subprocess.run([sys.executable, "-m", "headrace", "help", "worker-died"], capture_output=True, text=True)
    assert again.stdout == page


def test_words_of_message_find_its_page() -> None:
    assert run("help", "killed", "by", "signal").stdout.split()[2] == "worker-died"
    assert "headrace help pickle" in run("help", "cannot pickle").stdout
    assert run("help", "worker-dies").stdout.split()[2] == "worker-died"
    unknown = run("help", "zzzz")
    assert unknown.returncode == 2 and "no page is about 'zzzz'" in unknown.stderr


@pytest.mark.parametrize("key", KEYS)
def test_page_says_what_is_seen_and_what_to_do(key: str) -> None:
    text = command.read_page(key)
    assert text.startswith("# ") and "\n\nYou see: " in text and "\n\nWhat to do" in text
    assert max(map(len, text.splitlines())) <= 90
