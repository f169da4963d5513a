# SPDX-License-Identifier: Apache-2.0
"""Lists the objects of a bucket, through the fetcher."""

from __future__ import annotations

import fnmatch
import os
import re

from headrace import _core
from headrace._remote.command import use_python

_PATTERN = re.compile(r"[*?[]")


def list_objects(url: str, storage: str, name: str) -> list[str]:
    """Returns the URLs of the objects of a bucket that begin with a URL, sorted by bytes. Raises OSError and, without
    obstore, ImportError. name: of the source, for messages."""
    from headrace._remote.buckets import need_obstore

    try:
        need_obstore()
    except ImportError as error:
        raise ImportError(f"{name}: {error}") from None
    use_python()
    answer = _core.remote_call(b"\n".join((b"list", storage.encode(), os.fsencode(url))))
    urls = [os.fsdecode(line.partition(b"\t")[0]) for line in answer.split(b"\n") if line]
    return sorted(urls, key=os.fsencode)


def match_objects(pattern: str, storage: str, name: str) -> list[str]:
    """Returns the URLs of the objects that match a pattern, sorted by bytes. As in a folder, `*` stands for no slash,
    and `**` for any folders."""
    first = _PATTERN.search(pattern)
    assert first is not None
    fits = re.compile(_as_expression(pattern)).fullmatch
    return [url for url in list_objects(pattern[: first.start()], storage, name) if fits(url)]


def _as_expression(pattern: str) -> str:
    """Returns a regular expression for a pattern of paths."""
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        if part == "**/":
            parts.append("(?:.*/)?")
        elif part == "**":
            parts.append(".*")
        elif part == "*":
            parts.append("[^/]*")
        elif part == "?":
            parts.append("[^/]")
        elif part.startswith("[") and part.endswith("]"):
            parts.append(fnmatch.translate(part).removeprefix("(?s:").partition(")")[0])
        else:
            parts.append(re.escape(part))
    return "".join(parts)
