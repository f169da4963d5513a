# SPDX-License-Identifier: Apache-2.0
"""Loaders and spawn list every object that cannot be pickled; repair="auto" makes some of them again."""

from __future__ import annotations

import gc
import json
import logging
import pathlib
import sys
import threading
import traceback
import warnings
import weakref
from typing import Any

import datasets as d
import headrace
import headrace.torch
import numpy as np
import pytest
import repairable as r
import torch
import unpicklable
from loaders import Headrace, only_headrace
from processes import run
from torch_features import skip_unless_said

only_with_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are not part of the message")
LOADERS = [headrace.Loader, Headrace]


def seen(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


class Several:
    """A dataset with two unpicklable objects."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.words = r.words()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("kind", LOADERS)
def test_unpicklable_dataset_is_freed_with_the_loader(kind: Any) -> None:
    def is_alive_after() -> bool:
        data = Several()
        try:
            list(kind(data, num_workers=1, multiprocessing_context="spawn"))
        except TypeError as error:
            assert "cannot pickle '_thread.lock' object" in str(error)
        reference = weakref.ref(data)
        del data
        return reference() is not None

    gc.collect()
    gc.disable()  # what it has open (files, an lmdb environment) would be so until the next collection
    try:
        assert not is_alive_after()
    finally:
        gc.enable()


def test_pickle_warning_names_the_same_line_as_torch() -> None:
    skip_unless_said("Got pickle error")

    def warned(kind: Any) -> list[tuple[str, int, str]]:
        with pytest.warns(UserWarning, match="Got pickle error") as caught, pytest.raises(TypeError):
            list(kind(Several(), num_workers=1, multiprocessing_context="spawn"))
        return [(one.filename, one.lineno, str(one.message)) for one in caught]

    assert warned(Headrace) == warned(torch.utils.data.DataLoader)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loader_that_cannot_start_names_all_unpicklable_objects(kind: Any, method: str) -> None:
    loader = kind(Several(), num_workers=1, multiprocessing_context=method, collate_fn=lambda batch: batch)
    with pytest.raises(TypeError, match="cannot pickle") as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iter(loader)
    text = seen(caught.value)
    assert f"dataset and collate_fn cannot be sent to worker processes (start method: {method}). 3 objects" in text
    for path in ("dataset.lock ", "dataset.words.default_factory ", "collate_fn "):
        assert f"\n  {path}" in text
    assert "test_doctor_loader.py:" in text and 'repair="auto"' in text and "headrace doctor " in text


@pytest.mark.parametrize("kind", LOADERS)
def test_the_exception_carries_the_report(kind: Any) -> None:
    loader = kind(Several(), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(TypeError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iter(loader)
    paths = [one.path for one in caught.value.headrace_report.findings]  # type: ignore[attr-defined]
    assert paths == ["dataset.lock", "dataset.words.default_factory"]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_start_that_fails_for_another_reason_has_no_report(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FAIL", "fork:EAGAIN")
    if not headrace._core.FAILPOINTS:
        pytest.skip("a build without failpoints")
    with pytest.raises(OSError, match="cannot start a worker process") as caught:
        iter(kind([1], num_workers=1, multiprocessing_context="spawn"))
    assert not hasattr(caught.value, "headrace_report")


REPAIRS: dict[str, tuple[Any, Any, Any]] = {
    "lock": (threading.Lock, r.use_lock, [False]),
    "rlock": (threading.RLock, r.use_lock, [True]),
    "condition": (threading.Condition, r.use_condition, [False]),
    "event": (threading.Event, r.use_event, [False, True]),
    "semaphore": (lambda: threading.BoundedSemaphore(2), r.use_semaphore, [True, True, False]),
    "local": (threading.local, r.use_local, [1]),
    "views": (r.views, r.use_views, [["a"], [1], [("a", 1)], {"a": 1}]),
    "functions": (r.functions, r.use_functions, [4, 13, 6, 3]),
    "default factory": (r.words, r.use_words, [7, -1]),
    "module": (lambda: json, r.use_module, ["[1]"]),
    "logger": (lambda: logging.Logger("headrace.test.repaired"), r.use_logger, ["headrace.test.repaired"]),
}


def repaired(thing: Any, use: Any, method: str = "spawn", kind: Any = headrace.Loader) -> tuple[Any, list[str]]:
    """Returns the sample, and the messages about repairs."""
    options = {"num_workers": 1, "multiprocessing_context": method, "collate_fn": r.collate, "repair": "auto"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (sample,) = list(kind(r.Holder(thing, use), **options))
    return sample, [str(one.message) for one in caught if "repaired" in str(one.message)]


@pytest.mark.parametrize("what", REPAIRS)
def test_repaired_object_works_in_the_worker(what: str) -> None:
    make, use, expected = REPAIRS[what]
    sample, messages = repaired(make(), use)
    assert sample == expected
    assert len(messages) == 1 and "dataset.thing" in messages[0]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_torchs_loader_repairs_too(method: str) -> None:
    sample, messages = repaired(r.words(), r.use_words, method, Headrace)
    assert sample == [7, -1] and len(messages) == 1 and "dataset.thing.default_factory" in messages[0]
    sample, messages = repaired(r.Temporary(), r.use_temporary, method, Headrace)
    assert sample == [0, 1, 2] and len(messages) == 1 and "dataset.thing.lock" in messages[0]


@pytest.mark.parametrize(
    ("mode", "options", "rest"),
    [("r", {}, "two\nthree\n"), ("rb", {}, b"two\nthree\n"), ("rb", {"buffering": 0}, b"two\nthree\n")],
)
def test_a_file_that_is_read_opens_at_its_position(tmp_path: Any, mode: str, options: Any, rest: Any) -> None:
    with r.opened(tmp_path / "file", mode, **options) as file:
        sample, _ = repaired(file, r.use_file)
        assert sample == [rest]
        assert file.read() == rest  # the trainer's own stays where it was


def test_a_file_that_is_written_is_not_repaired(tmp_path: Any) -> None:
    with open(tmp_path / "out", "w") as file:
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            repaired(file, r.use_file)
    assert "\n  dataset.thing " in seen(caught.value) and "again at the same" not in seen(caught.value)


def test_handlers_are_made_again_and_keep_writing(tmp_path: Any) -> None:
    handlers = [logging.StreamHandler(sys.stderr), logging.FileHandler(tmp_path / "log", mode="w")]
    handlers[1].handle(logging.LogRecord("n", logging.ERROR, "f", 1, "from the trainer", (), None))
    sample, _ = repaired(handlers[1:], r.use_handlers)
    handlers[1].close()
    assert sample == [False]
    assert (tmp_path / "log").read_text() == "from the trainer\nfrom the worker\n"


def test_object_without_repair_raises_and_is_the_only_one_named() -> None:
    with pytest.raises(TypeError, match="cannot pickle 'generator'") as caught:
        repaired([threading.Lock(), (i for i in ())], r.use_views)
    assert "1 object is in the way" in seen(caught.value) and "\n  dataset.thing[1] " in seen(caught.value)


def test_picklable_object_is_sent_unchanged() -> None:
    sample, messages = repaired([[1]], r.use_views)
    assert sample == [[1]] and messages == []


@pytest.mark.parametrize("repair", ["yes", True, 1])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_wrong_repair_is_refused(kind: Any, repair: Any) -> None:
    with pytest.raises(ValueError, match="repair should be 'auto' or None"):
        kind([1], repair=repair)


def test_a_replaced_worker_is_repaired_too(tmp_path: Any) -> None:
    dataset = r.Holder(r.words(), r.use_words)
    loader = headrace.Loader(
        dataset,
        num_workers=1,
        multiprocessing_context="spawn",
        repair="auto",
        collate_fn=r.collate,
        persistent_workers=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert list(loader) == [[7, -1]] and list(loader) == [[7, -1]]


# ---- batches ----


@pytest.mark.parametrize(
    ("collate", "path"),
    [(d.collate_to_lambda, "batch"), (d.collate_to_lock, "batch"), (d.collate_to_non_leaf, "batch")],
)
def test_a_batch_that_cannot_be_pickled_names_the_path(collate: Any, path: str) -> None:
    loader = Headrace([0, 2, 4, 1, 6, 8], 2, collate_fn=collate, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(Exception) as caught:
        list(loader)
    text = str(caught.value) + seen(caught.value)
    assert "headrace: batch cannot be sent to the trainer. 1 object is in the way" in text
    assert f"\n  {path}" in text and "batch 1, samples [2, 3]" in text


class Deep:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {"image": np.zeros(3), "meta": [1, unpicklable.WithAttributes(keys={}.keys())]} if index == 2 else index


@pytest.mark.parametrize("kind", LOADERS)
def test_path_in_the_batch_and_index_of_the_sample_are_reported(kind: Any) -> None:
    loader = kind(Deep(), batch_size=1, collate_fn=r.collate, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(TypeError) as caught:
        list(loader)
    text = str(caught.value) + seen(caught.value)
    assert "batch['meta'][1].keys" in text and "dict_keys" in text and "samples [2]" in text


# ---- spawn ----


def test_spawn_calls_the_function_in_each_process(tmp_path: Any) -> None:
    headrace.torch.spawn(r.work, (str, str(tmp_path)), nprocs=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "'0'", "1": "'1'"}


def test_spawn_raises_what_torchs_raises() -> None:
    def outcome(spawn: Any) -> Any:
        with pytest.raises(Exception) as caught:
            spawn(r.fails, nprocs=1)
        return type(caught.value), str(caught.value).splitlines()[-1], caught.value.error_index  # type: ignore[attr-defined]

    assert outcome(headrace.torch.spawn) == outcome(torch.multiprocessing.spawn)


def test_spawn_without_join_gives_torchs_context(tmp_path: Any) -> None:
    context = headrace.torch.spawn(r.work, (str, str(tmp_path)), join=False)
    assert isinstance(context, torch.multiprocessing.ProcessContext) and len(context.pids()) == 1
    while not context.join():
        pass


def test_spawn_warns_of_another_start_method_as_torch_does(tmp_path: Any) -> None:
    with pytest.warns(FutureWarning, match="only supports start_method=spawn") as caught:
        headrace.torch.spawn(r.work, (str, str(tmp_path)), start_method="fork")
    assert caught[0].filename == __file__


def test_spawn_names_what_cannot_be_sent() -> None:
    with pytest.raises(Exception, match=r"lambda|pickle") as caught:
        headrace.torch.spawn(lambda number: 0, ({"a": [threading.Lock()]},))
    text = seen(caught.value)
    assert "fn and args cannot be sent to worker processes (start method: spawn). 2 objects" in text
    assert "\n  fn " in text and "\n  args[0]['a'][0] " in text


def test_spawn_repairs(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match=r"args\[0\]"):
        headrace.torch.spawn(r.work, (lambda number: number + 41, str(tmp_path)), nprocs=2, repair="auto")
    assert sorted(pathlib.Path(path).read_text() for path in tmp_path.iterdir()) == ["41", "42"]


# ---- what a sampler gives ----


@pytest.mark.parametrize("kind", LOADERS)
def test_an_index_that_cannot_be_sent_to_a_worker_is_named(kind: Any) -> None:
    loader = kind(Deep(), sampler=[1, unpicklable.WithAttributes(f=lambda: 0)], batch_size=2, num_workers=1)
    with pytest.raises(Exception, match=r"lambda|pickle") as caught:
        list(loader)
    text = seen(caught.value)
    place = "indices (batch 0 of this epoch, drawn from the sampler, a list) cannot be sent to a worker. 1 object is in"
    assert place in text and "indices[1].f" in text
    assert "let the sampler give plain values" in text and 'repair="auto"' not in text
    assert [one.path for one in caught.value.headrace_report.findings] == ["indices[1].f"]  # type: ignore[attr-defined]


class Batches:
    """A batch sampler whose third batch holds a lock."""

    def __iter__(self) -> Any:
        return iter([[0], [1], [2, (1, threading.Lock())]])

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_batch_sampler_and_its_batch_are_named(kind: Any, method: str) -> None:
    loader = kind(Deep(), batch_sampler=Batches(), num_workers=1, multiprocessing_context=method)
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        list(loader)
    text = seen(caught.value)
    assert "indices (batch 2 of this epoch, drawn from the batch_sampler, a Batches) cannot be sent" in text
    assert "\n  indices[1][1] " in text


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_indices_of_a_list_are_checked_before_a_run(kind: Any, method: str) -> None:
    loader = kind([5, 6, 7], sampler=[0, unpicklable.WithAttributes(f=lambda: 0), 2], num_workers=1)
    report = headrace.doctor.check(loader, method, "loader")
    assert [one.path for one in report.errors] == ["loader.sampler[1].f"]
    assert "let the sampler give plain values" in report.errors[0].fix and not report.ok


@pytest.mark.parametrize("kind", LOADERS)
def test_iterator_as_sampler_is_reported_and_not_consumed(kind: Any) -> None:
    sampler = iter([0, 1, 2])
    report = headrace.doctor.check(kind([5, 6, 7], sampler=sampler, num_workers=1), name="loader")
    (found,) = report.findings
    assert (found.path, found.severity) == ("loader.sampler", "warning") and "second epoch" in found.reason
    assert list(sampler) == [0, 1, 2]


class NeverAsked:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        raise AssertionError("indices were drawn")


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
def test_a_check_draws_no_indices(kind: Any, argument: str) -> None:
    state = torch.get_rng_state()
    for options in ({argument: NeverAsked()}, {"shuffle": True}):
        assert headrace.doctor.check(kind([5, 6, 7], num_workers=1, **options)).findings == ()
    assert torch.equal(torch.get_rng_state(), state)


WITH_EVENT = """
import multiprocessing, threading, warnings
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    context = multiprocessing.get_context({method!r})
    gate = d.Gate(4, 1, context.Event())
    for options in ({{"dataset": [threading.Lock()]}}, {{"collate_fn": lambda batch: batch}},
                    {{"worker_init_fn": threading.Lock().acquire}},
                    {{"dataset": d.Gate(4, 1, multiprocessing.get_context("fork").Event())}}):
        try:
            iter(Headrace(**{{"dataset": gate, **options}}, num_workers=1, multiprocessing_context=context))
        except Exception as error:
            print(*error.__notes__, sep="\\n")
"""


@only_headrace
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take no notes before Python 3.11")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_argument_that_cannot_be_pickled_is_named(tmp_path: pathlib.Path, method: str) -> None:
    lines = [line for line in run(tmp_path, WITH_EVENT.format(method=method)).splitlines() if "cannot be sent" in line]
    names = ["dataset", "collate_fn", "worker_init_fn", "dataset"]
    assert [line.partition(" cannot be sent")[0] for line in lines] == [f"headrace: {name}" for name in names]
