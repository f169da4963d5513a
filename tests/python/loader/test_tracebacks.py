# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of an exception in the user's code: the user's frames, and at most two of headrace."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

import headrace
import headrace.torch
import pytest
import raised
import torch
from disturbed import BOTH
from headrace._base import tracebacks
from loaders import METHODS, Headrace, only_headrace

pytestmark = only_headrace
HEADRACE = os.path.dirname(headrace.__file__) + os.sep
IN_PROCESS = "in process"


def started(method: str) -> dict[str, Any]:
    """Returns the options of a loader whose samples are made in this process, or in a worker that is started so."""
    return {} if method == IN_PROCESS else {"num_workers": 1, "multiprocessing_context": method}


def caught(loader: Any) -> Exception:
    try:
        for _ in loader:
            pass
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def files_of(text: str) -> list[str]:
    return re.findall(r'^ *File "([^"]+)", line', text, re.MULTILINE)


def check(error: Exception, method: str) -> None:
    text = shown(error)
    files = files_of(text)
    assert sum(file.startswith(HEADRACE) for file in files) <= 2, text
    assert sum(file == raised.__file__ for file in files) >= 3, text  # decode of the cause, decode, and its caller
    assert type(error) is ValueError and raised.TEXT in text
    assert "The above exception was the direct cause of the following exception" in text
    assert method == IN_PROCESS or "Caught ValueError in " in text


PARTS: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": raised.Maps()},
    "stream": {"dataset": raised.Streams()},
    "collate": {"dataset": range(8), "collate_fn": raised.collate},
    "one by one": {"dataset": raised.Maps(), "rng": "sample", "seed": 0},
    "single": {"dataset": raised.Maps(), "batch_size": None},
}


@BOTH
@pytest.mark.parametrize("method", [IN_PROCESS, *METHODS])
@pytest.mark.parametrize("part", PARTS)
def test_users_frames_are_shown(kind: Any, method: str, part: str) -> None:
    options = {"batch_size": 2, **PARTS[part], **started(method)}
    check(caught(kind(**options)), method)


@pytest.mark.parametrize("method", METHODS)
def test_users_frames_of_a_worker_that_starts_are_shown(method: str) -> None:
    check(caught(Headrace(range(8), worker_init_fn=raised.starts, **started(method))), method)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_users_frames_of_a_sampler_are_shown(options: dict[str, Any]) -> None:
    check(caught(Headrace(range(8), sampler=raised.Sampler(), **options)), IN_PROCESS)


def test_users_frames_of_a_stream_that_begins_are_shown() -> None:
    check(caught(Headrace(raised.Closed())), IN_PROCESS)


@pytest.mark.parametrize("method", [IN_PROCESS, *METHODS])
def test_users_frames_are_shown_after_install(method: str) -> None:
    with headrace.torch.installed():
        check(caught(torch.utils.data.DataLoader(raised.Maps(), **started(method))), method)


@BOTH
@pytest.mark.parametrize("method", [IN_PROCESS, *METHODS])
def test_all_frames_are_shown_if_asked(kind: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TRACEBACK", "full")
    text = shown(caught(kind(raised.Maps(), **started(method))))
    assert sum(file.startswith(HEADRACE) for file in files_of(text)) > 2
    assert raised.TEXT in text


@BOTH
def test_frames_of_headraces_own_errors_stay(kind: Any) -> None:
    """The collate function of headrace, or torch's, raises this: no frame is the user's."""
    text = shown(caught(kind([object()])))
    assert re.search(r"found .*object", text) and files_of(text)[-1].endswith("collate.py"), text


def test_notes_and_context_stay() -> None:
    error = caught(Headrace(raised.Maps(), batch_size=2))
    assert isinstance(error.__cause__, KeyError) and error.__context__ is error.__cause__
    assert error.__suppress_context__
    error = caught(Headrace(raised.Maps(), batch_size=2, num_workers=1))
    assert "sample 3 of batch 1" in shown(error)


def test_chain_of_another_holder_is_not_changed() -> None:
    """The traceback that a dataset has kept stays as it was."""
    error = caught(Headrace(raised.Maps(), batch_size=2))
    assert error.__traceback__ is not None
    before = traceback.extract_tb(error.__traceback__)
    assert tracebacks.users_part(error.__traceback__) is not None
    assert traceback.extract_tb(error.__traceback__) == before
