# SPDX-License-Identifier: Apache-2.0
"""Exceptions of workers: the original text and traceback arrive, whatever their class does."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import datasets as d
import failures as f
import headrace
import headrace.torch
import pytest
from disturbed import BOTH
from loaders import Headrace, only_headrace, unbatched
from torch._utils import ExceptionWrapper


def load(kind: Any, fail: Any, **options: Any) -> Any:
    fixed = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork"}
    return kind(f.Fails(fail), **{**fixed, **options})


def raised_by(loader: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        list(loader)
    return caught.value


def shown(error: BaseException) -> str:
    """Returns the text that Python prints if the exception is not caught."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


@BOTH
@pytest.mark.parametrize("name", list(f.FAILURES))
def test_exception_shows_original_text_and_traceback(kind: Any, name: str) -> None:
    text = shown(raised_by(load(kind, f.FAILURES[name])))
    assert f.TEXT in text
    assert "\nCaught " in text or ": Caught " in text
    assert re.search(r"\n *(\| )?Original .*Traceback \(most recent call last\):\n", text)
    assert "failures.py" in text


@BOTH
@pytest.mark.parametrize("name", list(f.WITHOUT_TEXT))
def test_exception_that_cannot_be_printed_shows_traceback(kind: Any, name: str) -> None:
    text = shown(raised_by(load(kind, f.WITHOUT_TEXT[name])))
    assert "\nOriginal Traceback (most recent call last):\n" in text
    assert "raise kind(TEXT, *arguments)" in text


@BOTH
@pytest.mark.parametrize("kept", [f.Drops, f.FrozenAndDrops, f.Lookup])
def test_exception_that_hides_its_text_keeps_its_class(kind: Any, kept: Any) -> None:
    assert type(raised_by(load(kind, f.raising(kept)))) is kept


@BOTH
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_exception_of_started_worker_shows_text(kind: Any, method: str) -> None:
    fail = f.fail_with_class_of_the_workers_own
    text = shown(raised_by(load(kind, fail, multiprocessing_context=method)))
    assert "No module named 'only_in_worker'" in text
    assert f"only_in_worker.Own: {f.TEXT}" in text


@BOTH
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
@pytest.mark.parametrize("fail", [f.raising(f.HasMessage), f.raising(f.Drops), f.fail_with_local_class])
def test_exception_that_is_made_otherwise_names_its_sample(kind: Any, fail: Any) -> None:
    assert "\nheadrace: sample 2 of batch 1, [2, 3] (worker 0)\n" in shown(raised_by(load(kind, fail)))


@BOTH
def test_exception_of_worker_init_fn_shows_text(kind: Any) -> None:
    def init(_: int) -> None:
        raise f.HasMessage(f.TEXT)

    assert f.TEXT in str(raised_by(load(kind, int, worker_init_fn=init)))


def wrapped(_: Any) -> ExceptionWrapper:
    try:
        raise f.HasMessage(f.TEXT)
    except f.HasMessage:
        return ExceptionWrapper(where="in a collate function")


def test_returned_wrapper_shows_text() -> None:
    error = raised_by(load(headrace.torch.DataLoader, int, collate_fn=wrapped))
    assert isinstance(error, RuntimeError)
    assert f.TEXT in str(error) and "in a collate function" in str(error)


@BOTH
def test_loop_goes_on_after_exception_that_is_made_otherwise(kind: Any) -> None:
    iterator = iter(load(kind, f.raising(f.HasMessage)))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(Exception, match=f.TEXT):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7]]


@BOTH
@pytest.mark.parametrize("base", [asyncio.CancelledError, GeneratorExit])
def test_base_exception_is_a_death_that_shows_its_text(kind: Any, base: Any) -> None:
    error = raised_by(load(kind, f.raising(base), max_restarts=0))
    assert f"{base.__name__}: {f.TEXT}" in str(error) and "failures.py" in str(error)


class Late:
    """A sampler whose store does not answer."""

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise TimeoutError("the store did not answer")

    def __len__(self) -> int:
        return 5


def test_a_timeout_of_the_sampler_is_the_samplers() -> None:
    with pytest.raises(TimeoutError, match="the store did not answer"):
        list(Headrace(d.Squares(9), sampler=Late(), num_workers=1, multiprocessing_context="fork"))


class NoDatabase:
    def __reduce__(self) -> Any:
        raise ConnectionError("no database today")


def test_oserror_while_pickling_the_dataset_is_raised_unchanged() -> None:
    with pytest.raises(ConnectionError) as caught:
        list(Headrace([NoDatabase()], num_workers=1, multiprocessing_context="spawn"))
    assert str(caught.value) == "no database today"


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("x",)


@only_headrace
def test_undecodable_batches_do_not_end_the_epoch_early() -> None:
    """A batch that cannot be decoded raises; the batches after it arrive."""
    iterator = iter(unbatched(Headrace, d.Calls(lambda i: Unreadable() if i < 2 else i, 8)))
    got = []
    for _ in range(2):
        with pytest.raises(ValueError):
            next(iterator)
    got.extend(iterator)
    assert got == [2, 3, 4, 5, 6, 7]
