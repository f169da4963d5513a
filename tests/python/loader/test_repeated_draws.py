# SPDX-License-Identifier: Apache-2.0
"""rng="sample" with a sampler that gives an index several times in an epoch."""

from __future__ import annotations

import array
import functools
import itertools
import random
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from disturbed import BOTH, HERE, load
from headrace.sampling._draws import DrawCounts
from loaders import only_headrace
from mishaps import epoch
from torch.utils.data import RandomSampler, WeightedRandomSampler

pytestmark = only_headrace
ORDER = [3, 1, 3, 3, 0, 1, 5, 3, 2, 4, 1, 3]


class Noise:
    """Sample i is (i, a random number)."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, float):
            raise KeyError(index)
        return index, random.random()


def samples(batches: Any) -> list[Any]:
    """Returns (index, number) of each sample of batches."""
    return [pair for indices, numbers in batches for pair in zip(indices, numbers, strict=True)]


def loader(kind: Any, sampler: Any, **options: Any) -> Any:
    standard = {"batch_size": 2, "rng": "sample", "seed": 5, "num_workers": 2}
    return load(kind, Noise(), sampler=sampler, **{**standard, **options})


@BOTH
def test_each_draw_of_an_index_has_its_own_random_numbers(kind: Any) -> None:
    expected = epoch(loader(kind, ORDER, **HERE))
    for options in (
        {"num_workers": 1},
        {"num_workers": 2},
        {"on_bad_sample": "refill"},
        {"on_bad_sample": "skip", **HERE},
    ):
        assert epoch(loader(kind, ORDER, **options)) == expected
    drawn = samples(expected)
    assert len(set(drawn)) == len(ORDER)
    once = dict(samples(epoch(loader(kind, range(6)))))
    first = dict(reversed(drawn))
    assert first == once, "the first draw has the numbers of an order without repeats"


@BOTH
def test_repeated_draws_do_not_depend_on_batches(kind: Any) -> None:
    drawn = samples(epoch(loader(kind, ORDER)))
    assert [tuple(sample) for sample in epoch(loader(kind, ORDER, batch_size=None))] == drawn
    batches = [ORDER[:5], ORDER[5:6], ORDER[6:]]
    assert samples(epoch(loader(kind, None, batch_sampler=batches, batch_size=1))) == drawn
    numpys = [np.int64(index) for index in ORDER]
    assert [(int(index), one) for index, one in samples(epoch(loader(kind, numpys)))] == drawn


@BOTH
@pytest.mark.parametrize("form", [np.array, functools.partial(array.array, "q")])
def test_repeated_draws_are_counted_in_batches_of_all_kinds(kind: Any, form: Any) -> None:
    batches = [ORDER[:2], ORDER[2:5:2], ORDER[5:7]]
    expected = samples(epoch(loader(kind, None, batch_sampler=batches, batch_size=1)))
    assert len(set(expected)) == 6
    for options in (HERE, {}):
        of_form = loader(kind, None, batch_sampler=[*map(form, batches)], batch_size=1, **options)
        assert [(int(index), one) for index, one in samples(epoch(of_form))] == expected


@BOTH
def test_repeated_draws_are_counted_again_in_each_epoch(kind: Any) -> None:
    several = loader(kind, ORDER, persistent_workers=True)
    epochs = [epoch(several) for _ in range(2)]
    several.set_epoch(0)
    assert epoch(several) == epochs[0] != epochs[1]


class Repeated:
    """A sampler of the user's."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Any:
        return iter(torch.randint(6, (12,), generator=self.generator).tolist())

    def __len__(self) -> int:
        return 12


def replaced() -> Any:
    return RandomSampler(Noise(), replacement=True, num_samples=80, generator=torch.Generator().manual_seed(1))


def weighted() -> Any:
    return WeightedRandomSampler([1, 5, 1, 1, 2, 3], 40, generator=torch.Generator().manual_seed(1))


def dealt() -> Any:
    return headrace.torch.per_rank(weighted(), seed=1, rank=0, num_replicas=1)


@pytest.mark.parametrize("make", [weighted, replaced, Repeated, dealt])
@pytest.mark.parametrize("workers", [0, 2])
def test_repeated_draws_are_the_same_after_a_resume(make: Any, workers: int) -> None:
    options = HERE if workers == 0 else {"num_workers": workers}
    kind = headrace.torch.DataLoader
    whole = epoch(loader(kind, make(), **options))
    assert len(set(samples(whole))) == len(samples(whole))
    stopped = loader(kind, make(), **options)
    iterator = iter(stopped)
    begun = [next(iterator) for _ in range(3)]
    state = stopped.state_dict()
    resumed = loader(kind, make(), **options)
    resumed.load_state_dict(state)
    rest = epoch(resumed)
    assert [[part.tolist() for part in batch] for batch in begun] == [[*map(list, batch)] for batch in whole[:3]]
    assert rest == whole[3:]


def test_repeated_draws_of_numpys_loader_survive_a_resume() -> None:
    whole = epoch(loader(headrace.Loader, ORDER))
    stopped = loader(headrace.Loader, ORDER, **HERE)
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    resumed = loader(headrace.Loader, ORDER)
    resumed.load_state_dict(stopped.state_dict())
    assert epoch(resumed) == whole[3:]


def test_repeated_draws_resume_with_another_batch_size() -> None:
    whole = samples(epoch(loader(headrace.torch.DataLoader, replaced())))
    stopped = loader(headrace.torch.DataLoader, replaced())
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    resumed = loader(headrace.torch.DataLoader, replaced(), batch_size=5)
    resumed.load_state_dict(stopped.state_dict())
    assert samples(epoch(resumed)) == whole[6:]


@pytest.mark.parametrize("make", [headrace.torch.DataLoader, headrace.Loader])
def test_draws_are_counted_for_random_numbers_only(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting each index again would take seconds for a large epoch that goes on."""

    class Own(list[int]):
        """A sampler that headrace does not know."""

    loader = make(range(12), batch_size=4, sampler=Own(ORDER))
    next(iter(loader))
    state = loader.state_dict()
    monkeypatch.setattr(DrawCounts, "look", lambda *_: pytest.fail("an index was counted"))
    loader.load_state_dict(state)
    assert [list(map(int, batch)) for batch in loader] == [ORDER[4:8], ORDER[8:]]


def test_draws_of_an_index_on_two_ranks_differ() -> None:
    def rank(number: int) -> Any:
        sampler = headrace.torch.per_rank(weighted(), seed=1, rank=number, num_replicas=2)
        return samples(epoch(loader(headrace.torch.DataLoader, sampler, **HERE)))

    drawn = [*rank(0), *rank(1)]
    assert len(set(drawn)) == len(drawn) == 40
    alone = samples(epoch(loader(headrace.torch.DataLoader, dealt(), **HERE)))
    assert sorted(drawn) == sorted(alone), "as with one rank"


@BOTH
def test_replay_command_names_the_draw(kind: Any) -> None:
    failing = loader(kind, [0.5, 1, 0.5], batch_size=3)
    with pytest.raises(KeyError) as caught:
        epoch(failing)
    assert "--draw" not in str(getattr(caught.value, "__notes__", "")), "the first draw fails"
    failing = loader(kind, ["a", "b", "a"], batch_size=1)
    failing.dataset.__class__ = FailsAtSecond
    with pytest.raises(ValueError, match="second") as error:
        epoch(failing)
    notes = "\n".join(getattr(error.value, "__notes__", [str(error.value)]))
    assert "--seed 5 --epoch 0 --draw 1 --pdb" in notes


class FailsAtSecond(Noise):
    def __getitem__(self, index: Any) -> Any:
        first = random.Random()
        del first
        count = vars(self).setdefault("count", {})
        count[index] = count.get(index, 0) + 1
        if count[index] == 2:
            raise ValueError("second")
        return 1, random.random()


def test_draw_counts_are_exact_for_all_kinds_of_indices() -> None:
    counts, seen = DrawCounts(), {}
    kinds: list[Any] = [0, 7, 5000, 1 << 40, -1, "7", "a", (1, 2), np.int64(5000), True, np.int32(-1)]
    for index in itertools.chain(kinds * 3, [7] * 600, [np.int64(7)] * 3, kinds):
        name = repr(int(index)) if isinstance(index, (int, np.integer)) and index is not True else repr(index)
        (draw,) = counts.look([index])
        assert draw == seen.get(name, 0), index
        counts.put([index], [draw])
        counts.put([index], [draw])  # as after an interruption
        seen[name] = draw + 1
    assert counts.look([9, 9, 9, 7]) == [0, 1, 2, seen["7"]]
