# SPDX-License-Identifier: Apache-2.0
"""States that do not fit: another dataset, another sampler, another epoch, another library, damaged. Each has an error
that says what to do, and changes nothing."""

from __future__ import annotations

import itertools
import json
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import pytest
import torch
from headrace.sampling import _state, _values
from headrace.torch import DataLoader, DistributedSampler, per_rank
from loaders import only_headrace
from resumed import GlobalShuffle, Numbers, OwnShuffle, plain
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler, distributed

pytestmark = only_headrace


def _after(loader: Any, steps: int) -> dict[str, str]:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state: dict[str, str] = loader.state_dict()
    return state


def _edited(state: dict[str, str], is_sound: bool = False, **changes: Any) -> dict[str, str]:
    fields = {**json.loads(state["headrace"]), **changes}
    if is_sound:
        fields.pop("checksum")
        fields["checksum"] = _state._checksum(fields)
    return {"headrace": json.dumps(fields)}


# ---- what a state may not be ----

STATE = _after(DataLoader(Numbers(), 4), 2)
TEXT = STATE["headrace"]
BAD: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "takes the dict that state_dict.. returned, but got a NoneType"),
    (TEXT, TypeError, "but got a str"),
    ({}, ValueError, "should have the key 'headrace', but has nothing"),
    ({"model": 1}, ValueError, "should have the key 'headrace', but has 'model'"),
    ({"headrace": 7}, ValueError, "should contain a string at 'headrace', but has a int"),
    ({"headrace": TEXT[:100]}, ValueError, "damaged: its 100 characters are no JSON"),
    ({"headrace": "[1]"}, ValueError, "damaged: it contains a list, not a dict"),
    ({"headrace": "{}"}, ValueError, "not a state of a headrace loader: its format is None"),
    (_edited(STATE, steps=3), ValueError, "damaged or edited: its checksum does not fit"),
    (_edited(STATE, True, format=2), ValueError, "has format 2, and this version of headrace reads formats up to 1"),
    (_edited(STATE, True, steps=3), ValueError, "its segments do not sum up to its steps"),
    (_edited(STATE, True, steps="2"), ValueError, "damaged: it has steps='2'"),
    (_edited(STATE, True, more=1), ValueError, "an unknown field 'more'"),
    (_edited(STATE, True, segments=[]), ValueError, "out of range"),
    (_edited(STATE, True, segments=[1]), ValueError, "a segment is 1"),
    (_edited(STATE, True, segments=[{}]), ValueError, "a segment has world=None"),
    (_edited(STATE, True, holes=[5]), ValueError, r"holes=\[5\]"),
    (_edited(STATE, True, algorithm=7), ValueError, "needs algorithm 7"),
    (_edited(STATE, True, order={"kind": "SequentialSampler"}), ValueError, "out of range"),
    (_edited(STATE, True, order={"kind": "SequentialSampler", "n": "x"}), ValueError, "out of range"),
    (_edited(STATE, True, epoch=10**30), ValueError, "out of range"),
    (_edited(STATE, True, seeds={"base": "x"}), ValueError, "out of range"),
    ({"_snapshot": {}, "_num_yielded": 57}, ValueError, r"of torchdata's StatefulDataLoader.*loader.skip\(57\)"),
    ({"_iterator_finished": True}, ValueError, "accelerate"),
    ({"dp_rank_0": b"", "world_size": 1}, ValueError, "torchtitan"),
    ({"sample_in_epoch": 3}, ValueError, "Streaming"),
]


@pytest.mark.parametrize(("state", "error", "message"), BAD)
def test_a_bad_state_is_refused_as_a_whole(state: Any, error: type[Exception], message: str) -> None:
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    before = loader.state_dict()
    with pytest.raises(error, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    numpy = headrace.Loader(Numbers(), 4, seed=1)
    with pytest.raises(error, match=message):
        numpy.load_state_dict(state)
    assert numpy.state_dict() == headrace.Loader(Numbers(), 4, seed=1).state_dict()


def test_any_cut_or_changed_byte_of_a_state_is_refused() -> None:
    state = _after(DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator()), 2)["headrace"]
    numbers = random.Random(1)
    for _ in range(300):
        place = numbers.randrange(len(state))
        other = numbers.choice("0123456789abcxyz{}[],:\"'")
        changed = state[:place] if numbers.random() < 0.3 else state[:place] + other + state[place + 1 :]
        if changed == state:
            continue
        with pytest.raises(ValueError, match="headrace"):
            DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator()).load_state_dict({"headrace": changed})


class Marked:
    def __reduce__(self) -> Any:
        return print, ("code of a state runs",)


def test_a_state_cannot_run_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"contains a builtins\.print"):
        _values.encode({"a": Marked()})
    import base64
    import pickle
    import zlib

    text = base64.b85encode(zlib.compress(pickle.dumps(Marked()))).decode()
    with pytest.raises(ValueError, match="cannot be read"):
        _values.decode(text)
    assert capsys.readouterr().out == ""


def test_values_of_users_states_come_back_as_they_were() -> None:
    import collections

    import numpy as np

    values = [
        {"a": [1, 2.5, None, "x", b"y", (1, 2), {3, 4}], 5: collections.OrderedDict(a=1)},
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.float32(2.5),
        {"words": np.random.default_rng(1).bit_generator.state},
        torch.arange(6).reshape(2, 3),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3, dtype=torch.bool),
    ]
    for value in values:
        found = _values.decode(_values.encode(value))
        assert type(found) is type(value) and repr(found) == repr(value)
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype and found.shape == value.shape


# ---- another sampler ----

OTHERS: list[tuple[Callable[[], Any], Callable[[], Any], str]] = [
    (
        lambda: DataLoader(Numbers(), 4),
        lambda: DataLoader(Numbers(), 4, shuffle=True),
        "taken with SequentialSampler, and this loader has RandomSampler",
    ),
    (
        lambda: DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 0)),
        lambda: DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 0, seed=1)),
        "taken with seed=0 of the DistributedSampler, and here it is 1",
    ),
    (
        lambda: DataLoader(Numbers(), 4, sampler=OwnShuffleOfIndices()),
        lambda: DataLoader(Numbers(), 8, sampler=OwnShuffleOfIndices()),
        "per_rank makes it known",
    ),
]


class OwnShuffleOfIndices(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(1).sample(range(23), 23))

    def __len__(self) -> int:
        return 23


@pytest.mark.parametrize(("taken", "loaded", "message"), OTHERS)
def test_a_state_of_another_sampler_is_refused(taken: Any, loaded: Any, message: str) -> None:
    if "known" in message:
        message = "the order of a OwnShuffleOfIndices is not known"
    with pytest.raises(ValueError, match=message):
        loaded().load_state_dict(_after(taken(), 2))


def test_an_order_that_has_changed_is_noticed() -> None:
    torch.manual_seed(0)  # by chance, other weights may give the same indices
    state = _after(DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(20))), 2)
    loader = DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(3, 23)))
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="gives other indices than before in its first 2 batches"):
        iter(loader)
    with pytest.raises(ValueError, match="gives other indices"):  # the state is still there
        iter(loader)
    loader.on_changed = "next_epoch"
    assert len(list(loader)) == 5
    weights = DataLoader(Numbers(), 4, sampler=WeightedRandomSampler([1.0] * 23, 23))
    other = DataLoader(Numbers(), 4, sampler=WeightedRandomSampler([1.0, 5.0] * 11 + [1.0], 23))
    other.load_state_dict(_after(weights, 3))
    with pytest.raises(ValueError, match="gives other indices"):
        iter(other)


def test_a_sampler_that_is_exhausted_is_noticed() -> None:
    class Once:
        def __init__(self) -> None:
            self.items = iter(range(20))

        def __iter__(self) -> Iterator[int]:
            return self.items

    sampler: Any = Once()
    loader = DataLoader(Numbers(), 4, sampler=sampler)
    state = _after(loader, 3)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="has fewer batches than before"):
        iter(loader)


def test_a_rank_needs_its_own_state_if_its_order_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = _after(DataLoader(Numbers(), 4, sampler=GlobalShuffle()), 2)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="is that of rank 0, and this is rank 1"):
        DataLoader(Numbers(), 4, sampler=GlobalShuffle()).load_state_dict(state)


# ---- another dataset ----


def test_a_dataset_that_has_grown(recwarn: Any) -> None:
    for make in (
        lambda n, **o: DataLoader(Numbers(n), 4, **o),
        lambda n, **o: DataLoader(Numbers(n), 4, shuffle=True, **o),
        lambda n, **o: DataLoader(Numbers(n), 4, sampler=DistributedSampler(Numbers(n), 1, 0), **o),
    ):
        loader = make(20)
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(2)]
        state = loader.state_dict()
        with pytest.raises(ValueError, match='taken with 20 samples, and the dataset has 30; on_changed="finish" ends'):
            make(30).load_state_dict(state)
        with pytest.raises(ValueError, match="needs all of the old ones"):
            make(19, on_changed="finish").load_state_dict(state)
        grown = make(30, on_changed="finish")
        grown.load_state_dict(state)
        rest = [plain(batch) for batch in grown]
        assert sorted(itertools.chain.from_iterable(seen + rest)) == list(range(20))
        assert sum(map(len, grown)) == 30
        grown = make(30, on_changed="next_epoch")
        grown.load_state_dict(state)
        assert sum(map(len, grown)) == 30
    with pytest.raises(ValueError, match="cannot end an epoch with the old samples of a SubsetRandomSampler"):
        small = DataLoader(Numbers(30), 4, sampler=SubsetRandomSampler(range(20)))
        large = DataLoader(Numbers(30), 4, sampler=SubsetRandomSampler(range(30)), on_changed="finish")
        large.load_state_dict(_after(small, 2))


# ---- another epoch ----


@pytest.mark.parametrize("kind", [DistributedSampler, distributed.DistributedSampler])
def test_set_epoch_after_a_load(kind: Any) -> None:
    def make() -> Any:
        return DataLoader(Numbers(), 4, sampler=kind(Numbers(), 2, 0))

    loader = make()
    loader.sampler.set_epoch(3)
    state, whole = _after(loader, 2), [plain(batch) for batch in loader]
    loader = make()
    loader.load_state_dict(state)
    assert loader.sampler.epoch == 3
    loader.sampler.set_epoch(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [plain(batch) for batch in loader] == whole[2:]
    loader = make()
    loader.load_state_dict(state)
    loader.sampler.set_epoch(4)
    with pytest.warns(
        UserWarning, match=r"set_epoch\(4\) discards the state that was loaded, of epoch 3 after 2 steps"
    ):
        assert len([plain(batch) for batch in loader]) == 3


def test_an_epoch_that_is_read_a_second_time_is_warned_of() -> None:
    loader = DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 0))
    loader.sampler.set_epoch(3)  # type: ignore[attr-defined]
    list(loader)
    state = loader.state_dict()
    for epoch, warns in ((3, True), (4, False)):
        loader = DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 0))
        loader.load_state_dict(state)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(loader)
        assert [f"begin the loop over epochs at {epoch + 1}" in str(one.message) for one in caught] == [True] * warns


def test_skip_after_another_division_counts_what_is_left() -> None:
    loader = DataLoader(Numbers(), 2)
    state = _after(loader, 9)
    loader = DataLoader(Numbers(), 4)
    loader.load_state_dict(state)
    assert loader.steps_left == 2
    loader.skip(1)
    assert [plain(batch) for batch in loader] == [[22]]
    with pytest.raises(ValueError, match="2 steps are left"):
        loader.load_state_dict(state)
        loader.skip(3)


def test_set_epoch_of_the_loader_after_a_load() -> None:
    loader = DataLoader(Numbers(), 4)
    loader.load_state_dict(STATE)
    with pytest.warns(
        UserWarning, match=r"set_epoch\(1\) discards the state that was loaded, of epoch 0 after 2 steps"
    ):
        loader.set_epoch(1)
    assert len(list(loader)) == 6
    loader.load_state_dict(STATE)
    loader.set_epoch(0)
    assert len(list(loader)) == 4


def test_a_forgotten_set_epoch_is_warned_of_once() -> None:
    for sampler in (
        DistributedSampler(Numbers(), 2, 0),
        per_rank(RandomSampler(Numbers()), num_replicas=2, rank=0, seed=1),
    ):
        loader = DataLoader(Numbers(), 4, sampler=sampler)
        list(loader)
        with pytest.warns(UserWarning, match="set_epoch"):
            list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
    for sampler in (
        DistributedSampler(Numbers(), 2, 0, shuffle=False),
        DistributedSampler(Numbers(), 1, 0),
        OwnShuffle(),
    ):
        options = {"batch_sampler": sampler} if isinstance(sampler, OwnShuffle) else {"sampler": sampler}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = DataLoader(Numbers(), **options)
            list(loader), list(loader)


def test_len_and_steps_left_count_the_whole_epoch() -> None:
    loader = DataLoader(Numbers(24), 2, sampler=DistributedSampler(Numbers(24), 3, 0))
    assert len(loader) == 4 and loader.steps_left == 4
    iterator = iter(loader)
    next(iterator)
    assert len(loader) == 4 and loader.steps_left == 3
    other = DataLoader(Numbers(24), 3, sampler=DistributedSampler(Numbers(24), 2, 1))
    other.load_state_dict(loader.state_dict())
    assert len(other) == 4 and other.steps_left == 3  # 1 done, 18 samples left for 2 ranks
    iterator = iter(other)
    next(iterator)
    assert len(other) == 4 and other.steps_left == 2
    assert len(list(iterator)) == 2 and other.steps_left == 0 and len(other) == 4
    assert DataLoader(Numbers(), 4, sampler=iter(range(9))).steps_left is None


def test_states_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> Any:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", refuse)  # as of a torch in an environment without NumPy
    seen = []
    for workers in (0, 2):
        loader = DataLoader(
            list(range(20)), 4, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0)
        )
        first = [next(iterator).tolist() for iterator in [iter(loader)] for _ in range(2)]
        state = loader.state_dict()
        again = DataLoader(list(range(20)), 4, shuffle=True, num_workers=workers, generator=torch.Generator())
        again.load_state_dict(state)
        seen.append(sorted(index for batch in [*first, *(batch.tolist() for batch in again)] for index in batch))
    assert seen == [list(range(20))] * 2
