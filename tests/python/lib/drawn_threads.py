# SPDX-License-Identifier: Apache-2.0
"""Draws loaders at random, and runs each with sample_threads and without. All that a user can observe is equal.

A case follows from its seed and its number. What is drawn: the dataset and its bad samples, the sampler, the batches,
the collate function, the options, where each epoch is left, and where it is continued. A run is a list of what was
observed: batches, exceptions with their notes, states, reports, warnings, and the random numbers after each epoch.
"""

from __future__ import annotations

import gc
import hashlib
import pprint
import random
import re
import sys
import threading
import time
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import headrace
import numpy as np
import torch
import torch.utils.data
from headrace._samples import retry
from headrace.torch import DataLoader

retry._FIRST_WAIT_S = 0.0005  # forked workers have it too
Run = list[Any]
Point = namedtuple("Point", "x y")
COUNT = 23  # samples of a dataset, at most
SLOW_S = 600.0  # a slow machine is no stall
# What calls the dataset, and where headrace raises.
_FRAME = re.compile(
    rf'  File "(?:{re.escape(headrace.__path__[0])}/|[^"]*/utils/data/_utils/fetch)[^\n]*\n(?:    .*\n)*'
)
LATE = "headrace: the fork server (pid "  # the warning that it is slow


# ---- datasets ----


class Refused(ValueError):
    """An exception of a class with an __init__ of its own: a worker cannot make it again from a text."""

    def __init__(self, index: Any, reason: str) -> None:
        super().__init__(f"sample {index!r} is refused: {reason}")
        self.index, self.reason = index, reason


def _raise_key_error(index: Any) -> None:
    raise KeyError(index)


def _raise_refused(index: Any) -> None:
    raise Refused(index, "odd")


def _raise_caused(index: Any) -> None:
    try:
        _raise_key_error(index)
    except KeyError as error:
        raise RuntimeError(f"sample {index!r} is not there") from error


def _raise_noted(index: Any) -> None:
    error = ValueError(f"sample {index!r} is bad")
    error.__notes__ = [f"seen at {index!r}"]  # type: ignore[attr-defined]  # add_note is not in Python 3.10
    raise error


def _raise_end(index: Any) -> None:
    raise StopIteration(index)


def _raise_late(index: Any) -> None:
    raise TimeoutError(f"sample {index!r} was late")


RAISES: list[Callable[[Any], None]] = [
    _raise_key_error,
    _raise_refused,
    _raise_caused,
    _raise_noted,
    _raise_end,
    _raise_late,
]


def _ragged(number: int) -> Any:
    return torch.arange(1 + number % 3)


VALUES: dict[str, Callable[[int], Any]] = {
    "int": int,
    "float": float,
    "text": lambda number: f"sample {number}",
    "bytes": lambda number: bytes([number]),
    "nothing": lambda number: None,
    "array": lambda number: np.full((2, 3), number, np.int32),
    "read-only": lambda number: np.broadcast_to(np.float32(number), (3,)),
    "scalar": np.float64,
    "tensor": lambda number: torch.full((3,), number, dtype=torch.int16),
    "large": lambda number: torch.full((70_000,), number, dtype=torch.float32),
    "flag": lambda number: number % 2 == 0,
    "ragged": _ragged,
    "pair": lambda number: (number, torch.tensor([number])),
    "named": lambda number: Point(number, [float(number), str(number)]),
    "nested": lambda number: {"a": [number, {"b": np.arange(number, number + 2)}], "c": (str(number),)},
    "mixed": lambda number: number if number % 2 else float(number),
}
OF_NUMPY = sorted(set(VALUES) - {"tensor", "large", "ragged", "pair"})
DRAWS: dict[str, Callable[[], float]] = {
    "numpy": lambda: float(headrace.sample_generator("numpy").random()),
    "random": lambda: headrace.sample_generator("random").random(),
    "torch": lambda: float(torch.rand((), generator=headrace.sample_generator("torch"))),
}


@dataclass
class Samples(torch.utils.data.Dataset[Any]):
    """Sample i has the number i. keys: a sampler gives texts. waits_s: how long a sample takes at most. bad: what the
    sample raises. passing: how often it raises an error that passes. draws: from which libraries it draws numbers.
    names_worker: it has the number of its worker."""

    value: str
    count: int
    keys: bool = False
    waits_s: float = 0.0
    bad: dict[int, int] = field(default_factory=dict)
    passing: dict[int, int] = field(default_factory=dict)
    draws: tuple[str, ...] = ()
    names_worker: bool = False

    def __post_init__(self) -> None:
        self.left = dict(self.passing)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        number = int(str(index).removeprefix("key"))
        if self.waits_s:
            time.sleep(self.waits_s * random.Random(number).choice((0, 0, 0.2, 1)))
        if self.left.get(number, 0):
            self.left[number] -= 1
            raise ConnectionResetError(f"sample {number} once more")
        if number in self.bad:
            RAISES[self.bad[number]](index)
        value = VALUES[self.value](number)
        drawn = [DRAWS[library]() for library in self.draws]
        if self.names_worker:
            info: Any = headrace.get_worker_info() or torch.utils.data.get_worker_info()
            drawn.append(-1 if info is None else info.id)
        return (value, drawn) if drawn else value


WRAPS: dict[str, Callable[[Any], Any]] = {
    "": lambda dataset: dataset,
    "subset": lambda dataset: torch.utils.data.Subset(dataset, list(reversed(range(len(dataset))))),
    "subsets": lambda dataset: torch.utils.data.Subset(
        torch.utils.data.Subset(dataset, list(range(len(dataset)))), list(range(len(dataset) - 1))
    ),
    "joined": lambda dataset: torch.utils.data.ConcatDataset([dataset, dataset]),
}


# ---- samplers and collate functions ----


class Raising:
    """A sampler that raises after some indices."""

    def __init__(self, indices: list[Any], after: int) -> None:
        self.indices, self.after = indices, after

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        yield from self.indices[: self.after]
        raise LookupError("the sampler has lost its list")


def collate_to_texts(samples: Any) -> Any:
    return [repr(shown(sample)) for sample in samples] if isinstance(samples, list) else repr(shown(samples))


def collate_or_raise(samples: Any) -> Any:
    if "7" in str(shown(samples)):
        raise ArithmeticError("a 7 is in this batch")
    return samples


def collate_with_numbers(samples: Any) -> Any:
    return samples, random.random(), float(np.random.random()), float(torch.rand(()))


COLLATES = {"texts": collate_to_texts, "raises": collate_or_raise, "draws": collate_with_numbers}


def skip_even(index: Any, error: Exception) -> str:
    return "skip" if len(str(index)) % 2 else "refill"


# ---- a case ----


@dataclass
class Case:
    """kind: of loader. lefts: how many batches of each epoch are taken, None for all. continues: the epoch that is
    left goes on in another loader, from a state. rng: that of the loader with threads, if it is another one."""

    kind: str
    dataset: Samples
    wrap: str
    sampler: tuple[str, Any]
    collate: str
    threads: int
    options: dict[str, Any]
    lefts: list[int | None]
    continues: bool
    rng: str

    @property
    def in_order(self) -> bool:
        return bool(self.options.get("in_order", True))

    @property
    def has_other_seeding(self) -> bool:
        """True if only the samples' own generators are seeded in the same way."""
        return self.rng != self.options["rng"]


def _draw_dataset(chance: random.Random, kind: str) -> Samples:
    value = chance.choice(sorted(VALUES) if kind == "torch" else OF_NUMPY)
    if chance.random() < 0.5:
        value = chance.choice(["int", "array", "nested"])
    count = chance.randint(1, COUNT)
    some = [number for number in range(count) if chance.random() < 0.15]
    libraries = chance.sample(sorted(DRAWS), chance.randint(1, 3)) if chance.random() < 0.5 else []
    return Samples(
        value,
        count,
        keys=chance.random() < 0.1,
        waits_s=chance.choice([0.0, 0.0005, 0.002]),
        bad={number: chance.randrange(len(RAISES)) for number in some if chance.random() < 0.5},
        passing={number: chance.randint(1, 3) for number in some},
        draws=tuple(libraries),
        names_worker=chance.random() < 0.3,
    )


def _draw_sampler(chance: random.Random, dataset: Samples, count: int) -> tuple[str, Any]:
    words = ["", "", "shuffle", "shuffle", "list", "repeats", "batches", "weighted", "raising", "arrays"]
    word = chance.choice(["list", "repeats", "batches"] if dataset.keys else words)
    key: Callable[[int], Any] = (lambda number: f"key{number}") if dataset.keys else int
    indices = [key(chance.randrange(count)) for _ in range(chance.randint(1, COUNT))]
    if word == "batches":
        batches, at = [], 0
        while at < len(indices):
            length = chance.randint(1, 6)
            batches.append(chance.choice([list, tuple])(indices[at : at + length]))
            at += length
        return word, batches
    if word == "list":
        return word, sorted(set(indices), key=str)
    if word == "raising":
        return word, (indices, chance.randint(0, len(indices)))
    if word == "arrays":
        return word, [np.int64(number) for number in indices]
    return word, indices


def _draw_options(chance: random.Random, is_batches: bool) -> dict[str, Any]:
    workers = chance.choice([0, 0, 1, 1, 2, 3])
    options: dict[str, Any] = {
        "num_workers": workers,
        "on_bad_sample": chance.choice(["raise", "raise", "skip", "refill", skip_even]),
        "retries": chance.choice([0, 1, 3]),
        "rng": chance.choice(["worker", "sample"]),
        "seed": chance.choice([None, 0, 5, 2**63 - 1]),
    }
    if not is_batches:
        options["batch_size"] = chance.choice([None, 1, 2, 3, 4, 7])
        options["drop_last"] = options["batch_size"] is not None and chance.random() < 0.3
    if workers:
        options |= {
            "prefetch_factor": chance.choice([1, 2, 2, 5]),
            "in_order": chance.random() < 0.85,
            "persistent_workers": chance.random() < 0.4,
            "multiprocessing_context": "fork",
            "stall_after": SLOW_S,
        }
    return options


def draw(seed: str, number: int, methods: tuple[str, ...] = ("fork",)) -> Case:
    """Returns a case. methods: the start methods of workers, from which one is drawn."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choice(["torch", "torch", "numpy"])
    dataset = _draw_dataset(chance, kind)
    wrap = chance.choice(["", "", "subset", "subsets", "joined"]) if kind == "torch" and not dataset.keys else ""
    wrap = "" if wrap == "subsets" and dataset.count < 2 else wrap
    sampler = _draw_sampler(chance, dataset, len(WRAPS[wrap](dataset)))
    options = _draw_options(chance, sampler[0] == "batches")
    if "multiprocessing_context" in options:
        options["multiprocessing_context"] = chance.choice(methods)
    lefts = [chance.choice([None, None, chance.randint(0, 6)]) for _ in range(chance.randint(1, 3))]
    case = Case(
        kind,
        dataset,
        wrap,
        sampler,
        chance.choice(["", "", "", *COLLATES]),
        chance.choice([2, 3, 4, 8, 16, 24]),
        options,
        lefts,
        chance.random() < 0.5,
        "worker" if chance.random() < 0.3 else options["rng"],
    )
    return _made_definite(case)


def _made_definite(case: Case) -> Case:
    """Changes what would be decided by time, also without threads."""
    dataset, options = case.dataset, case.options
    if dataset.draws:
        options["rng"] = "sample"  # without threads, sample_generator draws from the process's generators otherwise
    else:
        case.rng = options["rng"]
    if case.wrap.startswith("subset"):  # else the __getitems__ of torch's class is called without threads
        options["retries"] = max(1, options["retries"])
    if case.collate == "draws" and (case.has_other_seeding or not (case.in_order or options["rng"] == "sample")):
        case.collate = ""
    is_exact = all(left is None for left in case.lefts) and case.in_order
    if not case.in_order:
        case.lefts, case.continues = [None] * len(case.lefts), False
        case.sampler = ("", None) if case.sampler[0] == "raising" else case.sampler
        dataset.names_worker = False
    repeats = case.sampler[0] not in ("", "shuffle", "list") or case.wrap == "joined" or len(case.lefts) > 1
    ends = options["on_bad_sample"] == "raise" and (dataset.bad or max(dataset.passing.values(), default=0))
    if not is_exact or repeats or ends or options["on_bad_sample"] in ("refill", skip_even):
        # Samples behind an exception are not made without threads, and refills are tried in another process.
        dataset.passing = dataset.left = {}
    return case


# ---- a run ----


def shown(value: Any) -> Any:
    """Returns a value with its types, as what can be compared and printed."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), _content(value.numpy().tobytes(), value)
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.flags.writeable, _content(value.tobytes(), value)
    if isinstance(value, dict):
        return type(value).__name__, [(shown(key), shown(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shown(part) for part in value]
    return type(value).__name__, repr(value)


def _content(data: bytes, value: Any) -> Any:
    return hashlib.sha256(data).hexdigest()[:16] if len(data) > 1000 else value.tolist()


class Observer:
    """Runs a case, and keeps what it has seen."""

    def __init__(self, case: Case, threads: int) -> None:
        self.case, self.threads = case, threads
        self.seen: Run = []
        self.dataset = WRAPS[case.wrap](replace(case.dataset))

    def loader(self) -> Any:
        case = self.case
        options = {**case.options, "sample_threads": self.threads}
        if self.threads > 1:
            options["rng"] = case.rng
        word, indices = case.sampler
        if word == "shuffle":
            options["shuffle"] = True
        elif word == "batches":
            options["batch_sampler"] = indices
        elif word == "weighted" and case.kind == "torch":
            weights = [1.0 + number % 3 for number in range(len(self.dataset))]
            options["sampler"] = torch.utils.data.WeightedRandomSampler(weights, len(indices))
        elif word == "raising":
            options["sampler"] = Raising(*indices)
        elif word:
            options["sampler"] = indices
        if case.collate:
            options["collate_fn"] = COLLATES[case.collate]
        return (DataLoader if case.kind == "torch" else headrace.Loader)(self.dataset, **options)

    def run(self) -> Run:
        torch.manual_seed(3)
        np.random.seed(4)
        random.seed(5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._run_epochs()
        texts = [self._text(str(one.message)) for one in caught]
        ours = [text for text in texts if text.startswith("headrace") and not text.startswith(LATE)]
        self.seen.append(("warnings", sorted(ours)))
        return self.seen

    def _run_epochs(self) -> None:
        loader = self.loader()
        if self.case.kind == "numpy" and self.case.options["seed"] is None:
            loader.seed = 11  # it is drawn from the system
        for left in self.case.lefts:
            loader = self._run_epoch(loader, left)
            self._see_after(loader)

    def _run_epoch(self, loader: Any, left: int | None) -> Any:
        iterator = self._begin(loader)
        if iterator is None:
            return loader
        if not self._take(iterator, left) or left is None or not self.case.in_order:
            return loader
        state = loader.state_dict()
        self.seen.append(("state", state))
        del iterator
        if not self.case.continues:
            return loader
        seed = getattr(loader, "seed", None)
        loader = self.loader()
        if self.case.kind == "numpy":
            loader.seed = seed
        loader.load_state_dict(state)
        if (iterator := self._begin(loader)) is not None:
            self._take(iterator, None)
        return loader

    def _begin(self, loader: Any) -> Any:
        try:
            return iter(loader)
        except Exception as error:
            self._see_error("iter", error)
            return None

    def _take(self, iterator: Any, most: int | None) -> bool:
        """Takes batches until there are no more, or so many. Returns False after the last one."""
        found: Run = []
        while most is None or len(found) < most:
            try:
                found.append(("batch", shown(next(iterator))))
            except StopIteration:
                break
            except Exception as error:
                self._see_error("next", error, found)
        else:
            self.seen += found
            return True
        self.seen += found if self.case.in_order else sorted(found, key=repr)
        self.seen.append("end")
        return False

    def _see_error(self, where: str, error: BaseException, found: Run | None = None) -> None:
        notes = [self._text(note) for note in getattr(error, "__notes__", ())]
        cause = None if error.__cause__ is None else repr(error.__cause__)
        seen = self.seen if found is None else found
        seen.append((where, type(error).__name__, self._text(str(error)), self._plain(error.args), notes, cause))

    def _plain(self, arguments: tuple[Any, ...]) -> Any:
        return [self._text(one if isinstance(one, str) else repr(shown(one))) for one in arguments]

    def _text(self, text: str) -> str:
        """Returns a text without what may differ: frames of the loader, and workers and seeds if they do."""
        text = _FRAME.sub("", text)
        if not self.case.in_order:
            text = re.sub(r"worker(?: process)? \d+|batch \d+", "...", text)
            text = "\n".join(sorted(text.splitlines()))  # bad samples are listed as they came
        if self.case.rng == "worker":  # with threads, samples have seeds without rng="sample", too
            text = re.sub(r" --seed \d+ --epoch \d+(?: --draw \d+)?", "", text)
        return text

    def _see_after(self, loader: Any) -> None:
        try:
            report = loader.report()
        except RuntimeError:  # with num_workers=0, and no option that makes samples one by one
            report = {}
        bad = [(shown(one.index), one.error, one.worker) for one in report.get("bad_samples", ())]
        if not self.case.in_order:
            bad = sorted((index, text, 0) for index, text, _ in bad)
        self.seen.append(("report", bad, report.get("retried", 0)))
        if not self.case.has_other_seeding:
            state: Any = np.random.get_state()
            drawn = (random.getstate(), state[1].tolist(), state[2:], torch.get_rng_state().tolist())
            self.seen.append(("numbers", hashlib.sha256(repr(drawn).encode()).hexdigest()[:16]))


def threads_of_samples() -> list[str]:
    """Returns the threads that make samples. Those of an iterator end when it is freed, which a cycle may delay."""
    found = [one.name for one in threading.enumerate() if one.name.startswith("headrace-sample-")]
    if found:
        gc.collect()
    return found


def compare(case: Case) -> str:
    """Returns "" if a case has the same results with threads and without, or else what differs."""
    without = Observer(case, 1).run()
    with_threads = Observer(case, case.threads).run()
    if without == with_threads:
        return ""
    for at, (expected, found) in enumerate(zip(without, with_threads, strict=False)):
        if expected != found:
            return f"observation {at}:\nwithout: {pprint.pformat(expected)}\nwith threads: {pprint.pformat(found)}"
    return f"without: {len(without)} observations, with threads: {len(with_threads)}"


def check(seed: str, number: int, methods: tuple[str, ...] = ("fork",)) -> Case:
    """Runs a case. Raises AssertionError with what draws it again, if it differs."""
    case = draw(seed, number, methods)
    difference = compare(case)
    assert not difference, f"case {number} of seed {seed} ({methods}):\n{pprint.pformat(case)}\n{difference}"
    return case


if __name__ == "__main__":  # drawn_threads.py SEED NUMBER [METHOD...]
    check(sys.argv[1], int(sys.argv[2]), tuple(sys.argv[3:]) or ("fork",))
