# SPDX-License-Identifier: Apache-2.0
"""Checks that have held, kept by the content of what they read, in the user's cache folder: a clean checkout of the
same files, and the next one with few changes, find them there.

`FRESH=1` in the environment (`make check FRESH=1`) believes none of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = CACHES / "headrace-checks"
UNUSED_S = 30 * 24 * 3600.0  # a result that was not asked for so long is removed
IS_FRESH = bool(os.environ.get("FRESH"))


@functools.cache
def output_of(*command: str) -> str:
    """Returns what a command prints, such as the version of a tool, "" if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


@functools.cache
def content_of(path: Path) -> bytes:
    """Returns the digest of a file: headers are read by many sources."""
    return hashlib.sha256(path.read_bytes()).digest()


def digest(name: str, words: Iterable[str], files: Iterable[tuple[str, Path]]) -> str:
    """Returns the key of a check: its name, words such as options and versions, and files by name and content."""
    whole = hashlib.sha256(name.encode())
    for word in words:
        whole.update(b"\0w" + word.encode())
    for label, path in files:
        whole.update(b"\0f" + label.encode() + b"\0" + content_of(path))
    return whole.hexdigest()


def has(key: str) -> bool:
    """Returns True if a check has held with this key."""
    path = FOLDER / key
    if IS_FRESH or not path.exists():
        return False
    path.touch()
    return True


def keep(key: str) -> None:
    """Notes that a check has held. A folder that cannot be written keeps nothing."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / key).touch()
    except OSError:
        pass


def remove_unused() -> None:
    oldest = time.time() - UNUSED_S
    for path in FOLDER.glob("*"):
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
