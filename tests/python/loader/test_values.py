# SPDX-License-Identifier: Apache-2.0
"""Values that a batch is made of arrive as they were, whatever way they take to the trainer."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import datasets as d
import numpy as np
import pytest
import torch
from loaders import Headrace, only_headrace, unbatched
from processes import run


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_elements_of_an_array_keep_their_type(dtype: str) -> None:
    (array,) = unbatched(Headrace, d.Calls(lambda _: np.arange(3, dtype=dtype), 1))
    assert type(array[0]) is np.dtype(dtype).type


@pytest.mark.parametrize("dtype", [torch.int4, torch.uint4, torch.uint1])
def test_a_dtype_below_one_byte_stays_itself(dtype: torch.dtype) -> None:
    (tensor,) = unbatched(Headrace, d.Calls(lambda _: torch.zeros(16, dtype=torch.uint8).view(dtype), 1))
    assert tensor.dtype is dtype


@only_headrace
def test_redefined_named_tuple_class_is_the_new_one() -> None:
    def one() -> tuple[Any, type]:
        point = collections.namedtuple("point", ["a", "b"])
        globals()["point"] = point
        (got,) = unbatched(Headrace, d.Calls(lambda i: point(i, i), 1))
        return got, point

    try:
        for _ in range(2):
            got, point = one()
            assert type(got) is point
    finally:
        globals().pop("point", None)


BIG = """
import sys
import torch
import datasets as d
from loaders import Headrace
from processes import private_bytes
class Tensors:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return [{index}, torch.zeros(5_000_000)]  # a set: not a plain tree
options = dict(batch_size=None, collate_fn=d.identity, num_workers=1, multiprocessing_context="fork")
iterator = iter(Headrace(Tensors(), **options))
(worker,) = iterator._workers
most = 0
for batch in iterator:
    most = max(most, private_bytes(worker.pid))
print(most < private_bytes() + 200_000_000)
"""


@only_headrace
def test_worker_keeps_no_tensor_of_a_pickled_batch(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BIG) == "True\n"


@pytest.mark.parametrize("collate_fn", [None, d.identity])
@pytest.mark.parametrize(
    "large", ["x" * (1 << 15), "\u00e9" * (1 << 15), b"x" * (1 << 15)], ids=lambda one: type(one).__name__
)
def test_a_large_text_that_a_batch_holds_twice_arrives_as_one(large: Any, collate_fn: Any) -> None:
    loader = Headrace([large] * 4, 4, num_workers=1, multiprocessing_context="fork", collate_fn=collate_fn)
    (batch,) = loader
    assert list(batch) == [large] * 4
    assert all(one is batch[0] for one in batch)
