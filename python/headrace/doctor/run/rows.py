# SPDX-License-Identifier: Apache-2.0
"""Sees that samples are read one by one although headrace could gather the rows of a batch at once, and says which line
changes that. Only batches or samples that came out equal are named, with the gain measured on batches of the loader."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace import Loader, sources
from headrace._base import lookup
from headrace._samples import checks
from headrace._samples.compare import difference
from headrace._samples.random_numbers import generators_kept
from headrace.doctor.observations import Observation
from headrace.doctor.run.padding import batches_of

_BATCHES = 8  # that are made both ways
_SAMPLES = 16  # spread over the dataset, that are compared one by one
_ROUNDS = 3  # of which the fastest counts
_MOST_S = 2.0  # for these
_WORTH_IT = 1.5  # times as fast

_Choice = tuple[str, Any]  # the line, and the dataset that it makes


def check_rows(loader: Any) -> list[Observation]:
    """Returns an observation if headrace can gather the batches of a loader of torch's kind that are made sample by
    sample, else none. Exceptions of the dataset are left to the loader's own run."""
    if "torch.utils.data" not in sys.modules:
        return []
    from headrace.torch._own import loaders

    dataset = loader.dataset
    has_parts = lookup.has_special(dataset, "__getitem__") and lookup.has_special(dataset, "__len__")
    if not has_parts or isinstance(loader, Loader) or not loaders.is_batched(loader):
        return []
    try:
        with generators_kept():
            return _judge(loader)
    except Exception:
        return []


def _judge(loader: Any) -> list[Observation]:
    from headrace.torch import DataLoader
    from headrace.torch._batches import rows as _rows

    dataset = loader.dataset
    if isinstance(loader, DataLoader) and _rows.gatherer_of(dataset, loader.collate_fn) is not None:
        return []
    tasks = list(itertools.islice(batches_of(loader), _BATCHES))
    for line, other in _choices(loader):
        gather = _gather_of(other)
        if gather is None or any(gather(task) is None for task in tasks):
            continue
        pairs = ((_make(loader, task), gather(task)) for task in tasks)
        form = next((found for one, two in pairs if (found := difference(one, two, "batch")) is not None), None)
        if form is not None and (_has_own_collate(loader) or not _have_same_values(dataset, other)):
            continue
        now_s, then_s = _time(functools.partial(_make, loader), tasks), _time(gather, tasks)
        return _observe(line, now_s, then_s, sum(map(len, tasks)), form) if then_s * _WORTH_IT < now_s else []
    return []


def _make(loader: Any, indices: Any) -> Any:
    """Returns a batch as torch's loader makes it."""
    many = getattr(loader.dataset, "__getitems__", None)
    samples = many(indices) if many else [loader.dataset[index] for index in indices]
    return loader.collate_fn(samples)


def _gather_of(dataset: Any) -> Callable[[Any], Any] | None:
    """Returns what gathers a batch of a dataset, and gives None for one that it cannot; None: it gathers none."""
    from torch.utils.data import default_collate

    from headrace.torch._batches import rows as _rows

    gatherer = _rows.gatherer_of(dataset, default_collate)
    if gatherer is None:
        return None

    def gather(indices: Any) -> Any:
        rows = gatherer.rows(indices)
        return None if rows is None else _rows.batch_of(rows, 1)

    return gather


def _time(make: Callable[[Any], Any], tasks: list[Any]) -> float:
    """Returns the seconds that the batches take, in the fastest of some rounds."""
    found: list[float] = []
    end = time.perf_counter() + _MOST_S
    while len(found) < _ROUNDS and (not found or time.perf_counter() < end):
        start = time.perf_counter()
        for task in tasks:
            make(task)
        found.append(time.perf_counter() - start)
    return min(found)


def _has_own_collate(loader: Any) -> bool:
    from headrace.torch._batches import default_collate as _default_collate

    return not _default_collate.is_torchs(loader.collate_fn)


# ---- what could be gathered ----


def _choices(loader: Any) -> Iterator[_Choice]:
    """Yields datasets that might give the same samples. They have to be compared."""
    from torch.utils.data import TensorDataset

    dataset = loader.dataset
    own = ", without collate_fn" if _has_own_collate(loader) else ""
    yield f"headrace.torch.DataLoader(dataset, ...){own}", dataset
    if isinstance(dataset, TensorDataset):
        yield f"headrace.torch.DataLoader(TensorDataset(*dataset.tensors), ...){own}", TensorDataset(*dataset.tensors)
    for line, source in itertools.chain(_tables(dataset), _tokens(dataset), _arrays(dataset)):
        yield f"headrace.torch.DataLoader({line}, ...){own}", source


def _tables(dataset: Any) -> Iterator[_Choice]:
    """Yields the source of a Dataset of Hugging Face, which is not imported for it."""
    names = {(one.__module__, one.__qualname__) for one in type(dataset).__mro__}
    if ("datasets.arrow_dataset", "Dataset") in names:
        yield "sources.Arrow(dataset)", sources.Arrow(dataset)
        yield "sources.Arrow(dataset, keep_dtypes=True)", sources.Arrow(dataset, keep_dtypes=True)


def _memmaps(dataset: Any) -> dict[str, Any]:
    """Returns the mapped arrays that are attributes of a dataset."""
    numpy = sys.modules.get("numpy")
    attributes = getattr(dataset, "__dict__", {})
    return {} if numpy is None else {name: one for name, one in attributes.items() if type(one) is numpy.memmap}


def _tokens(dataset: Any) -> Iterator[_Choice]:
    """Yields sources whose windows might be the samples: x alone, or x and y, of one length."""
    found = _memmaps(dataset)
    parts = list(_parts_of(dataset[0]).values()) if found else []
    shapes = {tuple(getattr(one, "shape", ())) for one in parts}
    shape = shapes.pop() if len(shapes) == 1 else ()
    if len(shape) != 1 or len(parts) > 2 or shape[0] < 2:
        return
    for array in found.values():
        if array.ndim != 1 or array.dtype.kind not in "iu" or not array.filename:
            continue
        for stride in (shape[0], 1):
            options = {"length": shape[0], "stride": stride, "labels": len(parts) == 2, "dtype": str(array.dtype)}
            source = sources.Tokens(array.filename, **options)
            if len(source) == len(dataset) and _have_same_values(dataset, source):
                words = ", ".join(f"{name}={value!r}" for name, value in options.items())
                yield f"sources.Tokens({str(array.filename)!r}, {words})", source


def _arrays(dataset: Any) -> Iterator[_Choice]:
    """Yields the source of the mapped arrays whose rows might be the parts of a sample."""
    rows = {name: one for name, one in _memmaps(dataset).items() if len(one) == len(dataset)}
    sample = dataset[len(dataset) - 1] if rows else ()
    names: dict[Any, str] = {}
    for key, part in _parts_of(sample).items():
        equal = [name for name, one in rows.items() if _is_equal(part, one[len(dataset) - 1])]
        names.update({key: equal[0]} if len(equal) == 1 else {})
    if not names or len(names) < len(_parts_of(sample)):
        return
    is_dict = all(isinstance(key, str) for key in names)
    words = [f"{key}=dataset.{name}" if is_dict else f"dataset.{name}" for key, name in names.items()]
    columns = {key: rows[name] for key, name in names.items()}
    source = sources.Arrays(**columns) if is_dict else sources.Arrays(*columns.values())
    yield f"sources.Arrays({', '.join(words)})", source


# ---- samples ----


def _parts_of(sample: Any) -> dict[Any, Any]:
    """Returns the parts of a sample by name or number."""
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, (list, tuple)) and not all(isinstance(one, (int, float)) for one in sample):
        return dict(enumerate(sample))
    return {0: sample}


def _is_equal(one: Any, other: Any) -> bool:
    import numpy as np

    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and bool((a == b).all())


def _have_same_values(dataset: Any, other: Any) -> bool:
    """Returns True if samples that are spread over both have equal numbers, whatever holds them."""
    if len(dataset) != len(other):
        return False
    for number in checks.spread(len(dataset), _SAMPLES):
        one, two = _parts_of(dataset[number]), _parts_of(other[number])
        if one.keys() != two.keys() or not all(_is_equal(one[key], two[key]) for key in one):
            return False
    return True


def _observe(line: str, now_s: float, then_s: float, count: int, form: str | None) -> list[Observation]:
    text = (
        f"A sample takes {1e6 * now_s / count:.2f} us, read one by one; gathered by headrace, all rows of a batch at "
    )
    text += f"once, it takes {1e6 * then_s / count:.2f} us, in this process. "
    text += f"The {count:,} samples of some batches are equal." if form is None else ""
    text += f"The numbers are equal, but batches have another form ({form})." if form is not None else ""
    value = f"{now_s / then_s:.1f} times as fast if they are gathered"
    return [Observation("rows", "note", value, f"{count:,} samples", text, line)]
