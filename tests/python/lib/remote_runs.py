# SPDX-License-Identifier: Apache-2.0
"""Datasets that tests put on a server, in a form that is compared sample by sample; and the fetchers of a folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import signal
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
from headrace import sources
from processes import until

QUICK = {"retry_s": 3, "timeout_s": 1}
BIG = 2_000_000  # tokens of a file that is not fetched as a whole because of a few reads


def token_bytes(count: int = 300_000, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 50_000, count).astype(np.uint16).tobytes()


def jsonl_bytes(count: int = 3000) -> bytes:
    return b"".join(json.dumps({"i": i, "text": "word " * (i % 40)}).encode() + b"\n" for i in range(count))


def tar_bytes(count: int = 60, size: int = 20_000) -> bytes:
    file = io.BytesIO()
    random = np.random.default_rng(1)
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in range(count):
            for field, data in (("bin", random.bytes(size + i)), ("cls", str(i).encode())):
                member = tarfile.TarInfo(f"{i:05}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


Open = Callable[[Any, dict[str, Any] | None], Any]

FILES: dict[str, bytes] = {
    "a.bin": token_bytes(),
    "b.bin": token_bytes(seed=1),
    "a.jsonl": jsonl_bytes(),
    "a.tar": tar_bytes(),
    **{f"objects/{i:02}.dat": bytes([i]) * (30_000 * i + 1) for i in range(12)},
    "objects/empty.dat": b"",
}

# What is opened, and the names of its files.
SOURCES: dict[str, tuple[Open, list[str]]] = {
    "Tokens": (
        lambda paths, storage: sources.Tokens(paths, length=500, labels=True, storage=storage),
        ["a.bin", "b.bin"],
    ),
    "Jsonl": (lambda paths, storage: sources.Jsonl(paths, storage=storage), ["a.jsonl"]),
    "Tar": (lambda paths, storage: sources.Tar(paths, fields=("bin", "cls"), storage=storage), ["a.tar"]),
    "Objects": (lambda paths, storage: sources.Objects(paths, storage=storage), sorted(n for n in FILES if "dat" in n)),
}


def write_files(folder: pathlib.Path) -> None:
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)


def as_text(sample: Any) -> Any:
    """Returns a sample in a form that can be compared."""
    if isinstance(sample, np.ndarray):
        return sample.tobytes()
    if isinstance(sample, (tuple, list)):
        return [as_text(one) for one in sample]
    return sample


def assert_same(one: Any, other: Any, seed: int = 0) -> None:
    """Compares all samples of two datasets, in a drawn order."""
    assert len(one) == len(other)
    for index in np.random.default_rng(seed).permutation(len(one)).tolist():
        assert as_text(one[index]) == as_text(other[index]), index


# ---- fetchers ----


def fetchers_of(folder: pathlib.Path) -> list[int]:
    """Returns the pids of the fetchers of a folder, by their command lines."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                has_main = any(b"headrace._remote" in word for word in words)
                if has_main and os.fsencode(folder / "v1" / "remote") in words:
                    found.append(int(entry))
    return found


def kill_fetchers(folder: pathlib.Path, number: int = signal.SIGKILL) -> list[int]:
    pids = fetchers_of(folder)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


def end_fetchers(folder: pathlib.Path) -> None:
    """Ends the fetchers of a folder, which are of the test that made it."""
    kill_fetchers(folder)
    until(lambda: not fetchers_of(folder))
