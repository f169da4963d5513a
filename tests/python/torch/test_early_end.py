# SPDX-License-Identifier: Apache-2.0
"""A StopIteration of the user's ends the loop without an error, as with torch; headrace warns."""

from __future__ import annotations

import contextlib
import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import headrace.torch
import pytest
import torch
import torch.utils.data
from headrace.torch import DataLoader
from loaders import only_headrace
from processes import run

pytestmark = only_headrace

WORKERS = pytest.mark.parametrize("workers", [0, 1, 2])
EARLY = "headrace: the loop ends after "


class Stops(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """`next` on something empty, at sample 13 of 20."""

    def __init__(self, at: int = 13) -> None:
        self.at = at

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return next(iter([])) if index == self.at else index


class StopsAtOnce(Stops):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Unpickles:
    def __reduce__(self) -> Any:
        return next, (iter([]),)


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def stop_at_eight(samples: list[int]) -> Any:
    return next(iter([])) if 8 in samples else torch.tensor(samples)


def epoch(loader: Any) -> tuple[list[Any], list[str]]:
    """The batches of a loop, and what headrace warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]
    return batches, [text for one in caught if (text := str(one.message)).startswith(EARLY)]


def loader_of(dataset: Any, workers: int, kind: Any = DataLoader, **options: Any) -> Any:
    context = "fork" if workers else None
    return kind(dataset, 4, num_workers=workers, multiprocessing_context=context, **options)


@WORKERS
@pytest.mark.parametrize("options", [{}, {"rng": "sample"}, {"persistent_workers": True}])
def test_stop_iteration_of_a_sample_is_named(workers: int, options: dict[str, Any]) -> None:
    if not workers and "persistent_workers" in options:
        options = {}
    loader = loader_of(Stops(), workers, **options)
    for _ in range(2):
        batches, (text,) = epoch(loader)
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert text.startswith(f"{EARLY}3 of 5 batches, because the dataset or collate_fn raised StopIteration")
        assert "sample 13 of batch 3, [12, 13, 14, 15]" in text
        if not workers:
            assert re.search(
                r"test_early_end.py, line \d+, in __getitem__\n  \(headrace help epoch-ends-early\)$", text
            )


@WORKERS
def test_stop_iteration_of_collate_fn_is_named(workers: int) -> None:
    batches, (text,) = epoch(loader_of(range(20), workers, collate_fn=stop_at_eight))
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert f"{EARLY}2 of 5 batches" in text
    assert "batch 2, samples [8, 9, 10, 11]" in text


@WORKERS
def test_stop_iteration_of_getitems_names_the_batch(workers: int) -> None:
    _, (text,) = epoch(loader_of(StopsAtOnce(), workers))
    assert "[12, 13, 14, 15]" in text and "batch 3" in text


@WORKERS
def test_stop_iteration_without_a_length_names_the_drawn_count(workers: int) -> None:
    loader = DataLoader(Stops(2), batch_sampler=([one] for one in range(5)), num_workers=workers)
    _, (text,) = epoch(loader)
    assert re.match(rf"{EARLY}2 of at least [345] batches", text)


def test_a_batch_whose_unpickling_stops_the_loop_warns() -> None:
    def keep(samples: list[Any]) -> Any:
        return [Unpickles()] if 8 in samples else samples

    batches, (text,) = epoch(loader_of(range(20), 1, collate_fn=keep))
    assert len(batches) == 2
    assert text.startswith(f"{EARLY}2 of 5 batches")


@WORKERS
def test_stop_iteration_under_install_warns(workers: int) -> None:
    headrace.torch.install()
    try:
        _, texts = epoch(loader_of(Stops(), workers, torch.utils.data.DataLoader))
    finally:
        headrace.torch.uninstall()
    assert len(texts) == 1


def whole(workers: int) -> list[Any]:
    return [
        loader_of(range(20), workers),
        loader_of(Stops(-1), workers, rng="sample"),
        loader_of(Numbers(), workers),
        DataLoader(Numbers(), None, num_workers=workers),
        DataLoader(Stops(), 4, sampler=iter(range(10)), num_workers=workers),
        DataLoader(range(5), None, num_workers=workers),
        loader_of([], workers),
        loader_of(Stops(), workers, on_bad_sample="skip"),
    ]


@WORKERS
@pytest.mark.parametrize("number", range(8))
def test_complete_epoch_does_not_warn(workers: int, number: int) -> None:
    assert epoch(whole(workers)[number])[1] == []


@WORKERS
def test_stop_iteration_is_raised_where_warnings_are_errors(workers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match=EARLY):
            list(loader_of(Stops(), workers))


def test_the_loop_without_workers_can_go_on_after_a_stop() -> None:
    iterator = iter(loader_of(Stops(), 0))
    with warnings.catch_warnings(), contextlib.suppress(StopIteration):
        warnings.simplefilter("ignore")
        while True:
            next(iterator)
    assert next(iterator).tolist() == [16, 17, 18, 19]


ITERABLE = """
import torch.utils.data
from headrace.torch import DataLoader
class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(10))
def stop(samples):
    return next(iter([])) if 4 in samples else samples
if __name__ == "__main__":
    print(list(DataLoader(Numbers(), 4, num_workers={workers}, collate_fn=stop)))
"""


@pytest.mark.parametrize(
    "workers, expected", [(0, f"{EARLY}1 of at least 2 batches"), (1, "headrace: worker 0 ends early")]
)
def test_collate_fn_that_stops_an_iterable_warns(tmp_path: pathlib.Path, workers: int, expected: str) -> None:
    out = run(tmp_path, f"import sys; sys.stderr = sys.stdout\n{ITERABLE.format(workers=workers)}")
    assert "[[0, 1, 2, 3]]" in out
    assert expected in out
