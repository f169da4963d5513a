# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader in a process that uses torch too, and headrace.torch in one that has no torch."""

from __future__ import annotations

import pathlib
from typing import Any

import datasets as d
import headrace
import pytest
import torch
from loaders import Headrace, only_headrace
from processes import run

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None
try:
    import headrace.torch
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_the_import_says_what_to_do(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, WITHOUT_TORCH)
    assert (
        output.startswith("headrace.torch needs torch")
        and "pip install torch" in output
        and "headrace.Loader" in output
    )


@only_headrace
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("sample", [torch.ones(3), (torch.ones(3), 1)], ids=["alone", "in a tuple"])
def test_loader_without_torch_collates_no_tensors(workers: int, sample: Any) -> None:
    list(Headrace([1, 2], num_workers=1, multiprocessing_context="fork"))  # registers the functions for tensors
    with pytest.raises(TypeError, match=r"found torch\.Tensor; give the loader a collate_fn"):
        list(headrace.Loader([sample] * 2, 2, num_workers=workers, multiprocessing_context="fork"))


def test_numpy_loader_accepts_iterable_datasets_of_torch() -> None:
    loader = headrace.Loader(d.Count(3), None, num_workers=1, multiprocessing_context="fork")
    assert [number for number, _ in loader] == [0, 1, 2]
