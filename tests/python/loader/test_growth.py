# SPDX-License-Identifier: Apache-2.0
"""The trainer reports which attributes of the dataset its workers copy or add to."""

from __future__ import annotations

import collections
import contextlib
import gc
import multiprocessing
import os
import pathlib
import random
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import pytest
from headrace import _core
from headrace._base import growth
from loaders import needs_failpoints, only_headrace
from mishaps import DEADLINE_S
from processes import run, until

pytestmark = [only_headrace, pytest.mark.timeout(600)]

COUNT = 100_000
PATHS = 2048
EPOCHS = 8
TRIES = 3


def share(value: object, seed: int = 7) -> float:
    """Returns the part of the examined pages of a value that are private to this process."""
    _, _, pages, private = _core.private_share(value, PATHS, seed)
    assert pages > PATHS / 4
    return private / pages


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """A collection writes to the heads of all containers, read or not, in the trainer as in its worker."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def result_of_fork(work: Callable[[], Any]) -> Any:
    """Returns the result of `work` in a forked worker that has not read anything yet."""
    loader = headrace.Loader(_Once(work), None, num_workers=1, multiprocessing_context="fork")
    with no_collection():
        (answer,) = loader
    return answer


class _Once:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.work()


def paths() -> list[str]:
    return [f"/data/train/class_{at % 997:04}/{at:012}.jpg" for at in range(COUNT)]


def records() -> list[dict[str, Any]]:
    return [{"id": at + 1000, "box": [at + 0.5, at + 1.5], "file": f"{at:020}.jpg"} for at in range(COUNT // 5)]


class Point:
    def __init__(self, x: float) -> None:
        self.x = x
        self.label = f"label {x}"


class Slotted:
    __slots__ = ("label", "x")

    def __init__(self, x: float) -> None:
        self.x = x
        self.label = f"label {x}"


def objects() -> Any:
    numpy = pytest.importorskip("numpy")
    _core.use_numpy()
    return numpy.array(paths(), dtype=object)


def a_view_of_objects() -> Any:
    """Makes an array of objects, like a column of a data frame."""
    return objects().reshape(1, -1)


MAKERS: dict[str, Callable[[], Any]] = {
    "list of str": paths,
    "list of dict": records,
    "tuple": lambda: tuple(paths()),
    "dict": lambda: {path: at + 1000 for at, path in enumerate(paths())},
    "defaultdict": lambda: collections.defaultdict(list, {path: [path] for path in paths()}),
    "set": lambda: set(paths()),
    "list of float": lambda: [at + 0.5 for at in range(COUNT)],
    "list of bytes": lambda: [path.encode() for path in paths()],
    "instances": lambda: [Point(at + 0.5) for at in range(COUNT)],
    "slots": lambda: [Slotted(at + 0.5) for at in range(COUNT)],
    "array of objects": objects,
    "view of an array of objects": a_view_of_objects,
    "deque": lambda: collections.deque(paths()),
}


def touch(value: Any) -> None:
    """Reads everything in random order, as a sampler would have it."""
    if isinstance(value, (set, dict, collections.deque)):
        entries = list(value.items() if isinstance(value, dict) else value)
    elif hasattr(value, "ravel"):
        entries = list(value.ravel())
    else:
        entries = [value[at] for at in random.Random(1).sample(range(len(value)), len(value))]
    for entry in entries:
        if isinstance(entry, dict):
            [*entry.values()]
            entry["box"][0]
        elif isinstance(entry, (Point, Slotted)):
            assert entry.x and entry.label


@pytest.mark.parametrize("kind", MAKERS)
def test_forked_worker_copies_only_what_it_reads(kind: str) -> None:
    """The objects that a forked worker reads become private copies; the others stay shared."""
    holes = MAKERS[kind]()  # fills those that earlier tests left in pages: what is made next has its pages to itself
    value, neighbour = MAKERS[kind](), MAKERS[kind]()

    def work() -> tuple[float, float, float, float]:
        before = share(value), share(neighbour)
        touch(value)
        return *before, share(value), share(neighbour)

    before, others_before, after, others_after = result_of_fork(work)
    del holes
    assert before < 0.03  # pages that were half full when the worker started, where it puts things of its own
    assert others_before < 0.03
    assert after > 0.6 if "dict" in kind else after > 0.9  # the tables of dicts are read, not written
    assert others_after < others_before + 0.02


def faults() -> int:
    """Returns how often this process has faulted, as it does when it first writes to a page that it shares."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_looking_copies_nothing() -> None:
    """Counts faults, because the share grows also if the trainer writes to a page: then the worker has it alone."""
    value = records()

    def work() -> tuple[int, int]:
        share(value)
        before = faults()
        for seed in range(200):  # more paths than there are records
            share(value, seed)
        looked = faults()
        touch(value)
        return looked - before, faults() - looked

    looked, touched = result_of_fork(work)
    assert touched > 1000
    assert looked < touched / 20


@pytest.mark.parametrize(
    ("kind", "per_entry"),
    [
        ("list of str", (80, 120)),  # a str of 41 characters and a pointer
        ("list of float", (24, 45)),
        ("set", (110, 220)),  # its table is half empty
        ("dict", (130, 260)),
        ("list of bytes", (75, 120)),
        ("slots", (100, 190)),
        ("deque", (80, 120)),
        ("array of objects", (80, 120)),
    ],
)
def test_the_bytes_are_about_what_is_there(kind: str, per_entry: tuple[int, int]) -> None:
    value = MAKERS[kind]()
    size, private, _, _ = _core.private_share(value, PATHS, 3)
    assert per_entry[0] < size / COUNT < per_entry[1]
    assert private == pytest.approx(size, rel=0.01)  # no other process has any of it


def test_copied_bytes_are_those_that_the_kernel_counts() -> None:
    value = [{"id": at + 1000, "box": [at + 0.5, at + 1.5], "file": f"{at:020}.jpg"} for at in range(COUNT)]

    def work() -> tuple[float, float]:
        before = _core.private_bytes()
        for entry in value:
            entry["file"]
        return _core.private_bytes() - before, _core.private_share(value, PATHS, 5)[1]

    counted, estimated = result_of_fork(work)
    assert counted > 20e6
    assert estimated == pytest.approx(counted, rel=0.15)


def test_an_object_that_is_in_two_lists_is_counted_half_in_each() -> None:
    here = [os.urandom(100) for _ in range(COUNT)]
    alone = _core.private_share(here, PATHS, 3)[0]
    there = list(here)
    for one in (here, there):
        assert _core.private_share(one, PATHS, 3)[0] == pytest.approx(alone / 2, rel=0.15)


def test_cycles_and_deep_nesting_come_to_an_end() -> None:
    ring: list[Any] = [bytes(100) for _ in range(100)]
    for _ in range(100):
        ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert _core.private_share(ring, PATHS, 1)[2] > 0
    assert _core.private_share(deep, PATHS, 1)[2] > 0
    while deep:  # else its deallocation would be as deep
        deep = deep[0]


def test_private_share_changes_no_object_of_the_interpreter() -> None:
    """Every object that Python holds can be examined, and has the same number of references afterwards."""
    everything = gc.get_objects()
    before = [*map(sys.getrefcount, everything)]
    for one in everything:
        _core.private_share(one, 4, 1)
    after = [*map(sys.getrefcount, everything)]
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    assert changed < 20  # the interpreter's own, such as what this function holds


@needs_failpoints
def test_without_proc_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "pagemap:EACCES")
    with pytest.raises(PermissionError):
        _core.private_share([1, 2, 3], 10, 1)


# ---- names ----


class Inner:
    __slots__ = ("empty", "words")

    def __init__(self) -> None:
        self.words = {f"word {at}": at for at in range(100)}


class Outer:
    def __init__(self) -> None:
        self.inner = Inner()
        self.splits = {"train": [*range(100)], 3: (1, 2), "lock": None}
        self.parts = [[*range(100)], {"deep": {*range(100)}}]
        self.itself = self

    @property
    def never(self) -> int:
        raise AssertionError("a property ran")


def test_places_have_the_names_that_a_user_can_paste() -> None:
    dataset = Outer()
    found = growth.large_parts(dataset)
    names = [path for path, _ in found]
    expected = [
        "dataset.inner.words", "dataset.splits['train']", "dataset.parts[0]", "dataset.parts[1]['deep']"
    ]  # fmt: skip
    assert [name for name in names if name in expected] == expected
    for path, value in found:
        assert eval(path, {"dataset": dataset}) is value


# ---- what the trainer says ----

GROWING = """
import random, sys, time, warnings
import headrace, headrace._base.growth

headrace._base.growth.CLOSE_RARE = 1  # a look that the machine interrupts does not put off the next one for long

class Paths:
    def __init__(self, count):
        self.items = [f"/data/train/class_{at % 997:04}/{at:012}.jpg" for at in range(count)]
        self.neighbour = [f"/data/train/other_{at % 997:04}/{at:012}.jpg" for at in range(count)]
        self.cache = {}
    def __len__(self):
        return len(self.items) // LESS
    def __getitem__(self, index):
        BODY
        return len(self.items[index])

if __name__ == "__main__":
    headrace._base.growth.look_s = LOOK_S
    dataset = Paths(450_000)
    loader = headrace.Loader(dataset, 256, shuffle=True, num_workers=2, seed=1, multiprocessing_context=METHOD)
    for epoch in range(EPOCHS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in loader:
                pass
        for warning in caught:
            print(epoch, warning.category.__name__, warning.filename == __file__, warning.message)
    print("end")
"""


def say(
    tmp_path: pathlib.Path,
    body: str = "pass",
    method: str = "fork",
    epochs: int = 1,
    less: int = 1,
    look_s: float | None = None,
    **env: Any,
) -> str:
    code = GROWING.replace("BODY", body).replace("METHOD", repr(method))
    code = code.replace("EPOCHS", str(epochs)).replace("LESS", str(less)).replace("LOOK_S", str(look_s))
    return run(tmp_path, code, timeout_s=300.0, **env)


def test_epoch_ends_with_growing_attribute_and_its_fix(tmp_path: pathlib.Path) -> None:
    """At the end of the epoch the trainer names the attribute that grows and the line that fixes it."""
    lines = say(tmp_path, epochs=2, look_s=0.05).splitlines()
    assert len(lines) == 2, lines  # once, although there are two epochs
    assert lines[0].startswith("0 UserWarning True headrace: reading dataset.items (list of 450,000")
    assert "per 1,000 samples" in lines[0]
    assert "available; when every worker has copied all of it, the copies take" in lines[0]
    assert "dataset.items = headrace.freeze(dataset.items), or DataLoader(..., freeze=True)" in lines[0]
    assert "neighbour" not in lines[0]


def loader_that_was_read(monkeypatch: pytest.MonkeyPatch, **options: Any) -> headrace.Loader:
    """After as many epochs as it takes until all workers have looked, when some epochs were read, however slow looking
    is here, and however fast reading."""
    monkeypatch.setattr(growth, "look_s", 0.1)
    monkeypatch.setattr(growth, "CLOSE_RARE", 1)
    loader = headrace.Loader(paths(), 64, collate_fn=len, persistent_workers=True, **options)

    def has_been_looked_at() -> bool:
        assert sum(loader) == COUNT
        growth = loader.report()["growth"]
        return any(one["workers"] == loader.num_workers and one["samples"] > 3 * COUNT for one in growth)

    assert until(has_been_looked_at, DEADLINE_S)
    return loader


def test_the_report_has_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    report = loader_that_was_read(monkeypatch, num_workers=2, multiprocessing_context="fork").report()
    (grown,) = report["growth"]
    assert (grown["path"], grown["type"], grown["count"], grown["workers"]) == ("dataset", "list", COUNT, 2)
    assert COUNT < grown["samples"] <= report["batches"] * 64
    assert grown["grown_bytes"] > 5e6
    assert not grown["is_added_to"]
    assert report["private_grown_bytes"] > grown["grown_bytes"] / 2


def test_default_start_method_reports_growth_only_if_it_is_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    report = loader_that_was_read(monkeypatch, num_workers=1).report()
    is_forked = multiprocessing.get_start_method() == "fork"
    assert [one["grown_bytes"] > 5e6 for one in report["growth"]] == [is_forked]


def test_without_being_asked_the_workers_look_often_enough(tmp_path: pathlib.Path) -> None:
    """A look that the machine interrupts seems to cost much, and the next one is late: not in each of a few runs."""
    assert any("dataset.items" in say(tmp_path, "sum(range(600))", epochs=2) for _ in range(TRIES))


def test_attribute_that_workers_add_to_is_told_from_copies(tmp_path: pathlib.Path) -> None:
    text = say(tmp_path, "self.cache[index] = bytes(1000)", "spawn", look_s=0.05)
    assert "adding to dataset.cache (dict of" in text
    assert "Each worker adds to its own copy of dataset.cache" in text


def test_dataset_that_was_sent_to_a_worker_does_not_grow(tmp_path: pathlib.Path) -> None:
    assert say(tmp_path, method="spawn", look_s=0.05, less=4) == "end\n"


def test_one_rank_of_a_machine_speaks_for_all(tmp_path: pathlib.Path) -> None:
    assert say(tmp_path, look_s=0.05, LOCAL_RANK="1") == "end\n"


def test_a_little_growth_is_not_worth_a_word() -> None:
    def grown(megabytes: float, spare: float) -> str | None:
        one = growth.Growth("dataset.items", "list", 10, 1e6 * megabytes, 1e6 * megabytes, False, 2, 1000, 10.0)
        return growth.message([one], spare)

    assert grown(0.5, 1e6) is None
    assert grown(10, 100e9) is None
    assert grown(10, 20e6) is not None
    assert grown(100, 100e9) is not None


def test_message_says_when_memory_will_be_full() -> None:
    one = growth.Growth("dataset.items", "list", 10, 8e9, 2e9, False, 4, 100_000, 60.0)
    text = growth.message([one], 4e9)
    assert text is not None
    assert "19.1 MiB per 1,000 samples" in text
    assert "3.7 GiB are available: at this rate memory is full after 200,000 more samples, in about 2 min" in text


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"[]", b"null", b'{"samples": 1, "seconds": 1, "places": [{}]}', b'{"places": 3}', b"\xff\xfe"],
)
def test_invalid_growth_record_of_a_worker_is_ignored(record: bytes) -> None:
    class Core:
        def posted_status(self, worker: int) -> bytes:
            return record

    assert growth.news(Core(), 2) is None  # type: ignore[arg-type]


def test_no_warning_comes_where_nothing_grows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(len(batch) for batch in headrace.Loader([*range(1000)], 10, num_workers=2)) == 1000


def test_growth_warning_does_not_advise_what_is_set() -> None:
    def text(kind: str, is_frozen: bool) -> str:
        one = growth.Growth("dataset.items", kind, 10_000, 4e8, 2e8, False, 2, 1000, 5.0)
        return str(growth.message([one], 4e9, is_frozen))

    assert "DataLoader(..., freeze=True)" in text("list", False)
    assert "freeze=True has left it as it is" in text("list", True)
    assert text("ndarray", False) == text("ndarray", True)
    assert "dataset.items = headrace.freeze(dataset.items.tolist())" in text("ndarray", True)
    assert "freeze=True" not in text("ndarray", False)
    assert 'headrace.freeze(dataset.items.to_dict("records"))' in text("DataFrame", True)


OUTER = [f"images/{at}.jpg" for at in range(100)]


class ReadsGlobals:
    """A dataset that reads a module's variable, and a closure."""

    def __init__(self) -> None:
        labels = {f"label {at}": at for at in range(100)}
        self.transform = lambda path: labels.get(path)

    def __getitem__(self, index: int) -> object:
        return self.transform(OUTER[index])


def test_growth_sees_globals_and_closures_of_the_dataset() -> None:
    found = [path for path, _ in growth.large_parts(ReadsGlobals())]
    assert f"{__name__}.OUTER" in found
    assert f"{__name__}.ReadsGlobals.__init__.<locals>.<lambda>: labels" in found
    one = growth.Growth(f"{__name__}.OUTER", "list", 10_000, 4e8, 2e8, False, 2, 1000, 5.0)
    text = str(growth.message([one], 4e9, True))
    assert f"reading {__name__}.OUTER (list" in text
    assert "freeze=True looks at the attributes of the dataset only" in text
