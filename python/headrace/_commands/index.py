# SPDX-License-Identifier: Apache-2.0
"""The command headrace index URL... --to FOLDER: writes the indexes of remote objects to a folder, for an upload. Files
of this machine are indexed by the program itself (cli/index.c)."""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from headrace import _core
from headrace._base.progress import Progress
from headrace._commands import program
from headrace._commands.common import Failed, run_command
from headrace._commands.remote import add_storage, checked_storage, reason, refuse_local
from headrace._remote.addresses import is_remote
from headrace.sources._places import Places, size_of, without_query
from headrace.sources._tar_report import describe_damage

_DESCRIPTION = """\
Reads tar files (for sources.Tar) and text files (for sources.Lines and
sources.Jsonl) in a bucket or behind https, and writes an index of each to FOLDER:
FOLDER/NAME.hri. Upload it next to the object, as URL.hri: sources then read it
instead of the whole object. headrace does not write to stores.

What is read is kept in the folder of remote objects, so that a run after one that
was stopped fetches the rest only.
"""
_AT_ONCE = 8
_SLICE_S = 0.1
_KINDS = {"tar": _core.INDEX_TAR, "lines": _core.INDEX_LINES}
_UNUSABLE = (_core.DAMAGE_EMPTY, _core.DAMAGE_COMPRESSED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace index", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("urls", metavar="URL", nargs="+", help="also with braces; of a bucket also a pattern, in quotes")
    add("--to", metavar="FOLDER", help="where the indexes are written; it is made if it does not exist")
    add("--kind", choices=sorted(_KINDS), help="of all objects (default: by the name and the first bytes of each)")
    add_storage(parser)
    return parser


def _names(paths: list[str]) -> dict[str, str]:
    """Returns the name of the file of each index, without its ending. Raises Failed if two are equal."""
    names: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        name = os.path.basename(without_query(path))
        if path.startswith("http") and "/" not in unquote(name):
            name = unquote(name)
        if name in ("", ".", ".."):
            raise Failed(f"{path} has no name for its index; give the URL of an object")
        if name in names:
            raise Failed(f"{names[name]} and {path} would have the same index, {name}.hri; write them to two folders")
        names[name] = path
    return {path: name for name, path in names.items()}


class _Run:
    """The objects whose indexes are made."""

    def __init__(self, names: dict[str, str], folder: str, kind: int | None) -> None:
        self._names, self._folder, self._kind = names, folder, kind
        self.written = self.failed = self.samples = 0
        total = sum(size_of(path) for path in names)
        self._progress = Progress("headrace index", total, True)
        self._shown = 0

    def _fail(self, path: str, error: BaseException | str) -> None:
        self.failed += 1
        text = error if isinstance(error, str) else reason(error)
        print(f"headrace: {path}: {text.removeprefix('source: ')}", file=sys.stderr)

    def _begin(self) -> Iterator[tuple[str, int, _core.Indexing]]:
        for path in self._names:
            try:
                kind = self._kind or _core.Index.guess(os.fsencode(path))
                yield path, kind, _core.Indexing(kind, (os.fsencode(path),), False)
            except (OSError, ValueError, MemoryError) as error:
                self._fail(path, error)

    def all(self) -> None:
        running: deque[tuple[str, int, _core.Indexing]] = deque()
        begin, finished = self._begin(), 0
        with self._progress:
            while True:
                while len(running) < _AT_ONCE and (one := next(begin, None)) is not None:
                    running.append(one)
                if not running:
                    return
                path, kind, indexing = running[0]
                try:
                    is_done = indexing.wait(_SLICE_S)
                except (OSError, ValueError, MemoryError) as error:
                    self._fail(path, error)
                    is_done = True
                else:
                    if is_done:
                        self._finish(path, kind, indexing.take())
                if is_done:
                    finished += indexing.look()["bytes_done"]
                    running.popleft()
                done = finished + sum(other.look()["bytes_done"] for _, _, other in running)
                self._progress.add(done - self._shown)
                self._shown = done

    def _finish(self, path: str, kind: int, index: _core.Index) -> None:
        try:
            if not self._is_usable(path, kind, index):
                return
            index.save(os.fsencode(os.path.join(self._folder, self._names[path])))
        except (OSError, ValueError, RuntimeError) as error:
            self._fail(path, error)
            return
        self.written += 1
        self.samples += index.look()[2]

    def _is_usable(self, path: str, kind: int, index: _core.Index) -> bool:
        """Says what is wrong with an object. Raises ValueError for damaged lines."""
        file = index.file(0)
        if not file["damage"]:
            return True
        if kind == _core.INDEX_LINES:
            _core.Lines((os.fsencode(path),), index)
        is_usable = file["damage"] not in _UNUSABLE and file["good_bytes"] > 0
        text = describe_damage({"path": path, **file}).removeprefix(f"{path}: ")
        if is_usable:
            print(f"headrace: {text}; these are in the index", file=sys.stderr)
        else:
            self._fail(path, text)
        return is_usable


def _run(options: argparse.Namespace) -> int:
    refuse_local(options.urls, "an index of a file of this machine is written next to it, without --to")
    if options.to is None:
        raise Failed("give a folder for the indexes of remote objects, --to FOLDER: headrace does not write to stores")
    storage = checked_storage(options)
    try:
        places = Places(options.urls, "headrace index", storage)
        names = _names(places.paths)
        os.makedirs(options.to, exist_ok=True)
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise Failed(reason(error), 1) from None
    run = _Run(names, options.to, _KINDS.get(options.kind))
    run.all()
    print(f"{run.written:,} indexes written to {options.to}, of {run.samples:,} samples; {run.failed:,} failed")
    return 1 if run.failed else 0


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit code: 0 done, 1 an object failed, 2 wrong usage, 130 stopped."""
    if not any(is_remote(word) or word.partition("=")[0] == "--to" for word in arguments):
        return program.become(["index", *arguments])
    options: Any = _parser().parse_args(arguments)
    return run_command(lambda: _run(options), "the indexes that are written stay")
