# SPDX-License-Identifier: Apache-2.0
"""Measures headrace.freeze against ordinary Python objects, lists of pickles (as detectron2 keeps records), numpy and
pyarrow."""

from __future__ import annotations

import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import headrace
import numpy as np
from frozen_data import annotations, paths, unequal_paths
from frozen_memory import WORKERS, first_batches, growth, peak_of_building, private_bytes
from measure import QUICK, Case, Goal, Key, Row, in_turn, in_words, run_all

COUNT = 100_000 if QUICK else 1_000_000
RECORDS = 20_000 if QUICK else 200_000
READS = 200_000
MANY = 256
BUILT_IN = "built-in"


class Pickles:
    """Keeps a list of pickles in one array, and in a second array where each pickle ends."""

    def __init__(self, items: Sequence[Any]) -> None:
        each = [np.frombuffer(pickle.dumps(item, protocol=-1), dtype=np.uint8) for item in items]
        self.ends = np.cumsum([len(one) for one in each])
        self.bytes = np.concatenate(each)

    def __getitem__(self, index: int) -> Any:
        start = 0 if index == 0 else self.ends[index - 1].item()
        return pickle.loads(memoryview(self.bytes[start : self.ends[index].item()]))

    def nbytes(self) -> int:
        return int(self.bytes.nbytes + self.ends.nbytes)


def _arrow(items: list[str]) -> Any:
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow.array(items)


# ---- timing


def read_ns(items: Any, keys: Sequence[Any]) -> float:
    """Returns the nanoseconds of one `items[key]`. The loop's own time is included, and is the same for all."""
    start = time.perf_counter_ns()
    for key in keys:
        items[key]
    return (time.perf_counter_ns() - start) / len(keys)


def used_ns(items: Any, keys: Sequence[Any]) -> float:
    """Returns the nanoseconds of reading an item and using it, because a program that reads a path then opens it."""
    start = time.perf_counter_ns()
    for key in keys:
        items[key].endswith("g")
    return (time.perf_counter_ns() - start) / len(keys)


def field_ns(items: Any, keys: Sequence[int]) -> float:
    start = time.perf_counter_ns()
    for key in keys:
        items[key]["category_id"]
    return (time.perf_counter_ns() - start) / len(keys)


def arrow_ns(items: Any, keys: Sequence[int]) -> float:
    start = time.perf_counter_ns()
    for key in keys:
        items[key].as_py()
    return (time.perf_counter_ns() - start) / len(keys)


def miss_ns(items: Any, keys: Sequence[Any]) -> float:
    start = time.perf_counter_ns()
    for key in keys:
        key in items  # noqa: B015
    return (time.perf_counter_ns() - start) / len(keys)


def many_ns(take: Callable[[list[Any]], Any], keys: Sequence[Any]) -> float:
    groups = [list(keys[at : at + MANY]) for at in range(0, len(keys) - MANY, MANY)]
    start = time.perf_counter_ns()
    for group in groups:
        take(group)
    return (time.perf_counter_ns() - start) / (len(groups) * MANY)


# ---- what is measured

LIST = "list[str], random order"
LIST_USED = "list[str], random order, the end of each looked at"
LIST_UNEQUAL = "list[str], random order, paths that differ in length"
LIST_MANY = f"list[str], {MANY} at once"
DICT = "dict[str, int], hit"
DICT_EQUAL = "dict[str, int], hit by an equal string, not by the key itself"
DICT_MISS = "dict[str, int], miss"
DICT_MANY = f"dict[str, int], {MANY} at once"
FIELD = "one field of a COCO-like record"
PATH_BYTES = "bytes per 52-character path"
RECORD_BYTES = "bytes per COCO-like record"
BUILD = "building, of 1 MB of pickle"
PEAK = "peak memory of building"
OPEN = "opening a file frozen data of 10 GB"
OPEN_MEMORY = "opening a file frozen data of 10 GB, private memory"
GROWTH = "private memory of a worker, growth over 3 shuffled epochs"
SCANS = "the same, of 1,500 scans with 1 GB of arrays"
GROWTH_AFTER = "private memory of a worker, growth after {} epochs"
FIRST = "first batch with spawn"


def size_of(value: Any) -> int:
    """Returns the bytes of a value as Python objects. An object that is met twice is counted twice."""
    inner = 0
    if isinstance(value, dict):
        inner = sum(map(size_of, value.values()))  # The keys are interned strings.
    elif isinstance(value, list):
        inner = sum(map(size_of, value))
    return sys.getsizeof(value) + inner


def of_list() -> list[Row]:
    items = paths(COUNT)
    frozen, pickles, array, arrow = headrace.freeze(items), Pickles(items), np.array(items), _arrow(items)
    order = random.Random(2).sample(range(COUNT), min(COUNT, READS))
    ways = {
        BUILT_IN: lambda: read_ns(items, order),
        "pickles": lambda: read_ns(pickles, order),
        "numpy U": lambda: read_ns(array, order),
        "headrace": lambda: read_ns(frozen, order),
    }
    if arrow is not None:
        ways["pyarrow"] = lambda: arrow_ns(arrow, order)
    rows = in_turn(LIST, ways)
    rows += in_turn(LIST_USED, {BUILT_IN: lambda: used_ns(items, order), "headrace": lambda: used_ns(frozen, order)})
    unequal = unequal_paths(COUNT)
    frozen_unequal = headrace.freeze(unequal)
    rows += in_turn(
        LIST_UNEQUAL,
        {BUILT_IN: lambda: read_ns(unequal, order), "headrace": lambda: read_ns(frozen_unequal, order)},
    )
    at_once = {
        BUILT_IN: lambda: many_ns(lambda group: [items[i] for i in group], order),
        "headrace": lambda: many_ns(frozen.get_many, order),
    }
    rows += in_turn(LIST_MANY, at_once)
    own = statistics.mean(sys.getsizeof(path) for path in items[:1000]) + 8
    sizes = {BUILT_IN: own, "pickles": pickles.nbytes() / COUNT, "numpy U": array.nbytes / COUNT}
    sizes["headrace"] = headrace.frozen.nbytes(frozen) / COUNT
    return rows + [Row(PATH_BYTES, rival, 0, value, "bytes") for rival, value in sizes.items()]


def of_dict() -> list[Row]:
    keys = paths(COUNT)
    items = {key: number for number, key in enumerate(keys)}
    frozen = headrace.freeze(items)
    order = random.Random(3).sample(keys, min(COUNT, READS))
    strangers = ["".join(("x", key[1:])) for key in order]
    rows = in_turn(DICT, {BUILT_IN: lambda: read_ns(items, order), "headrace": lambda: read_ns(frozen, order)})
    equal = [key.encode().decode() for key in order]
    rows += in_turn(DICT_EQUAL, {BUILT_IN: lambda: read_ns(items, equal), "headrace": lambda: read_ns(frozen, equal)})
    rows += in_turn(
        DICT_MISS, {BUILT_IN: lambda: miss_ns(items, strangers), "headrace": lambda: miss_ns(frozen, strangers)}
    )
    at_once = {
        BUILT_IN: lambda: many_ns(lambda group: [items[key] for key in group], order),
        "headrace": lambda: many_ns(frozen.get_many, order),
    }
    return rows + in_turn(DICT_MANY, at_once)


def of_records() -> list[Row]:
    records = annotations(RECORDS)
    frozen, pickles = headrace.freeze(records), Pickles(records)
    draw = random.Random(4)
    order = [draw.randrange(RECORDS) for _ in range(READS)]
    ways = {
        BUILT_IN: lambda: field_ns(records, order),
        "pickles": lambda: field_ns(pickles, order),
        "headrace": lambda: field_ns(frozen, order),
    }
    sizes = {
        BUILT_IN: statistics.mean(map(size_of, records[:1000])) + 8,
        "pickles": pickles.nbytes() / RECORDS,
        "headrace": headrace.frozen.nbytes(frozen) / RECORDS,
    }
    return in_turn(FIELD, ways) + [Row(RECORD_BYTES, rival, 0, value, "bytes") for rival, value in sizes.items()]


def _ms_per_megabyte(work: Callable[[], object], pickled_bytes: int) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start) / (pickled_bytes / 1e6)


def of_building() -> list[Row]:
    records = annotations(RECORDS)
    pickled = sum(len(pickle.dumps(record, protocol=-1)) for record in records)
    rows = in_turn(
        BUILD,
        {
            BUILT_IN: lambda: _ms_per_megabyte(lambda: [pickle.dumps(one, protocol=-1) for one in records], pickled),
            "headrace": lambda: _ms_per_megabyte(lambda: headrace.freeze(records), pickled),
        },
        "ms",
    )
    frozen = float(headrace.frozen.nbytes(headrace.freeze(records)))
    return [
        *rows,
        Row(PEAK, "the frozen data", 0, frozen, "bytes"),
        Row(PEAK, "headrace", 0, peak_of_building(RECORDS), "bytes"),
    ]


def of_opening() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "large.frozen"
        with headrace.frozen.Builder(path) as builder:
            block = np.zeros(1 << 27, dtype=np.uint8)
            for number in range(80):
                builder.append({"number": number, "block": block})
        before, start = private_bytes(), time.perf_counter()
        frozen = headrace.open(path)
        ms = 1e3 * (time.perf_counter() - start)
        grown = private_bytes() - before
        assert frozen[79]["number"] == 79
    return [Row(OPEN, "headrace", 0, ms, "ms"), Row(OPEN_MEMORY, "headrace", 0, float(grown), "bytes")]


def of_growth() -> list[Row]:
    records = growth("growth", 300_000 if QUICK else 1_000_000)
    scans = growth("scans", 300 if QUICK else 1500)
    both = [(GROWTH, records), (SCANS, scans)]
    rows = [Row(work, rival, WORKERS, grown[-1], "bytes") for work, found in both for rival, grown in found.items()]
    return rows + [
        Row(GROWTH_AFTER.format(half / 2), rival, WORKERS, bytes_grown, "bytes")
        for rival, grown in records.items()
        for half, bytes_grown in enumerate(grown[:-1], start=1)
    ]


def of_start() -> list[Row]:
    found = first_batches(200_000 if QUICK else 2_000_000)
    return [Row(FIRST, name, 1, seconds, "s") for name, seconds in found.items()]


def goals() -> list[Goal]:
    def goal(work: str, bound: float, against: str = BUILT_IN, workers: int = 0) -> Goal:
        return Goal(f"{work}, of {against}", Key(work, "headrace", workers), bound, Key(work, against, workers))

    return [
        goal(LIST, 1.25),
        goal(LIST_UNEQUAL, 1.25),
        goal(LIST_MANY, 0.8),
        goal(DICT, 1.2),
        goal(DICT_MISS, 1.0),
        goal(DICT_MANY, 0.8),
        goal(FIELD, 1.1),
        Goal(PATH_BYTES, Key(PATH_BYTES, "headrace"), 58, unit="bytes"),
        goal(RECORD_BYTES, 0.85, "pickles"),
        Goal(f"{BUILD} (100 MB/s)", Key(BUILD, "headrace"), 10, unit="ms"),
        goal(PEAK, 1.1, "the frozen data"),
        Goal(OPEN, Key(OPEN, "headrace"), 1, unit="ms"),
        Goal(OPEN_MEMORY, Key(OPEN_MEMORY, "headrace"), 1e6, unit="bytes"),
        Goal(GROWTH, Key(GROWTH, "headrace", WORKERS), 1e6, unit="bytes"),
        Goal(SCANS, Key(SCANS, "headrace", WORKERS), 1e6, unit="bytes"),
        goal(FIRST, 1.05, "an empty dataset", 1),
    ]


CASES = [
    Case("list", of_list),
    Case("dict", of_dict),
    Case("records", of_records),
    Case("building", of_building),
    Case("opening", of_opening, in_quick=False),
    Case("growth", of_growth),
    Case("start", of_start),
]


def show(rows: list[Row]) -> None:
    base = {
        row.work: row.value for row in reversed(rows)
    }  # The first row of each work is what the others are compared with.
    for row in rows:
        print(
            f"{row.work:62} {row.rival:18} {row.value:14.1f} {row.unit:5} {in_words(row.value / base[row.work])}",
            flush=True,
        )


if __name__ == "__main__":
    run_all(__doc__ or "", CASES, lambda case: case.run(), show, goals)
