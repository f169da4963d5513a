# SPDX-License-Identifier: Apache-2.0
"""Writes files of recordings by the layout of src/record/format.h, for tests and scripts that need numbers that no run
would give, such as those of a week."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
_RINGS_AT, _FINISH_AT = 4096, 2048
_BUCKETS, _SLOWEST = 44, 256
_ENDS = ["", "the job ended", "it was stopped", "disk full", "the number of workers grew"]

_ROW = struct.Struct("<II qqQ 30I")
_WORKER = struct.Struct("<7I")
_ADDED, _ADDED_OF_WORKER = 6, 1  # fields of a row and of a worker since version 3
_HOUR = struct.Struct(f"<IIq{2 * _BUCKETS}I")
_SAMPLE = struct.Struct("<QQqII")
_BATCH = struct.Struct("<II II 5Q II")
_STEP = struct.Struct("<II 5I")

_ROW_FIELDS = [  # after at_ns, real_ns and bytes; us and KiB in the file are ns and bytes here
    *("length_ns", "epoch", "step", "batches", "samples", "errors", "inside_ns", "start_ns", "starts", "wait_ns"),
    *("pin_ns", "draw_ns", "rebuild_ns", "restarts", "bad_samples", "queue_count", "used_bytes", "cores_busy"),
    *("cores_allowed", "throttled_ns", "memory_available", "used_workers", "trainer_cpu_ns"),
    *("trainer_delay_ns", "network_ns", "hit_count", "wait_count", "fetched_bytes", "requests", "retries"),
]
_WORKER_FIELDS = ["fetch_ns", "collate_ns", "wait_ns", "delay_ns", "cpu_ns", "private_bytes", "network_ns"]


def _pack(name: str, value: int) -> int:
    if name.endswith("_ns"):
        value = (value + 500) // 1000
    elif name in ("used_bytes", "memory_available", "private_bytes", "fetched_bytes"):
        value = -(-value // 1024)
    return min(value, 2**32 - 1)


def _up(value: int) -> int:
    return -(-value // 8) * 8


def places(workers: int, version: int = 3) -> dict[str, tuple[int, int, int]]:
    """Returns for each ring its place in the file, the bytes of an entry and the entries that it has room for."""
    found: dict[str, tuple[int, int, int]] = {}
    at = _RINGS_AT
    row = _ROW.size + workers * _WORKER.size
    row = _up(row if version > 2 else row - 4 * (_ADDED + workers * _ADDED_OF_WORKER))
    sizes = {
        "now": (_HOUR.size + _SLOWEST * _SAMPLE.size, 2),
        "hours": (_HOUR.size, 14 * 24),
        "steps": (_STEP.size, 1 << 16),
        "batches": (_BATCH.size, 1 << 16),
    }
    for name, (size, room) in sizes.items():
        found[name] = (at, size, room)
        at = _up(at + size * room)
    seconds, minutes = 7200, 14 * 24 * 60
    fitting = min((MAX_BYTES - at) // row, seconds + minutes)
    seconds = seconds * fitting // (seconds + minutes)
    found["seconds"] = (at, row, seconds)
    found["minutes"] = (_up(at + row * seconds), row, fitting - seconds)
    return found


class File:
    """The file of a loader, in memory. Rows are dicts as the columns of `_core.Recording`; what is missing is 0."""

    def __init__(self, workers: int = 2, file_format: int = 3, **identity: Any) -> None:
        self._workers, self._version = workers, file_format
        self._places = places(workers, file_format)
        self._numbers = dict.fromkeys(self._places, 0)
        self._bytes = bytearray(_RINGS_AT)
        self._began_ns = identity.get("began_ns", 0)
        numbers = [
            identity.get(name, start) for name, start in (("pid", 1), ("loader", 1), ("rank", 0), ("world_size", 1))
        ]
        times = [identity.get(name, 0) for name in ("opened_ns", "began_ns", "began_real_ns", "memory_bytes")]
        texts = [str(identity.get(name, start)).encode() for name, start in _TEXTS.items()]
        rest = struct.pack(
            "<IIii IIII qqqQ 96s 64s 32s 1024s",
            *numbers,
            *(workers, identity.get("queue_room", 2 * workers), identity.get("cores", 8), 0),
            *times,
            *texts,
        )
        head = struct.pack("<QII", int.from_bytes(b"\x0ahr-rec\x0a", "little"), file_format, zlib.crc32(rest)) + rest
        self._bytes[: len(head)] = head

    def _append(self, ring: str, entry: bytes) -> None:
        at, size, room = self._places[ring]
        self._numbers[ring] += 1
        entry = struct.pack("<I", self._numbers[ring]) + entry[8:].ljust(size - 8, b"\0")
        at += (self._numbers[ring] - 1) % room * size
        if len(self._bytes) < at + size:
            self._bytes.extend(bytes(at + size - len(self._bytes)))
        self._bytes[at : at + size] = struct.pack("<I", zlib.crc32(entry)) + entry

    def _row(self, ring: str, row: Mapping[str, int], workers: Iterable[Mapping[str, int]]) -> None:
        first = [row.get(name, 0) for name in ("at_ns", "real_ns", "bytes")]
        entry = _ROW.pack(0, 0, *first, *(_pack(name, row.get(name, 0)) for name in _ROW_FIELDS))
        entry = entry if self._version > 2 else entry[: -4 * _ADDED]
        for worker in workers:
            packed = _WORKER.pack(*(_pack(name, worker.get(name, 0)) for name in _WORKER_FIELDS))
            entry += packed if self._version > 2 else packed[: -4 * _ADDED_OF_WORKER]
        self._append(ring, entry)

    def second(self, row: Mapping[str, int], workers: Iterable[Mapping[str, int]] = ()) -> None:
        """Adds a second, with a dict for each worker."""
        self._row("seconds", row, workers)

    def minute(self, row: Mapping[str, int], workers: Iterable[Mapping[str, int]] = ()) -> None:
        """Adds a minute."""
        self._row("minutes", row, workers)

    def hour(self, at_ns: int, samples: Sequence[int], collates: Sequence[int]) -> None:
        """Adds the histograms of an hour, of 44 counts each."""
        self._append("hours", _HOUR.pack(0, 0, at_ns, *samples, *collates))

    def slowest(self, samples: Iterable[tuple[int, int, int, int]]) -> None:
        """Replaces the slowest samples: ns, index, worker, began_ns of the batch; the slowest first."""
        packed = b"".join(_SAMPLE.pack(ns, index, began_ns, worker, 0) for ns, index, worker, began_ns in samples)
        self._append("now", bytes(_HOUR.size) + packed)

    def batch(self, row: Mapping[str, int]) -> None:
        """Adds a batch: a dict as the columns of `batches`."""
        middle = [row.get(name, 0) for name in ("task", "began_ns", "fetch_ns", "collate_ns")]
        index = row.get("slowest_index", -1) % 2**64
        last = (_pack("slowest_ns", row.get("slowest_ns", 0)), _pack("used_bytes", row.get("bytes", 0)))
        self._append("batches", _BATCH.pack(0, 0, row.get("worker", 0), row.get("number", 1), *middle, index, *last))

    def step(self, at_ns: int, epoch: int, step: int, inside_us: int) -> None:
        """Adds a step of the loop; inside_us -1: the first of an epoch."""
        since_us = (at_ns - self._began_ns) // 1000
        self._append("steps", _STEP.pack(0, 0, since_us // 1000, epoch, step, inside_us % 2**32, since_us % 1000))

    def write(self, path: Path, ended: str = "the job ended", ended_ns: int = 0) -> Path:
        """Writes the file."""
        if ended:
            rest = struct.pack("<Iq", _ENDS.index(ended), ended_ns)
            self._bytes[_FINISH_AT : _FINISH_AT + 16] = struct.pack("<I", zlib.crc32(rest)) + rest
        path.write_bytes(self._bytes)
        return path


_TEXTS = {"name": "train.py:88", "host": "node07", "version": "0", "command": "python train.py"}
