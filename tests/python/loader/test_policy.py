# SPDX-License-Identifier: Apache-2.0
"""Options of restarts and samples, and what reports say of both."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pathlib
import pickle
import random
import struct
from typing import Any, BinaryIO

import headrace
import headrace.torch
import pytest
import torch
import torch.utils.data
from disturbed import BOTH, COUNT, load, undisturbed
from loaders import only_headrace
from mishaps import DEADLINE_S, Bad, Marks, Numbers, Plan, Random, Resumable, Stream, epoch
from processes import until

pytestmark = only_headrace


# ---- options ----


@BOTH
def test_rng_of_samples_needs_map_style_dataset(kind: Any, marks: Marks) -> None:
    for dataset in (Stream(COUNT, Plan(marks)), Resumable(COUNT, Plan(marks))):
        with pytest.raises(ValueError, match='rng="sample" needs a map-style dataset'):
            load(kind, dataset, rng="sample")


WRONG = [
    ("max_restarts", -1, ValueError),
    ("max_restarts", "2", TypeError),
    ("max_restarts", True, TypeError),
    ("max_restarts", None, TypeError),
    ("max_restarts", 1.5, TypeError),
    ("rng", "samples", ValueError),
    ("rng", None, ValueError),
    ("seed", "5", TypeError),
    ("seed", 1.5, TypeError),
    ("seed", True, TypeError),
    ("seed", -1, ValueError),
    ("on_bad_sample", "ignore", ValueError),
    ("on_bad_sample", None, ValueError),
    ("stall_after", 0, ValueError),
    ("stall_after", "30", TypeError),
    ("stall_after", float("nan"), ValueError),
    ("on_stall", "kill", ValueError),
    ("shutdown_timeout", 0, ValueError),
    ("shutdown_timeout", float("inf"), ValueError),
    ("shutdown_timeout", [5], TypeError),
    ("record", 5, TypeError),
    ("record", "", ValueError),
]


@BOTH
@pytest.mark.parametrize(("name", "value", "error"), WRONG)
def test_a_wrong_option_is_refused_by_name(kind: Any, name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{name} should ") as caught:
        load(kind, [1, 2], **{name: value})
    assert repr(value) in str(caught.value)


@BOTH
def test_an_epoch_that_is_no_number_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        load(kind, [1, 2]).set_epoch("1")


@BOTH
def test_options_survive_copies_and_pickle(kind: Any, marks: Marks) -> None:
    plan = Plan(marks, {7: ["SIGKILL", "SIGKILL"]})
    options = {
        "max_restarts": 2,
        "rng": "sample",
        "seed": 5,
        "on_bad_sample": "skip",
        "stall_after": 20.0,
        "on_stall": "raise",
        "shutdown_timeout": 4.0,
    }
    loader = load(kind, Random(COUNT, plan), **options)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert {name: getattr(other, name) for name in options} == options
    expected = epoch(load(kind, Bad(COUNT, Plan(marks), (7,)), **options))
    got = epoch(pickle.loads(pickle.dumps(loader)))
    assert [batch[0] for batch in got] == expected


def test_option_that_cannot_be_pickled_is_named() -> None:
    loader = load(headrace.torch.DataLoader, [1, 2], multiprocessing_context="spawn", on_bad_sample=lambda *_: "skip")
    with pytest.raises(Exception, match="lambda") as caught:
        epoch(loader)
    assert any("on_bad_sample" in note for note in caught.value.__notes__)


class OfItsOwn(torch.utils.data.DataLoader[Any]):
    """A user's subclass of torch's loader, with attributes that happen to have the names of options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rng = random.Random(3)
        self.seed = "a word"
        self.max_restarts = "many"


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, OfItsOwn])
def test_torchs_loaders_get_the_defaults_by_install(kind: Any, marks: Marks) -> None:
    options = {"batch_size": 3, "num_workers": 2, "multiprocessing_context": "fork"}
    with headrace.torch.installed():
        assert epoch(kind(Numbers(COUNT, Plan(marks)), **options)) == undisturbed(headrace.torch.DataLoader, "map")
        with pytest.raises(RuntimeError, match="max_restarts=N lets headrace replace"):
            epoch(kind(Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})), **options))


@BOTH
def test_an_option_may_be_set_for_the_next_iteration(kind: Any, marks: Marks) -> None:
    # The first epoch does not come to 31, nor is it prefetched.
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"], 31: ["SIGKILL"]})), max_restarts=0)
    with pytest.raises(RuntimeError, match="killed by signal"):
        epoch(loader)
    loader.max_restarts = 1
    assert epoch(loader) == undisturbed(kind, "map")
    assert loader.report()["restarts"] == 1
    loader.max_restarts = -1
    with pytest.raises(ValueError, match="max_restarts"):
        epoch(loader)


# ---- reports ----


@BOTH
def test_reports_count_restarts_and_starts(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {4: ["SIGKILL"]})), persistent_workers=True)
    with pytest.raises(RuntimeError, match="no report before the first iteration"):
        loader.report()
    iterator = iter(loader)
    list(iterator)
    # A worker counts a batch when it has published it: the last may be delivered by then.
    assert until(lambda: sum(one["batches"] for one in loader.report()["per_worker"]) == 14, DEADLINE_S)
    for report in (loader.report(), iterator.report()):
        assert report["restarts"] == 1
        assert report["bad_samples"] == []
        assert [one["starts"] for one in report["per_worker"]] == [1, 2]
        assert [one["is_alive"] for one in report["per_worker"]] == [True, True]
        assert sum(one["batches"] for one in report["per_worker"]) == report["batches"] == 14
        assert len({one["pid"] for one in report["per_worker"]} - {os.getpid()}) == 2
        for one in report["per_worker"]:
            assert min(one["waiting_s"], one["fetching_s"], one["collating_s"]) >= 0


COUNTERS = (
    "batches bytes copied waits waited_s sleeps asked trimmed used_bytes held_bytes held restarts skipped".split()
)
TIMES = "waiting_s fetching_s collating_s".split()


def seen_in(file: BinaryIO) -> dict[str, Any]:
    """Reads the counters of an arena in its shared memory, by the names of report(): struct hr__header and struct
    hr__worker of src/arena/layout.h."""
    version, workers, trainer = struct.unpack_from("=8xI4xI8xI", start := file.read(4096))
    assert (version, trainer) == (5, os.getpid())
    seen = dict(zip(COUNTERS, struct.unpack_from("=10QIIQ", start, 128), strict=True))
    seen["waited_s"] /= 1e9
    seen["per_worker"] = []
    for _ in range(workers):
        batches, pid, starts, *times = struct.unpack_from("=8xQI48xI16x3Q", file.read(256))
        in_s = {name: time / 1e9 for name, time in zip(TIMES, times, strict=True)}
        seen["per_worker"].append({"pid": pid, "starts": starts, "batches": batches, **in_s})
    return seen


def seen_from_outside(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the counters of the arena of that report."""
    pids = [one["pid"] for one in report["per_worker"]]
    for path in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # iterdir's own
            if not os.readlink(path).startswith("/memfd:headrace-arena "):
                continue
            with path.open("rb") as file:
                if file.read(8) != b"headrace":
                    continue
                file.seek(0)
                seen = seen_in(file)
            if [one["pid"] for one in seen["per_worker"]] == pids:
                return seen
    raise AssertionError(f"no arena has the workers {pids}")


class Wordless(Exception):
    def __str__(self) -> str:
        raise TypeError("no words")


class AtOne:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise Wordless
        return index


@BOTH
def test_bad_sample_with_unprintable_exception_is_skipped(kind: Any) -> None:
    loader = load(kind, AtOne(), on_bad_sample="skip", batch_size=2, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0], [2, 3]]
    assert [one.error for one in loader.report()["bad_samples"]] == ["Wordless, which cannot be printed"]


@BOTH
def test_the_counters_are_in_shared_memory_too(kind: Any, marks: Marks) -> None:
    data = Bad(COUNT, Plan(marks, {7: ["SIGKILL"]}), (4, 20, 21))
    loader = load(kind, data, on_bad_sample="skip", persistent_workers=True)

    def agrees() -> bool:
        report = loader.report()
        seen = seen_from_outside(report)
        # Those of the arena count the answers to the announcement of an epoch, too.
        counters = [name for name in COUNTERS if name not in ("batches", "waited_s")]
        assert {name: seen[name] for name in counters} == {name: report[name] for name in counters}
        assert report["batches"] == 14 * epochs
        assert seen["batches"] == report["batches"] + 2 * (epochs - 1)
        assert seen["waited_s"] >= report["waited_s"]
        workers = [{name: one[name] for name in seen["per_worker"][0]} for one in report["per_worker"]]
        return bool(seen["per_worker"] == workers)

    for epochs in (1, 2):
        list(loader)
        assert until(agrees, DEADLINE_S)  # a worker that has published its last batch has yet to count it
        seen = seen_from_outside(loader.report())
        assert (seen["restarts"], seen["skipped"]) == (1, 3 * epochs)
        assert seen["batches"] >= 14 * epochs
        assert min(seen["waits"], seen["waited_s"], seen["bytes"]) > 0
        assert [one["starts"] for one in seen["per_worker"]] == [2, 1]


@BOTH
def test_a_report_stays_after_the_end(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {4: ["SIGKILL"]})))
    iterator = iter(loader)
    list(iterator)
    assert loader.report() == iterator.report()
    assert (loader.report()["restarts"], loader.report()["batches"]) == (1, 14)


def test_an_own_context_starts_the_successors_too(marks: Marks) -> None:
    context = multiprocessing.get_context("fork")
    loader = load(headrace.Loader, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})), multiprocessing_context=context)
    assert epoch(loader) == undisturbed(headrace.Loader, "map")
