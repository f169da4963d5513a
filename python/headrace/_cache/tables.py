# SPDX-License-Identifier: Apache-2.0
"""The tables of the cache that have the samples of a dataset: how they are named, obtained, kept and removed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import sys
import weakref
from typing import Any

from headrace import _core
from headrace._base.warn import say
from headrace._cache import building, digest, opening, stamps
from headrace._cache.opening import Root

SUFFIX = ".samples"  # of the names of such objects, so that no other data has them
_FORMAT = "samples"
Handle = tuple[str | None, str, str, str]  # root, name, version, id
_kept: dict[int, _core.Cached] = {}  # one for each dataset: so that keep="job" means the dataset, and not a loader
_numbers = itertools.count()


# ---- names ----


def name_of(dataset: Any, name: str | None, version: str, sources: stamps.Sources) -> tuple[str, str, tuple[str, ...]]:
    """Returns the name and the stamp of a table: what the samples are made from, as text; and the modules of the user
    that have the code."""
    seen, unknown, modules = digest.seen_in(dataset, version != "0")
    looked = stamps.look_at_sources(sources)
    stamp = json.dumps({"sources": looked, "function": seen, "samples": len(dataset)}, sort_keys=True)
    label = opening.check_name(name) if name is not None else _default_name(dataset, stamp, unknown)
    return label, stamp, modules


def _word_of(dataset: Any) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in type(dataset).__name__)[:60]


def _default_name(dataset: Any, stamp: str, unknown: list[str]) -> str:
    """Returns a name that jobs with the same dataset have in common. If the dataset has something that cannot be
    compared, only this process and its workers have it."""
    if not unknown:
        return f"{_word_of(dataset)}-{hashlib.blake2b(stamp.encode(), digest_size=6).hexdigest()}"
    say(
        f"cache: the samples of {type(dataset).__name__} are not shared with other jobs, because {unknown[0]} cannot "
        "be compared; headrace.cache_samples(dataset, name=...) shares them"
    )
    return f"{_word_of(dataset)}-{os.getpid()}-{secrets.token_hex(4)}"


# ---- objects ----


def obtain(
    cache: _core.Cache, label: str, version: str, stamp: str, keep: int, count: int, budget: int | None
) -> _core.Cached:
    """Returns the table of this name, which is made if it does not exist, or has other samples."""
    name = label + SUFFIX

    def make(build: _core.CacheBuild) -> str:
        build.samples(count, max(cache.sample_budget(), 1 << 20) if budget is None else budget)
        return json.dumps({"kind": _FORMAT, "torch": "torch" in sys.modules})

    try:
        _, before = cache.peek(name, version)
        if before != stamp:
            changed = "; ".join(stamps.changes(before, stamp)[:3])
            say(f"cache {label}: the samples are made again, because {changed}")
    except FileNotFoundError:
        pass
    return building.obtain(cache, name, version, stamp, _FORMAT, keep, make)


def handle_of(cache: _core.Cache, cached: _core.Cached, version: str, root: Root) -> Handle:
    info = cached.info()
    return None if root is None else cache.root, info["name"], version, info["id"]


def keep(dataset: Any, cached: _core.Cached) -> None:
    """Keeps an object as long as the dataset, or the process, exists. Another dataset may have the same object."""
    number = next(_numbers)
    _kept[number] = cached
    with contextlib.suppress(TypeError):  # it allows no weak references
        weakref.finalize(dataset, _kept.pop, number, None).atexit = False


def remove(handle: Handle) -> None:
    """Removes an object from the cache. Processes that use it keep it until they end."""
    root, name, version, identity = handle
    for number, cached in list(_kept.items()):
        if cached.id == identity:
            _kept.pop(number, None)
    with contextlib.suppress(FileNotFoundError):
        opening.open_cache(root).remove(name, version, True)
