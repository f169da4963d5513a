# SPDX-License-Identifier: Apache-2.0
"""Warnings of a loader: which line and module they name, and that they lose no batch where they are errors."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import datasets as d
import headrace
import numpy as np
import pytest
import torch
from loaders import Headrace, Torch, only_headrace


def long_epoch(kind: Any, profiled: bool) -> list[tuple[str, int, str]]:
    """Returns the places that the warnings of an epoch that is longer than __len__ name."""
    loader = kind(d.SizedCount(4, 2), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert len(loader) == 2
    with warnings.catch_warnings(record=True) as caught, torch.profiler.profile() if profiled else nullcontext():
        warnings.simplefilter("always")
        assert len(list(zip(loader, range(4), strict=True))) == 4
    return [(w.filename, w.lineno, str(w.message)) for w in caught if "IterableDataset" in str(w.message)]


@pytest.mark.parametrize("profiled", [False, True])
def test_wrong_length_warning_names_the_user_line_as_with_torch(profiled: bool) -> None:
    found, expected = long_epoch(Headrace, profiled), long_epoch(Torch, profiled)
    assert [file for file, _, _ in found] == [__file__] * 2
    if expected[0][0] != __file__:  # torch 2.6 names a line of its own
        found, expected = ([text for _, _, text in one] for one in (found, expected))
    assert found == expected


@only_headrace
@pytest.mark.parametrize("profiled", [False, True])
def test_a_warning_of_copies_names_the_users_line(profiled: bool) -> None:
    loader = Headrace(d.Images(8, side=1024), num_workers=1, multiprocessing_context="fork", arena_limit=6 << 20)
    with torch.profiler.profile() if profiled else nullcontext():
        with pytest.warns(UserWarning, match="batches are copied") as caught:
            assert len(list(loader)) == 8
    assert [warning.filename for warning in caught if "batches are copied" in str(warning.message)] == [__file__]


@only_headrace
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_warnings_as_errors_lose_no_batch(kind: Any) -> None:
    dataset = [np.full(1 << 20, i, np.uint8) for i in range(12)]
    loader = kind(dataset, num_workers=1, multiprocessing_context="fork", arena_limit=6 << 20)
    iterator, kept, warned = iter(loader), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while len(kept) < 12:
            try:
                kept.append(next(iterator))
            except UserWarning as warning:
                assert "batches are copied" in str(warning)
                warned += 1
    assert [int(batch[0, 0]) for batch in kept] == list(range(12))
    assert warned == 1
    assert next(iterator, "the end") == next(iterator, "the end") == "the end"


@pytest.mark.parametrize("options", [{"num_workers": 2.0}, {"num_workers": 1, "prefetch_factor": 1.5}], ids=repr)
@pytest.mark.filterwarnings("error")
def test_an_option_of_a_wrong_type_does_not_warn_of_pickling(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        iter(Headrace(d.Squares(4), **options))


def test_warnings_of_torchs_come_from_torchs_module() -> None:
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("ignore", module="torch")
        list(Headrace(d.Squares(4), pin_memory=True, **options))  # type: ignore[arg-type]
        iter(Headrace(d.Squares(4), **{**options, "num_workers": 64}))  # type: ignore[arg-type]
    assert [str(one.message) for one in caught if issubclass(one.category, UserWarning)] == []
