# SPDX-License-Identifier: Apache-2.0
"""Measures batches of rows: a TensorDataset, token files, tables; and samples of text files. The rivals are torch's
loader, datasets' own reading, and what people write by hand. Values are the CPU time of the trainer for a batch; with
workers, the time that passes. The tables need Hugging Face's datasets, which `make bench` installs.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import headrace.torch
import numpy as np
import torch
import torch.utils.data
from headrace import _core, sources
from headrace.sources._index import make_index
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, show_against
from torch.utils.data import TensorDataset

BATCH = 256
STEPS = 40 if QUICK else 120
TORCH, OURS, BY_HAND = "torch", "headrace", "by hand"
GET_BATCH, READY, DATASETS = "nanoGPT's get_batch", "numpy, ready memory", "datasets"

Batches = Callable[[], Iterator[Any]]


def each_us(batches: Batches, workers: int) -> float:
    """Returns the time of a batch in the middle of an epoch. As in a loop, a batch is kept until the next one came."""
    iterator = batches()
    for _ in range(8):
        batch = next(iterator)
    clock = time.perf_counter if workers else time.thread_time
    start = clock()
    for _ in range(STEPS):
        batch = next(iterator)
    del batch
    return 1e6 * (clock() - start) / STEPS


def compare(work: str, workers: int, ways: dict[str, Batches]) -> list[Row]:
    """Measures the ways in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, batches in ways.items():
            found[name].append(each_us(batches, workers))
    return [Row(work, name, workers, statistics.median(values), "us") for name, values in found.items()]


# ---- a TensorDataset ----


def name_of(floats: int) -> str:
    return f"TensorDataset, {BATCH} rows of {floats} float32 and a label, shuffled"


def select(x: torch.Tensor, y: torch.Tensor) -> Iterator[Any]:
    """The loop that many scripts have in place of a loader."""
    order = torch.randperm(len(x))
    for at in range(0, len(x), BATCH):
        indices = order[at : at + BATCH]
        yield x.index_select(0, indices), y.index_select(0, indices)


def of_tensors(floats: int, rows: int) -> list[Row]:
    x, y = torch.randn(rows, floats), torch.randint(0, 10, (rows,))

    def loader(kind: Any, workers: int) -> Iterator[Any]:
        return iter(kind(TensorDataset(x, y), BATCH, shuffle=True, num_workers=workers))

    found = []
    for workers in (0, 2):
        ways: dict[str, Batches] = {
            TORCH: partial(loader, torch.utils.data.DataLoader, workers),
            OURS: partial(loader, headrace.torch.DataLoader, workers),
        }
        found += compare(name_of(floats), workers, ways if workers else {**ways, BY_HAND: partial(select, x, y)})
    return found


# ---- token files ----

TOKENS, LENGTH = 12, 1024  # nanoGPT's batch
TOKEN_FILE = f"tokens of uint16 in a file, {TOKENS} x {LENGTH}, x and y as int64, in memory"


def get_batch(data: np.ndarray[Any, Any]) -> Iterator[Any]:
    """nanoGPT's get_batch, which draws with replacement."""
    while True:
        starts = torch.randint(len(data) - LENGTH, (TOKENS,))
        x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts])
        yield x, y


def into_ready_memory(data: np.ndarray[Any, Any]) -> Iterator[Any]:
    x, y = np.empty((TOKENS, LENGTH), np.int64), np.empty((TOKENS, LENGTH), np.int64)
    while True:
        for row, i in enumerate(np.random.randint(0, len(data) - LENGTH, TOKENS)):
            x[row] = data[i : i + LENGTH]
            y[row] = data[i + 1 : i + 1 + LENGTH]
        yield x, y


def of_tokens() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/train.bin"
        np.random.default_rng(0).integers(0, 50257, 20_000_000, dtype=np.uint16).tofile(path)
        data = np.memmap(path, np.uint16, "r")
        source = sources.Tokens(path, length=LENGTH, labels=True)

        def loader(kind: Any) -> Iterator[Any]:
            return iter(kind(source, TOKENS, shuffle=True))

        return compare(
            TOKEN_FILE,
            0,
            {
                GET_BATCH: partial(get_batch, data),
                OURS: partial(loader, headrace.torch.DataLoader),
                READY: partial(into_ready_memory, data),
            },
        )


# ---- tables ----

TABLE = "rows of a table at random, 64 x (2 lists of 512 int32 and a label)"
PARQUET = "the same rows from Parquet, first epoch with decoding, a row"
TABLE_ROWS = 5_000 if QUICK else 20_000


def make_table() -> Any:
    pa: Any = importlib.import_module("pyarrow")
    numbers = np.arange(TABLE_ROWS * 512, dtype=np.int32)
    lists = pa.ListArray.from_arrays(np.arange(TABLE_ROWS + 1, dtype=np.int32) * 512, numbers)
    return pa.table({"input_ids": lists, "attention_mask": lists, "label": np.arange(TABLE_ROWS)})


def find_datasets() -> Any:
    """Returns Hugging Face's datasets, or None, which is said."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        print("datasets is not installed, so tables are not measured", flush=True)
        return None


def of_table() -> list[Row]:
    datasets = find_datasets()
    if datasets is None:
        return []
    dataset = datasets.Dataset(datasets.table.InMemoryTable(make_table()))
    source = sources.Arrow(dataset)
    ways: dict[str, Batches] = {
        DATASETS: lambda: iter(torch.utils.data.DataLoader(dataset.with_format("torch"), 64, shuffle=True)),
        OURS: lambda: iter(headrace.torch.DataLoader(source, 64, shuffle=True)),
    }
    return compare(TABLE, 0, ways)


def of_parquet() -> list[Row]:
    datasets = find_datasets()
    if datasets is None:
        return []
    parquet = importlib.import_module("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        parquet.write_table(make_table(), f"{folder}/part.parquet", row_group_size=1000)
        number = itertools.count()

        def stream() -> float:
            files = {"train": f"{folder}/part.parquet"}
            dataset = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
            loader = torch.utils.data.DataLoader(dataset.with_format("torch"), 64)
            start = time.perf_counter()
            rows = sum(len(batch["label"]) for batch in loader)
            return 1e6 * (time.perf_counter() - start) / rows

        def ours() -> float:
            copy = f"{folder}/part-{next(number)}.parquet"
            shutil.copy(f"{folder}/part.parquet", copy)  # another file, so it is decoded again
            start = time.perf_counter()
            loader = headrace.torch.DataLoader(sources.Parquet(copy, keep="job"), 64, shuffle=True)
            rows = sum(len(batch["label"]) for batch in loader)
            return 1e6 * (time.perf_counter() - start) / rows

        return in_turn(PARQUET, {DATASETS: stream, OURS: ours}, "us", rounds=3)


# ---- text files ----

JSON_SAMPLE = "a sample of JSON lines of 0.9 KB at random"
LINE = "a line of 0.9 KB at random, as text"
LINE_INDEX = "where the lines of a text file are, a MB of the file"
IN_LIST, PLAIN_LOOP, PREAD = "a list of lines", "for line in file", "os.pread at known places"
LINES = 20_000 if QUICK else 200_000


def write_lines(path: str) -> list[int]:
    """Returns where the lines begin, and the end of the file."""
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma", "delta"])
    ends = [0]
    with open(path, "wb") as file:
        for number in range(LINES):
            text = " ".join(words[rng.integers(0, len(words), 150)])
            line = json.dumps({"id": number, "text": text, "score": number / 7}).encode() + b"\n"
            ends.append(ends[-1] + file.write(line))
    return ends


def each_sample_us(get: Callable[[int], Any]) -> float:
    indices = np.random.default_rng(1).integers(0, LINES, LINES // 10).tolist()
    start = time.thread_time()
    for index in indices:
        get(index)
    return 1e6 * (time.thread_time() - start) / len(indices)


def of_lines() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/train.jsonl"
        places = write_lines(path)
        with open(path) as file:
            lines = file.read().splitlines()
        descriptor = os.open(path, os.O_RDONLY)
        plain, parsed = sources.Lines(path, keep="job"), sources.Jsonl(path, keep="job")
        read = {
            IN_LIST: lambda: each_sample_us(lines.__getitem__),
            PREAD: lambda: each_sample_us(lambda i: os.pread(descriptor, places[i + 1] - places[i], places[i])),
            OURS: lambda: each_sample_us(plain.__getitem__),
        }
        parse = {
            IN_LIST: lambda: each_sample_us(lambda i: json.loads(lines[i])),
            OURS: lambda: each_sample_us(parsed.__getitem__),
        }
        datasets = find_datasets()
        if datasets is not None:
            options = {"data_files": path, "split": "train", "cache_dir": folder}
            theirs = datasets.load_dataset("json", **options)
            parse[DATASETS] = lambda: each_sample_us(theirs.__getitem__)
        found = in_turn(LINE, read, "us") + in_turn(JSON_SAMPLE, parse, "us")
        found += in_turn(LINE_INDEX, {PLAIN_LOOP: partial(by_loop, path), OURS: partial(by_index, path)}, "us")
        os.close(descriptor)
        return found


def by_loop(path: str) -> float:
    start, places, at = time.process_time(), [], 0
    with open(path, "rb") as file:
        for line in file:
            places.append(at)
            at += len(line)
    return 1e12 * (time.process_time() - start) / at


def by_index(path: str) -> float:
    start = time.process_time()
    make_index(_core.INDEX_LINES, [path], uses_saved=False)
    return 1e12 * (time.process_time() - start) / os.path.getsize(path)


def goals() -> list[Goal]:
    wide, narrow = name_of(784), name_of(8)
    return [
        Goal("784 floats, of index_select by hand", Key(wide, OURS), 1.15, Key(wide, BY_HAND)),
        Goal("784 floats, of torch", Key(wide, OURS), 1 / 8, Key(wide, TORCH)),
        Goal("8 floats, of torch", Key(narrow, OURS), 1 / 30, Key(narrow, TORCH)),
        Goal("784 floats, 2 workers, of torch", Key(wide, OURS, 2), 1 / 6, Key(wide, TORCH, 2)),
        Goal("8 floats, 2 workers, of torch", Key(narrow, OURS, 2), 1 / 10, Key(narrow, TORCH, 2)),
        Goal("tokens, of nanoGPT's get_batch", Key(TOKEN_FILE, OURS), 1 / 15, Key(TOKEN_FILE, GET_BATCH)),
        Goal("tokens, of numpy into ready memory", Key(TOKEN_FILE, OURS), 1, Key(TOKEN_FILE, READY)),
        Goal("rows of a table, of datasets' torch format", Key(TABLE, OURS), 1 / 12, Key(TABLE, DATASETS)),
        Goal("rows from Parquet, of datasets streaming", Key(PARQUET, OURS), 1 / 5, Key(PARQUET, DATASETS)),
    ]


CASES = [
    Case("tensors of 784", partial(of_tensors, 784, 60_000)),
    Case("tensors of 8", partial(of_tensors, 8, 400_000)),
    Case("tokens", of_tokens),
    Case("lines", of_lines),
    Case("table", of_table, in_quick=False),
    Case("parquet", of_parquet, in_quick=False),
]


def main() -> None:
    torch.set_num_threads(1)
    run_all(
        __doc__ or "",
        CASES,
        lambda case: case.run(),
        show_against(TORCH, GET_BATCH, DATASETS, IN_LIST, PLAIN_LOOP),
        goals,
    )


if __name__ == "__main__":
    main()
