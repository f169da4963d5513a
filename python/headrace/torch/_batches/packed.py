# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.collate_packed: lays the samples of a batch end to end. In a worker of headrace, the extension does
the same straight into shared memory (_core/exchange/packed.c): also for a partial of it, which is known by its function
and its names when an epoch begins."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

IGNORED = -100  # the label that torch's cross_entropy leaves out
_MOST = 2**31 - 1
_WHO = "headrace.torch.collate_packed"
_OWN = ("input_ids", "labels", "position_ids", "seq_idx", "q", "k")  # what names cannot be


def collate_packed(samples: Sequence[Any], *, names: Sequence[str] = ()) -> dict[str, Any]:
    """Returns one row of the tokens of all samples, for models whose attention keeps the documents of a row apart.

    Use it with a plan of packed rows: `DataLoader(dataset, batch_sampler=Plan(lengths, pack=8192),
    collate_fn=collate_packed)`. A sample is its tokens, or a mapping with `input_ids` and, if it has them, `labels`;
    other keys are left out. Tokens are ints in one dimension: a tensor, a NumPy array or a list.

    With samples of lengths n_0, n_1, ... and their sum N, the result has, by the names that Hugging Face's models take:

        input_ids: int64 (1, N), the tokens.
        labels: int64 (1, N), `labels` or else the tokens, with -100 for the first one of each sample, so that it is not
            predicted from the sample before it.
        position_ids: int64 (1, N), from 0 in each sample.
        seq_idx: int32 (1, N), the number of the sample.
        cu_seq_lens_q, cu_seq_lens_k: int32 (samples + 1,), where each sample begins, and N.
        max_length_q, max_length_k: int, the longest n.

    These are what transformers' DataCollatorWithFlattening returns. flash attention's varlen functions take
    cu_seq_lens_q as cu_seqlens_q, and max_length_q as max_seqlen_q.

    names: keys of the samples whose values are joined along their first dimension, such as the patches of images:
    `collate_fn=functools.partial(collate_packed, names=("pixel_values",))`. Values are tensors or arrays of one dtype,
    and of one shape apart from the first dimension, which is 0 for a sample that has nothing. Each name adds:

        pixel_values: the values of all samples.
        cu_seq_lens_pixel_values: int32 (samples + 1,), where the part of each sample begins, and the total.
        max_length_pixel_values: int, the longest part.

    Raises TypeError and ValueError, which name the sample.
    """
    names = _check_names(names)
    if not len(samples):
        raise ValueError(f"{_WHO}: there are no samples; a batch needs at least one")
    tokens = [_row(_part(sample, "input_ids", at), "input_ids", at) for at, sample in enumerate(samples)]
    labels = _labels(samples, tokens)
    lengths = torch.tensor([len(one) for one in tokens])
    total = int(lengths.sum())
    if total > _MOST:
        raise ValueError(f"{_WHO}: {len(samples)} samples have {total:,} tokens, but a row can have {_MOST:,}")
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    packed = torch.cat(labels)
    packed[starts[:-1][lengths > 0]] = IGNORED
    longest = int(lengths.max())
    return {
        "input_ids": torch.cat(tokens)[None],
        "labels": packed[None],
        "position_ids": (torch.arange(total) - starts[:-1].repeat_interleave(lengths))[None],
        "seq_idx": torch.arange(len(tokens), dtype=torch.int32).repeat_interleave(lengths)[None],
        "cu_seq_lens_q": starts.to(torch.int32),
        "cu_seq_lens_k": starts.to(torch.int32),
        "max_length_q": longest,
        "max_length_k": longest,
        **{key: value for name in names for key, value in _join(samples, name).items()},
    }


def names_of(collate_fn: Any) -> tuple[str, ...] | None:
    """Returns the names that a collate function joins, if it is collate_packed or a partial of it with names; None for
    any other function. The extension does what these do."""
    if collate_fn is collate_packed:
        return ()
    if type(collate_fn) is not functools.partial or collate_fn.func is not collate_packed or collate_fn.args:
        return None
    names = collate_fn.keywords.get("names", ())
    is_known = set(collate_fn.keywords) <= {"names"} and isinstance(names, (tuple, list))
    try:
        return _check_names(names) if is_known else None
    except (TypeError, ValueError):  # the function raises it
        return None


def _check_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(type(name) is str for name in names):
        raise TypeError(f"{_WHO}: names should be keys of the samples such as ('pixel_values',), but got {names!r:.80}")
    for at, name in enumerate(names):
        if name in _OWN or name in names[:at]:
            what = "comes twice" if name in names[:at] else "is a part that it makes itself"
            raise ValueError(f"{_WHO}: {name!r} in names {what}; give other keys of the samples")
    return tuple(names)


def _join(samples: Sequence[Any], name: str) -> dict[str, Any]:
    """Returns what the samples have by a name, joined, and where each part begins."""
    parts = [_named(sample, name, at) for at, sample in enumerate(samples)]
    for at, part in enumerate(parts):
        if part.dtype != parts[0].dtype or part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(
                f"{_WHO}: {name} of sample {at} is {part.dtype} {list(part.shape)}, and that of sample 0 is "
                f"{parts[0].dtype} {list(parts[0].shape)}; they should differ in the first dimension only"
            )
    lengths = [len(part) for part in parts]
    total = sum(lengths)
    if total > _MOST:
        raise ValueError(f"{_WHO}: {name} of {len(samples)} samples has {total:,} rows, but can have {_MOST:,}")
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return {
        name: torch.cat(parts),
        f"cu_seq_lens_{name}": starts.to(torch.int32),
        f"max_length_{name}": max(lengths),
    }


def _named(sample: Any, name: str, at: int) -> torch.Tensor:
    """Returns what a sample has by a name, as a tensor. Raises TypeError and ValueError."""
    if not isinstance(sample, Mapping):
        raise TypeError(f"{_WHO}: sample {at} is a {type(sample).__name__}; with names, samples should be dicts")
    value = _part(sample, name, at)
    if not isinstance(value, torch.Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"{_WHO}: {name} of sample {at} is no array: {error}") from None
    if not value.ndim:
        raise ValueError(f"{_WHO}: {name} of sample {at} is a single number; it should have a first dimension")
    return value


def _part(sample: Any, name: str, at: int) -> Any:
    if not isinstance(sample, Mapping):
        return sample
    if name not in sample:
        keys = ", ".join(map(repr, sample)) or "no keys"
        advice = "rename the key that has the tokens" if name in _OWN else "give it an array without rows"
        raise TypeError(f"{_WHO}: sample {at} has {keys}, but no {name!r}; {advice}")
    return sample[name]


def _row(value: Any, name: str, at: int) -> torch.Tensor:
    """Returns tokens or labels as a tensor of int64. Raises TypeError and ValueError."""
    if not isinstance(value, list) and not hasattr(value, "shape"):
        raise TypeError(
            f"{_WHO}: {name} of sample {at} is a {type(value).__name__}; tokens should be a tensor, a NumPy array or a "
            "list of ints"
        )
    if not isinstance(value, (list, torch.Tensor)):
        value = value.copy()  # torch takes no array with a negative stride
    try:
        row = torch.as_tensor(value) if len(value) else torch.zeros(0, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{_WHO}: {name} of sample {at} are no tokens: {error}") from None
    if row.ndim != 1:
        raise ValueError(f"{_WHO}: {name} of sample {at} has the shape {tuple(row.shape)}; it should be one row")
    if row.dtype.is_floating_point or row.dtype.is_complex or row.dtype == torch.bool:
        raise TypeError(f"{_WHO}: {name} of sample {at} is of {row.dtype}; tokens should be ints")
    return row.to(torch.int64)


def _labels(samples: Sequence[Any], tokens: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the labels of each sample: its own, or the tokens if no sample has labels."""
    have = [isinstance(sample, Mapping) and "labels" in sample for sample in samples]
    if not any(have):
        return tokens
    if not all(have):
        raise ValueError(
            f"{_WHO}: sample {have.index(True)} has labels, but sample {have.index(False)} has none; give labels to "
            "all samples of a batch, or to no sample"
        )
    labels = [_row(sample["labels"], "labels", at) for at, sample in enumerate(samples)]
    for at, (own, theirs) in enumerate(zip(labels, tokens, strict=True)):
        if len(own) != len(theirs):
            raise ValueError(
                f"{_WHO}: sample {at} has {len(theirs)} input_ids and {len(own)} labels; they should be as many"
            )
    return labels
