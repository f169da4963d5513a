# SPDX-License-Identifier: Apache-2.0
"""Plays the front of `headrace run` for one rank: the page (src/launch/page.h) and the zip with the hook."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from types import ModuleType

import pytest
from processes import is_still, kill_session, until

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAUNCH = ROOT / "src/launch"
REASON_AT, TEXT_AT, KEEPERS_AT, STACKS_AT = 1 << 10, 4 << 10, 32 << 10, 64 << 10
MAGIC = 0x6B6E615261657248
WORDS = (
    "magic",
    "pid",
    "stack_signal",
    "exception_ns",
    "text_bytes",
    "over_ns",
    "keepers_bytes",
    "exec_error",
    "is_lost_peer",
    "is_watched",
    "others_over",
    "is_keeping",
    "ended_well",
    "reason_bytes",
)
LAYOUT = f"{len(WORDS)}q"
DEADLINE_S = 100.0


def load(name: str) -> ModuleType:
    """Imports one of the files in src/launch that belong to no package."""
    spec = importlib.util.spec_from_file_location(name, LAUNCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def hook_zip() -> bytes:
    """Returns the zip that libheadrace contains (tests/c/unit/test_hook.c compares)."""
    data = load("embed_hook").make_zip({"sitecustomize": LAUNCH / "hook.py", "what_ended": LAUNCH / "what_ended.py"})
    assert isinstance(data, bytes)
    return data


@functools.cache
def find_python(version: str) -> str | None:
    """Returns an interpreter of this version (3.12), from PATH or pyenv."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    installed = sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    for candidate in [shutil.which(f"python{version}"), *installed]:
        # One of pyenv's shims exists for each version, and fails for those that are not chosen.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def need_python(version: str) -> str:
    found = find_python(version)
    if found is None:
        pytest.skip(f"no python{version} on this machine")
    return found


class Rank:
    """A command that runs as a rank; leaving the context ends it."""

    def __init__(
        self,
        command: list[str],
        before: str | None = None,
        is_watched: bool = False,
        page: int | None = None,
        hook: bytes | None = None,
        **env: str,
    ) -> None:
        """`before`: what PYTHONPATH was. `page`: a descriptor for the rank that is no page. `hook`: another zip."""
        self._zip = os.memfd_create("zip")
        os.write(self._zip, hook or hook_zip())
        self._page = os.memfd_create("page")
        os.ftruncate(self._page, STACKS_AT)
        self._write("magic", MAGIC)
        self._write("is_watched", int(is_watched))
        path = f"/proc/{os.getpid()}/fd/{self._zip}"
        everything = {**os.environ, **env, "PYTHONPATH": path + (f":{before}" if before else "")}
        if before is not None:
            everything["HEADRACE_PYTHONPATH"] = before
        fd = self._page if page is None else page
        everything["HEADRACE_RANK_FD"] = str(fd)
        self.fd = fd
        self.process = subprocess.Popen(
            command,
            env=everything,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.stdout = self.stderr = ""

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        kill_session(self.process.pid)
        self.process.communicate()
        os.close(self._zip)
        os.close(self._page)

    def finish(self) -> int:
        self.stdout, self.stderr = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _write(self, word: str, value: int) -> None:
        os.pwrite(self._page, value.to_bytes(8, sys.byteorder), 8 * WORDS.index(word))

    def end_others(self) -> None:
        self._write("others_over", 1)

    def words(self) -> dict[str, int]:
        data = os.pread(self._page, struct.calcsize(LAYOUT), 0)
        return dict(zip(WORDS, struct.unpack(LAYOUT, data), strict=True))

    def wait_for(self, word: str) -> int:
        """Waits until the rank writes this word."""
        assert until(lambda: self.words()[word] or self.process.poll() is not None, DEADLINE_S)
        value = self.words()[word]
        assert value, (word, self.process.poll(), self.words())
        return value

    def text(self) -> str:
        return os.pread(self._page, self.words()["text_bytes"], TEXT_AT).decode()

    def reason(self) -> str:
        return os.pread(self._page, self.words()["reason_bytes"], REASON_AT).decode()

    def keepers(self) -> str:
        return os.pread(self._page, self.words()["keepers_bytes"], KEEPERS_AT).decode()

    def stacks(self) -> str:
        return os.pread(self._page, 1 << 20, STACKS_AT).decode()

    def ask_for_stacks(self, *expected: str) -> str:
        """Waits until the rank waits, sends the stack signal, and waits until the rank has appended these texts."""
        words = self.words()
        link = os.stat(f"/proc/{words['pid']}/fd/{self.fd}")
        assert link.st_ino == os.fstat(self._page).st_ino
        assert until(lambda: is_still(words["pid"]), DEADLINE_S)
        before = len(self.stacks())
        os.kill(words["pid"], words["stack_signal"])
        assert until(lambda: all(text in self.stacks()[before:] for text in expected), DEADLINE_S), self.stacks()
        return self.stacks()[before:]
