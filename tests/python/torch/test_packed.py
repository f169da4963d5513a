# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.collate_packed: the samples of a batch in one row, and what models need to tell them apart."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draws
from headrace import Plan
from headrace.torch import DataLoader, collate_packed
from headrace.torch._batches import packed as _packed
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import only_headrace

INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32]


class Documents:
    """A dataset of given samples."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def by_a_worker(samples: list[Any], collate: Any = collate_packed) -> dict[str, Any]:
    """Returns the batch that a worker makes of the samples."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    [batch] = DataLoader(Documents(samples), batch_size=len(samples), collate_fn=collate, **options)
    return batch  # type: ignore[no-any-return]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


@st.composite
def rows(draw: st.DrawFn, size: int) -> Any:
    """Draws tokens as a list, an array or a tensor, perhaps with a stride."""
    kind = draw(st.sampled_from(INTS))
    array = np.arange(size * 2, dtype=np.int64).astype(kind)[:: draw(st.sampled_from([1, 2]))][:size]
    form = draw(st.sampled_from(["list", "array", "tensor", "backwards"]))
    if form == "list":
        return array.tolist()
    if form == "backwards":
        return array[::-1]
    return torch.as_tensor(array) if form == "tensor" else array


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Draws samples of one form: tokens, or dicts with or without labels."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    form = draw(st.sampled_from(["tokens", "dicts", "with labels"]))
    if form == "tokens":
        return [draw(rows(size)) for size in sizes]
    samples: list[Any] = [{"input_ids": draw(rows(size)), "attention_mask": [1] * size} for size in sizes]
    if form == "with labels":
        for sample, size in zip(samples, sizes, strict=True):
            sample["labels"] = draw(rows(size))
    return samples


def expected_of(samples: list[Any]) -> dict[str, Any]:
    """Computes the batch sample by sample."""
    names = ("input_ids", "labels", "position_ids", "seq_idx")
    found: dict[str, list[int]] = {name: [] for name in names}
    starts = [0]
    for number, sample in enumerate(samples):
        given = sample if isinstance(sample, dict) else {"input_ids": sample}
        tokens = [int(token) for token in given["input_ids"]]
        found["input_ids"] += tokens
        found["labels"] += [-100, *(int(one) for one in given.get("labels", tokens)[1:])][: len(tokens)]
        found["position_ids"] += range(len(tokens))
        found["seq_idx"] += [number] * len(tokens)
        starts.append(starts[-1] + len(tokens))
    longest = max(end - start for start, end in itertools.pairwise(starts))
    batch: dict[str, Any] = {name: torch.tensor([found[name]], dtype=torch.int64) for name in names}
    batch["seq_idx"] = batch["seq_idx"].to(torch.int32)
    for name in ("q", "k"):
        batch[f"cu_seq_lens_{name}"] = torch.tensor(starts, dtype=torch.int32)
    return {**batch, "max_length_q": longest, "max_length_k": longest}


@given(samples=batches())
@settings(deadline=None, max_examples=draws(200))
def test_samples_are_laid_end_to_end(samples: list[Any]) -> None:
    assert_same(collate_packed(samples), expected_of(samples))


@only_headrace
@given(samples=st.lists(batches(), min_size=1, max_size=8))
@settings(deadline=None, max_examples=8)
def test_workers_pack_the_same_without_python(samples: list[list[Any]]) -> None:
    """The extension packs into shared memory: Python's function, which raises here, is not called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_packed, "_row", None)
        everything = [sample for batch in samples for sample in batch]
        ends = np.cumsum([len(batch) for batch in samples]).tolist()
        indices = [list(range(end - len(batch), end)) for end, batch in zip(ends, samples, strict=True)]
        loader = DataLoader(
            Documents(everything),
            batch_sampler=indices,
            collate_fn=collate_packed,
            num_workers=1,
            multiprocessing_context="fork",
        )
        found = list(loader)
    for batch, own in zip(found, samples, strict=True):
        assert_same(batch, expected_of(own))


# ---- joined by name ----

KINDS = [np.float32, np.float64, np.float16, np.uint8, np.int64, np.bool_, np.complex64]


@st.composite
def named_values(draw: st.DrawFn, sizes: list[int]) -> list[Any]:
    """Draws arrays or tensors of one dtype that differ in the first dimension, perhaps with strides."""
    kind, tail = draw(st.sampled_from(KINDS)), draw(st.sampled_from([(), (3,), (2, 5), (1, 4, 2)]))
    found = []
    for size in sizes:
        array = np.arange(2 * size * int(np.prod(tail)) + 1).astype(kind)[: 2 * size * int(np.prod(tail))]
        array = array.reshape(2 * size, *tail)[:: draw(st.sampled_from([1, 2]))][:size]
        if draw(st.booleans()) and len(tail) > 1:
            array = array.swapaxes(1, 2).copy().swapaxes(1, 2)
        found.append(torch.as_tensor(array) if draw(st.booleans()) else array)
    return found


@st.composite
def with_names(draw: st.DrawFn) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Draws samples with tokens and up to three other parts."""
    count = draw(st.integers(1, 5))
    names = ("pixel_values", "grid", "audio")[: draw(st.integers(1, 3))]
    samples: list[dict[str, Any]] = [{"input_ids": draw(rows(draw(st.integers(0, 5))))} for _ in range(count)]
    for name in names:
        sizes = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        for sample, value in zip(samples, draw(named_values(sizes)), strict=True):
            sample[name] = value
    return samples, names


def expected_by_name(samples: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        parts = [torch.as_tensor(sample[name]) for sample in samples]
        starts = [sum(map(len, parts[:at])) for at in range(len(parts) + 1)]
        found[name] = torch.cat(parts)
        found[f"cu_seq_lens_{name}"] = torch.tensor(starts, dtype=torch.int32)
        found[f"max_length_{name}"] = max(map(len, parts))
    return found


@given(drawn=with_names())
@settings(deadline=None, max_examples=draws(100))
def test_values_of_names_are_joined(drawn: tuple[list[dict[str, Any]], tuple[str, ...]]) -> None:
    samples, names = drawn
    assert_same(collate_packed(samples, names=names), {**expected_of(samples), **expected_by_name(samples, names)})


@only_headrace
@given(drawn=st.lists(with_names(), min_size=1, max_size=6))
@settings(deadline=None, max_examples=8)
def test_workers_join_names_without_python(drawn: list[tuple[list[dict[str, Any]], tuple[str, ...]]]) -> None:
    for samples, names in drawn:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_packed, "_row", None)
            patch.setattr(_packed, "_join", None)
            found = by_a_worker(samples, functools.partial(collate_packed, names=list(names)))
        assert_same(found, {**expected_of(samples), **expected_by_name(samples, names)})
        assert all(found[name].is_contiguous() for name in names)


@only_headrace
def test_large_values_of_names_are_joined_by_workers() -> None:
    """A batch that two threads write, whose parts begin and end anywhere."""
    samples = [
        {"input_ids": [at], "pixel_values": np.random.default_rng(at).random((size, 1176), np.float32)}
        for at, size in enumerate((0, 700, 1, 0, 2000, 333, 0))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_packed, "_join", None)
        found = by_a_worker(samples, functools.partial(collate_packed, names=("pixel_values",)))
    assert_same(found, {**expected_of(samples), **expected_by_name(samples, ("pixel_values",))})


def test_other_values_of_names_are_joined_by_python() -> None:
    collate = functools.partial(collate_packed, names=("grid",))
    samples: list[Any] = [
        {"input_ids": [1], "grid": [[1, 2, 3]]},
        {"input_ids": [2, 3], "grid": [[4, 5, 6], [7, 8, 9]]},
    ]
    assert_same(by_a_worker(samples, collate), {**expected_of(samples), **expected_by_name(samples, ("grid",))})
    others = [collections.UserDict(sample) for sample in samples]
    assert_same(by_a_worker(others, collate), {**expected_of(samples), **expected_by_name(samples, ("grid",))})


def test_partials_of_collate_packed_are_known() -> None:
    partial = functools.partial
    assert _packed.names_of(collate_packed) == _packed.names_of(partial(collate_packed)) == ()
    assert _packed.names_of(partial(collate_packed, names=["a", "b"])) == ("a", "b")
    for other in (
        partial(collate_packed, [{"input_ids": [1]}]),
        partial(collate_packed, names="ab"),
        partial(collate_packed, names=("a", "a")),
        partial(collate_packed, names=("labels",)),
        partial(collate_packed, names=("a",), more=1),
        partial(len),
        type("Other", (partial,), {})(collate_packed, names=("a",)),
        lambda samples: collate_packed(samples),
        None,
    ):
        assert _packed.names_of(other) is None


NAMED: list[tuple[Any, Any, type[Exception], str]] = [
    ([{"input_ids": [1]}], ("x",), TypeError, "sample 0 has 'input_ids', but no 'x'; give it an array without rows"),
    ([[1]], ("x",), TypeError, "sample 0 is a list; with names, samples should be dicts"),
    ([{"input_ids": [1], "x": "a"}], ("x",), TypeError, "x of sample 0 is no array"),
    ([{"input_ids": [1], "x": 5}], ("x",), ValueError, "x of sample 0 is a single number"),
    (
        [{"input_ids": [1], "x": np.zeros((1, 2))}, {"input_ids": [1], "x": np.zeros((1, 3))}],
        ("x",),
        ValueError,
        r"x of sample 1 is torch.float64 \[1, 3\], and that of sample 0 is torch.float64 \[1, 2\]",
    ),
    (
        [{"input_ids": [1], "x": np.zeros(1)}, {"input_ids": [1], "x": np.zeros(1, np.float32)}],
        ("x",),
        ValueError,
        "x of sample 1 is torch.float32",
    ),
    ([{"input_ids": [1]}], "x", TypeError, "names should be keys of the samples such as .*, but got 'x'"),
    ([{"input_ids": [1]}], (3,), TypeError, "names should be keys of the samples"),
    ([{"input_ids": [1], "x": [1]}], ("x", "x"), ValueError, "'x' in names comes twice"),
    ([{"input_ids": [1]}], ("labels",), ValueError, "'labels' in names is a part that it makes itself"),
    ([{"input_ids": [1], "q": [1]}], ("q",), ValueError, "'q' in names is a part that it makes itself"),
]


@pytest.mark.parametrize(("samples", "names", "error", "message"), NAMED)
def test_bad_values_of_names_are_refused(samples: Any, names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        collate_packed(samples, names=names)
    with pytest.raises(error, match=message):
        by_a_worker(samples, functools.partial(collate_packed, names=names))


# ---- other samples ----


def test_samples_of_other_classes_are_packed_by_python() -> None:
    samples = [collections.UserDict(input_ids=[1, 2]), {"input_ids": [3]}]
    assert_same(by_a_worker(samples), expected_of([[1, 2], [3]]))


def test_batch_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    for samples in (
        [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}, {"input_ids": [5, 6]}],
        [{"input_ids": [1, 2, 3], "labels": [7, 8, 9]}, {"input_ids": [4, 4], "labels": [-100, 5]}],
    ):
        theirs = collate(samples)
        ours = by_a_worker(samples)
        assert set(ours) == set(theirs)
        assert_same(ours, {name: theirs[name] for name in ours})


def test_loss_of_a_packed_row_is_that_of_its_documents() -> None:
    """The parts are for this: each document by itself, and all in a row with attention inside documents only, give the
    same loss."""
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        hidden = embedding(batch["input_ids"]) + batch["position_ids"][..., None] / 10
        same = batch["seq_idx"][..., None] == batch["seq_idx"][:, None]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            hidden, hidden, hidden, (same & same.tril())[:, None][0]
        )
        logits = head(mixed)[:, :-1]
        return torch.nn.functional.cross_entropy(logits[0], batch["labels"][0, 1:], reduction="sum")

    documents = [torch.randint(0, 50, (length,)) for length in (5, 1, 9, 3)]
    packed = loss_of(collate_packed(documents))
    alone = sum(loss_of(collate_packed([one])) for one in documents)
    assert torch.allclose(packed, torch.as_tensor(alone), rtol=1e-5)


def test_rows_of_a_plan_are_packed() -> None:
    lengths = [3, 5, 2, 8, 1, 1]
    samples = [torch.full((length,), index) for index, length in enumerate(lengths)]
    loader = DataLoader(
        Documents(samples), batch_sampler=Plan(lengths, pack=10), collate_fn=collate_packed, num_workers=1
    )
    found = list(loader)
    assert all(batch["input_ids"].shape[1] <= 10 for batch in found)
    assert sorted(index for batch in found for index in batch["input_ids"][0].tolist()) == sorted(
        index for index, length in enumerate(lengths) for _ in range(length)
    )


BAD: list[tuple[Any, type[Exception], str]] = [
    ([{"text": "x"}], TypeError, "sample 0 has 'text', but no 'input_ids'"),
    ([[1], "abc"], TypeError, "input_ids of sample 1 is a str"),
    ([[1], [0.5]], TypeError, "input_ids of sample 1 is of torch.float32; tokens should be ints"),
    ([[1], [True]], TypeError, "sample 1 is of torch.bool"),
    ([[1], ["a"]], TypeError, "input_ids of sample 1 are no tokens"),
    ([[1], [2**70]], TypeError, "input_ids of sample 1 are no tokens"),
    ([torch.zeros(2, 2, dtype=torch.int64)], ValueError, r"input_ids of sample 0 has the shape \(2, 2\)"),
    ([{"input_ids": [1], "labels": [1]}, {"input_ids": [2]}], ValueError, "sample 0 has labels, but sample 1 has none"),
    ([{"input_ids": [1, 2], "labels": [1]}], ValueError, "sample 0 has 2 input_ids and 1 labels"),
]


@pytest.mark.parametrize(("samples", "error", "message"), BAD)
def test_bad_samples_are_refused(samples: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        collate_packed(samples)
    with pytest.raises(error, match=message):
        by_a_worker(samples)


def test_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no samples"):
        collate_packed([])
