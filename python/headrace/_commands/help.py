# SPDX-License-Identifier: Apache-2.0
"""headrace help [KEY]: explains a message of headrace. The pages are in headrace/_help, and on the site."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "_help"


def main(arguments: list[str]) -> int:
    """Runs `headrace help`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="headrace help",
        description="Prints the page about a message of headrace; without KEY, lists all pages.",
        epilog="KEY is one of the list, as in headrace help worker-died, or words of the message.",
    )
    parser.add_argument("words", metavar="KEY", nargs="*")
    key = " ".join(parser.parse_args(arguments).words)
    if not key:
        print("\n".join(f"{name:21} {read_title(name)}" for name in list_keys()))
        return 0
    if key in list_keys():
        print(read_page(key).removeprefix("# "), end="")
        return 0
    found = find(key)
    if not found:
        print(f"headrace help: no page is about {key!r}; headrace help lists all", file=sys.stderr)
        return 2
    print("\n".join(f"headrace help {name:21} {read_title(name)}" for name in found))
    return 0


def list_keys() -> list[str]:
    """Returns the keys of all pages."""
    return sorted(path.stem for path in PAGES.glob("*.md"))


def read_page(key: str) -> str:
    """Returns the page of a key, as Markdown whose first line is the title."""
    return (PAGES / f"{key}.md").read_text(encoding="utf-8")


def read_title(key: str) -> str:
    """Returns the title of a page."""
    return read_page(key).partition("\n")[0].removeprefix("# ")


def find(words: str) -> list[str]:
    """Returns the keys of the pages that have all of these words, or whose keys are similar."""
    wanted = words.lower().split()
    having = [key for key in list_keys() if all(word in read_page(key).lower() for word in wanted)]
    return having or difflib.get_close_matches(words, list_keys(), 5, 0.5)
