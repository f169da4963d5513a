# SPDX-License-Identifier: Apache-2.0
"""headrace.Mixture as a sequence of indices: shares, passes, epochs, what it refuses, and its state."""

from __future__ import annotations

import copy
import decimal
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import headrace
import numpy as np
import pytest
from drawn import draws
from headrace import Mixture, StateError
from headrace.sampling import _mixture_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_mixture import RUN, SlowMixture, deviation_bound

TWENTY = {f"s{number}": 1 + number * number % 7 for number in range(20)}
WEIGHTS = [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 0.7, "b": 0.3}, TWENTY]


def mixture(weights: dict[str, Any], size: int = 500, **options: Any) -> Mixture:
    return Mixture({name: range(size + number) for number, name in enumerate(weights)}, weights, **options)


def sources_of(mix: Mixture, indices: Any) -> list[int]:
    return [mix.dataset.place_of(index)[0] for index in indices]


# ---- the order ----


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_mixture_keeps_shares_at_multiples_of_64(weights: dict[str, Any], epoch: int) -> None:
    """Counted from the first epoch's beginning, no source deviates by more than Tijdeman's bound."""
    mix = mixture(weights, length=64 * 50, epoch=epoch)
    total = sum(Fraction(str(one)) for one in weights.values())
    counts = Counter({source: mix.report()["sources"][name]["before"] for source, name in enumerate(weights)})
    found = sources_of(mix, mix)
    for end in range(RUN, len(found) + 1, RUN):
        counts.update(found[end - RUN : end])
        for source, weight in enumerate(weights.values()):
            part = (epoch * len(mix) + end) * Fraction(str(weight)) / total
            assert abs(counts[source] - part) <= deviation_bound(len(weights))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("world", range(1, 9))
def test_ranks_get_all_sources_by_their_shares(weights: dict[str, Any], world: int) -> None:
    """Ranks take every n-th sample. Their shares are drawn within the runs, so they are compared with five standard
    deviations of such a draw."""
    mix = mixture(weights, length=64 * 60, seed=5)
    total = sum(weights.values())
    for rank in range(world):
        part = mix[rank::world]
        counts = Counter(sources_of(mix, part))
        for source, weight in enumerate(weights.values()):
            expected, p = len(part) * weight / total, weight / total
            assert abs(counts[source] - expected) <= 5 * (len(part) * p * (1 - p)) ** 0.5 + 1


@pytest.mark.parametrize("weights", WEIGHTS)
def test_passes_have_each_sample_once_across_epochs(weights: dict[str, Any]) -> None:
    """Each source is read pass after pass, whatever the epochs are, in another order each time. No sample comes again
    before all others of its pass have come."""
    mix = mixture(weights, size=40, length=999)
    read: dict[int, list[int]] = {number: [] for number in range(len(weights))}
    for epoch in range(6):
        mix.set_epoch(epoch)
        indices = list(mix)
        assert len(set(indices)) == len(indices) == 999
        unshuffled = SlowMixture({n: 40 + i for i, n in enumerate(weights)}, fractions(weights), 0, epoch, 999)
        assert unshuffled.indices() == indices
        for source in read:
            mine = [one for one in indices if mix.dataset.place_of(one)[0] == source]
            passes = sorted({one // len(mix.dataset) for one in mine})
            assert passes == list(range(len(passes)))
            read[source] += mine
    for source, indices in read.items():
        size = 40 + source
        whole = [indices[at : at + size] for at in range(0, len(indices) - size, size)]
        orders = [tuple(mix.dataset.place_of(one)[1] for one in one_pass) for one_pass in whole]
        assert all(sorted(order) == list(range(size)) for order in orders)
        assert len(set(orders)) == len(orders) > (len(weights) < 9)


def fractions(weights: dict[str, Any]) -> dict[str, Fraction]:
    return {name: Fraction(str(one)) for name, one in weights.items()}


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)


@given(data=st.data(), seed=st.integers(-(2**63), 2**64 - 1), epoch=st.integers(0, 40))
@settings(deadline=None, max_examples=draws(60))
def test_mixture_equals_a_slow_one(data: st.DataObject, seed: int, epoch: int) -> None:
    count = data.draw(st.integers(1, 6))
    named = data.draw(st.lists(names, min_size=count, max_size=count, unique=True))
    sizes = {name: data.draw(st.integers(1, 90)) for name in named}
    weights: dict[str, Any] = {name: data.draw(st.sampled_from([1, 2, 3, 7, 0.1, 0.35, 1 / 3])) for name in named}
    if sum(weights.values()) != sum(map(Fraction, weights.values())) and count > 3:
        weights = dict.fromkeys(named, 1)  # a long period takes plain Python too long
    end = data.draw(st.sampled_from(["first", "all", 1, 63, 64, 65, 500]))
    options = {"until": end} if isinstance(end, str) else {"length": end}
    mix = Mixture({name: range(size) for name, size in sizes.items()}, weights, seed=seed, epoch=epoch, **options)
    if len(mix) > 3000:
        return
    slow = SlowMixture(sizes, fractions(weights), seed, epoch, end)
    indices = slow.indices()
    assert len(mix) == slow.length and list(mix) == indices
    assert np.asarray(mix).tolist() == indices
    step = data.draw(st.integers(1, 70))
    assert [mix[at] for at in range(0, len(mix), step)] == indices[::step] == list(mix[::step])
    assert list(mix[::-step]) == indices[::-step]
    report = mix.report()
    assert [one["share"] for one in report["sources"].values()] == slow.shares
    counts = Counter(slow.source_at(epoch * slow.length + at) for at in range(slow.length))
    assert [one["count"] for one in report["sources"].values()] == [counts[i] for i in range(count)]


GOLDEN = {
    "two sources": "abbe0d816cf83ac7",
    "twenty sources": "a726259c4fa73e22",
    "nearest shares": "da233c3aa2dcea6f",
    "small sources": "c491ea5cded092d4",
}


def digest(mix: Mixture) -> str:
    return hashlib.sha256(np.asarray(mix).astype("<i8").tobytes()).hexdigest()[:16]


def golden_mixtures() -> dict[str, Mixture]:
    return {
        "two sources": mixture({"a": 0.7, "b": 0.3}, size=10_000, seed=-3, epoch=2),
        "twenty sources": mixture(TWENTY, size=5000, seed=2**64 - 1, length=20_000),
        "nearest shares": mixture({"a": 1, "b": 1 / 3 + 1e-9, "ü": 1e-7}, size=700, length=20_000, seed=1),
        "small sources": mixture({"a": 3, "b": 2, "c": 1}, size=2, length=5000, epoch=9),
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_mixtures_stay_the_same(name: str) -> None:
    """States depend on these orders, so a change of the algorithm needs another kind of mixture."""
    assert digest(golden_mixtures()[name]) == GOLDEN[name]


def test_until_ends_after_one_or_all_sources() -> None:
    sizes = {"a": 30, "b": 1000}
    first = Mixture({name: range(size) for name, size in sizes.items()}, {"a": 1, "b": 3})
    counts = first.report()["sources"]
    assert counts["a"]["count"] == 30 and sources_of(first, first).count(0) == 30
    all_of_them = Mixture({name: range(size) for name, size in sizes.items()}, {"a": 1, "b": 3}, until="all")
    counts = all_of_them.report()["sources"]
    assert counts["b"]["count"] == 1000 and counts["a"]["passes"] > 11
    assert len({index % 1030 for index in all_of_them}) == 1030


def test_a_source_keeps_its_order_in_another_mixture() -> None:
    """The order of a source depends on seed, name and size only."""
    one = Mixture({"a": range(100), "b": range(50)}, {"a": 1, "b": 1}, seed=4, length=80)
    other = Mixture({"c": range(33), "b": range(50), "a": range(100)}, {"a": 5, "b": 1, "c": 9}, seed=4, length=300)
    # The runs shuffle the positions of the walk, so sets of samples are compared.
    first = {one.dataset.place_of(index)[1] for index in one[:64] if one.dataset.place_of(index)[0] == 1}
    found = [other.dataset.place_of(index)[1] for index in other if other.dataset.place_of(index)[0] == 1]
    assert len(found) == 20 and set(found) <= first


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(mixture({"a": 1, "b": 2}, seed=seed, epoch=epoch, length=200)) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9


def test_one_source_is_read_pass_after_pass() -> None:
    mix = Mixture({"only": range(10)}, {"only": 0.25}, length=35)
    passes = [sorted(index for index in mix if index // 10 == turn) for turn in range(4)]
    assert passes[:3] == [list(range(first, first + 10)) for first in (0, 10, 20)] and len(passes[3]) == 5
    assert len(mix) == 35 and mix.report()["period"] == 1


def test_weights_of_any_kind_count_as_written() -> None:
    kinds = [
        {"a": 0.7, "b": 0.3},
        {"a": 7, "b": 3},
        {"a": Fraction(7, 10), "b": Fraction(3, 10)},
        {"a": decimal.Decimal("0.70"), "b": decimal.Decimal("0.3")},
        {"a": np.float32(0.7), "b": np.float32(0.3)},
        {"a": np.int64(2**62 + 2**61 + 2**60), "b": np.int64(3 * 2**60)},
        {"b": 0.3, "a": 0.7},
    ]
    assert len({tuple(mixture(one, length=100)) for one in map(sort_names, kinds)}) == 1
    assert all(mixture(sort_names(one)).report()["is_exact"] for one in kinds)


def sort_names(weights: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(weights.items()))


def test_nearest_shares_are_at_least_one() -> None:
    report = mixture({"a": 1, "b": 1e-12, "c": 1e-30, "d": 0.123456789}, length=10).report()
    shares = [one["share"] for one in report["sources"].values()]
    assert sum(shares) == report["period"] == 65536 and shares[1:3] == [1, 1] and not report["is_exact"]
    assert shares[3] == round(65534 * 0.123456789 / 1.123456789)
    assert "the shares are the nearest ones to the weights" in str(report)


def test_huge_sources_are_mixed() -> None:
    mix = Mixture({"a": range(2**40), "b": range(2**40 - 1)}, {"a": 3, "b": 1}, epoch=2**20)
    indices = mix[:5000]
    assert len(mix) > 2**40 and len(set(indices)) == 5000
    counts = Counter(sources_of(mix, indices))
    assert 3 * counts[1] - 100 < counts[0] < 3 * counts[1] + 100
    with pytest.raises(ValueError, match="do not fit into 63 bits"):
        mix.set_epoch(2**23)
    assert mix.epoch == 2**20 and list(mix[:5000]) == list(indices)


def test_sources_up_to_4096_are_mixed() -> None:
    weights = {str(number): 1 + number % 3 for number in range(4096)}
    assert set(sources_of(mix := mixture(weights, size=3, length=16384), mix)) == set(range(4096))
    with pytest.raises(ValueError, match=r"4097 sources; give 1 to 4096"):
        mixture({**weights, "more": 1})


# ---- what it refuses ----

TWO = {"a": range(5), "b": range(6)}
EVEN = {"a": 1, "b": 1}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Mixture(TWO, {"a": 1, "b": 0}), r"the weight of 'b' should be a number above 0, but is 0"),
    (lambda: Mixture(TWO, {"a": 1, "b": -0.5}), r"the weight of 'b' should be a number above 0, but is -0.5"),
    (lambda: Mixture(TWO, {"a": 1, "b": float("nan")}), r"the weight of 'b' should be a number above 0, but is nan"),
    (lambda: Mixture(TWO, {"a": 1, "b": float("inf")}), r"the weight of 'b' should be a number above 0, but is inf"),
    (lambda: Mixture(TWO, {"a": 1, "b": True}), r"the weight of 'b' should be a number, but got True"),
    (lambda: Mixture(TWO, {"a": 1, "b": "2"}), r"the weight of 'b' should be a number, but got '2'"),
    (lambda: Mixture(TWO, {"a": 1}), r"there is no weight for 'b'$"),
    (lambda: Mixture(TWO, {"a": 1, "c": 1}), r"there is no weight for 'b', and no source 'c'$"),
    (lambda: Mixture(TWO, [1, 1]), r"weights should be a dict of numbers .* but got a list"),  # type: ignore[arg-type]
    (lambda: Mixture([range(5)], {}), r"sources should be a dict of datasets .* a list"),  # type: ignore[arg-type]
    (lambda: Mixture({}, {}), r"there is no source"),
    (lambda: Mixture({"a": []}, {"a": 1}), r"source 'a' is empty"),
    (lambda: Mixture({"a": iter([1])}, {"a": 1}), r"source 'a' is a list_iterator without __getitem__"),
    (lambda: Mixture({"a": Mixture(TWO, EVEN)}, {"a": 1}), r"is a Mixture, which is a sampler, .*; give its .dataset"),
    (lambda: Mixture({"a": headrace.Order(4)}, {"a": 1}), r"is a Order, which is a sampler, but should be a dataset$"),
    (lambda: Mixture({1: range(3)}, {1: 1}), r"the name of a source should be a str, but got 1"),  # type: ignore
    (lambda: Mixture({"a\0": range(3)}, {"a\0": 1}), r"a text without a null character, but got 'a\\x00'"),
    (lambda: Mixture({"\udc80": range(3)}, {"\udc80": 1}), r"a text without a null character"),
    (lambda: Mixture(TWO, EVEN, seed=2**64), r"seed should be from .* but got 18446744073709551616"),
    (lambda: Mixture(TWO, EVEN, seed=1.5), r"seed should be an int, but got 1.5"),  # type: ignore[arg-type]
    (lambda: Mixture(TWO, EVEN, epoch=-1), r"epoch should be from 0 to"),
    (lambda: Mixture(TWO, EVEN, until="last"), r'until should be "first" or "all", but got \'last\''),
    (lambda: Mixture(TWO, EVEN, until="all", length=3), r"give until or length, not both"),
    (lambda: Mixture(TWO, EVEN, length=0), r"length should be from 1 to .*, but got 0"),
    (lambda: Mixture(TWO, EVEN, length=2**63 - 1, epoch=1), r"the positions of all epochs .* do not fit into 63 bits"),
    (lambda: Mixture({**TWO, "a": [1]}, EVEN, length=2**62), r"the indices of later passes .* do not fit into 63 bits"),
    (lambda: Mixture({"a": range(2**62), "b": range(2**62)}, EVEN), r"have more than 2\^63 - 1 samples"),
    (lambda: Mixture({"a": range(2**62), "b": range(9)}, {"a": 1, "b": 60000}, until="all"), r"not fit into 63 bits"),
    (lambda: Mixture(TWO, EVEN)[99], r"Mixture: position 99 is out of range, there are 9 samples"),
    (lambda: Mixture(TWO, EVEN).dataset[-12], r"index -12 of mix.dataset is out of range, there are 11 samples"),
    (lambda: Mixture(TWO, EVEN).dataset["a"], r"an index of mix.dataset should be an int, but got 'a'"),  # type: ignore
    (lambda: Mixture(TWO, EVEN).lengths, r"source 'a', a range, has no `lengths` .* headrace.lengths\(mix.dataset\)"),
]


@pytest.mark.parametrize(("make", "text"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError, IndexError), match=text):
        make()


def test_source_that_changes_its_length_is_an_error() -> None:
    rows = list(range(10))
    mix = Mixture({"a": rows, "b": range(5)}, EVEN)
    assert list(mix)
    rows.append(10)
    with pytest.raises(ValueError, match=r"source 'a' of the mixture has 11 samples now, but had 10"):
        iter(mix)
    with pytest.raises(ValueError, match=r"source 'a' of the mixture has 11 samples now, but had 10"):
        list(headrace.Loader(mix.dataset, batch_size=2, sampler=mix, num_workers=0))


# ---- ranks that get one source only ----


def test_rank_with_one_source_is_warned_of_once(recwarn: pytest.WarningsRecorder) -> None:
    mix = mixture({"a": 511, "b": 1}, length=512)
    lonely = [rank for rank in range(8) if len(set(sources_of(mix, np.asarray(mix[rank::8]).tolist()))) == 1]
    assert len(lonely) == 7
    for _ in range(2):
        for rank in range(8):
            iter(mix[rank::8])
    texts = [str(one.message) for one in recwarn]
    assert len(texts) == 1 and f"rank {lonely[0]} of 8 gets samples of the source 'a' only in epoch 0" in texts[0]
    assert "only 1 samples of all others" in texts[0]


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 1}, TWENTY])
def test_fair_ranks_are_not_warned_of(weights: dict[str, Any], recwarn: pytest.WarningsRecorder) -> None:
    mix = mixture(weights, length=6400)
    for rank in range(8):
        iter(mix[rank::8])
    assert not list(recwarn)
    assert _mixture_ranks.single_source(mix.dataset, []) is None


# ---- mix.dataset ----


def test_dataset_has_the_sources_end_to_end() -> None:
    mix = Mixture({"a": "abc", "b": "de"}, EVEN)
    dataset = mix.dataset
    assert len(dataset) == 5 and list(dataset) == list("abcde")
    assert dataset[-1] == "e" and dataset[-5] == "a" and dataset[5] == "a" and dataset[5 * 10**12 + 4] == "e"
    assert dataset[np.int64(3)] == "d"  # type: ignore[call-overload]
    assert dataset.where(13) == "b: sample 0" and repr(dataset) == "mix.dataset(a: str of 3, b: str of 2)"


def test_epochs_reach_sources_that_have_them() -> None:
    class WithEpoch(list[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    one = WithEpoch([1, 2])
    mix = Mixture({"a": one, "b": [3]}, EVEN)
    mix.dataset.set_epoch(7)  # type: ignore[attr-defined]
    assert one.epoch == 7
    assert not hasattr(mixture(EVEN).dataset, "set_epoch")


def test_lengths_are_those_of_the_sources() -> None:
    class WithLengths(list[int]):
        @property
        def lengths(self) -> Any:
            return np.asarray(self, np.int32)

    mix = Mixture({"a": WithLengths([3, 1]), "b": WithLengths([5])}, EVEN)
    assert mix.lengths.tolist() == [3, 1, 5] and mix.lengths.dtype == np.int64


# ---- copies and states ----


def test_copies_are_equal_and_begin_at_the_beginning() -> None:
    mix = mixture({"a": 2, "b": 1}, seed=3, epoch=4)
    next(iter(mix))
    for other in (pickle.loads(pickle.dumps(mix)), copy.copy(mix), copy.deepcopy(mix), mix[:]):
        assert other == mix and list(other) == list(mix) and other.report() == mix.report()
        other.set_epoch(5)
        assert other != mix and mix.epoch == 4
    assert pickle.loads(pickle.dumps(mix[1::3])) == mix[1::3] != mix[2::3]
    assert mix.with_epoch(5) != mix and mix.with_epoch(5).with_epoch(4) == mix
    assert repr(mix[1::3]) == (
        "headrace.Mixture({'a': 500 x 2, 'b': 501 x 1}, length=750, seed=3, epoch=4, algorithm=2)[1:750:3]"
    )


def test_state_continues_a_torch_like_loop() -> None:
    mix = mixture({"a": 2, "b": 1})
    mix.set_epoch(2)
    whole = list(mix)
    for given_before in (0, 1, 255, 256, 300, len(mix)):
        iterator = iter(mix)
        head = [next(iterator) for _ in range(given_before)]
        state = pickle.loads(pickle.dumps(mix.state_dict()))
        other = mixture({"a": 0.5, "b": 0.25})
        other.load_state_dict(state)
        assert other.epoch == 2 and other.state_dict() == state
        iter(other)  # an iterator that is not used, as torch makes them
        assert head + list(other) == whole
        assert list(other) == whole and other.state_dict()["given"] == 0
    mix.set_epoch(3)
    assert mix.state_dict()["given"] == 0


def test_state_of_another_mixture_is_refused() -> None:
    state = mixture({"a": 2, "b": 1}).state_dict()
    same: dict[str, Any] = {"a": 2, "b": 1}
    others = [mixture({"a": 3, "b": 1}), mixture(same, size=9), mixture(same, seed=1)]
    for other in (*others, mixture(same, length=700), mixture(same, until="all")):
        with pytest.raises(StateError, match=r"this state was taken with (seed|sources|length) .*, and this Mixture"):
            other.load_state_dict(state)
    for bad in ({}, None, {**state, "more": 1}):
        with pytest.raises(StateError, match="this is not a state of a Mixture"):
            mixture({"a": 2, "b": 1}).load_state_dict(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="given should be from 0 to"):
        mixture({"a": 2, "b": 1}).load_state_dict({**state, "given": 10**6})


def test_state_of_an_earlier_order_is_refused() -> None:
    """Before states said so, the 64 samples of a run were shuffled across passes."""
    mix = mixture({"a": 2, "b": 1})
    state = {name: value for name, value in mix.state_dict().items() if name != "algorithm"}
    for earlier in (state, {**state, "algorithm": 3}):
        with pytest.raises(StateError, match=r"a Mixture of algorithm [13], and this version of headrace has 2"):
            mix.load_state_dict(earlier)


def test_search_is_no_iteration_that_a_state_counts() -> None:
    mix = mixture({"a": 2, "b": 1})
    iterator = iter(mix)
    found = [next(iterator) for _ in range(20)]
    assert found[3] in mix and -1 not in mix and "a" not in mix
    assert mix.count(found[3]) == 1 and mix.count(10**9) == 0 and mix.index(found[3]) == 3
    assert found[3] in mix[3::4] and found[3] not in mix[2::4]
    assert mix.state_dict()["given"] == 20


def test_own_state_is_not_ignored_by_a_loader_or_a_plan() -> None:
    """They read the order by positions, not by the iterator that would go on from such a state."""
    mix = mixture({"a": 2, "b": 1})
    mix.load_state_dict({**mix.state_dict(), "given": 20})
    for one in (mix, mix[:]):
        assert len(list(one)) == len(mix) - (20 if one is mix else 0)
    mix.load_state_dict({**mix.state_dict(), "given": 20})
    part = mix[3:90]
    part.load_state_dict({**part.state_dict(), "given": 5})
    for sampler in (mix, part):
        with pytest.raises(ValueError, match=r"has loaded a state .* a loader of headrace begins at the first one"):
            list(headrace.Loader(mix.dataset, 8, sampler=sampler))
    with pytest.raises(ValueError, match=r"has loaded a state .* a Plan begins at the first one"):
        headrace.Plan(np.ones(len(mix.dataset), np.int64), order=mix, max_sum=8)
    mix.set_epoch(1)
    assert len(list(headrace.Loader(mix.dataset, None, sampler=mix))) == len(mix)


# ---- how well it is mixed ----


@pytest.mark.parametrize("size", [2, 5, 33, 70])
def test_each_sample_comes_at_each_place_equally_often(size: int) -> None:
    """Compares the places of the samples over many seeds with uniform ones, by chi squared and five standard
    deviations."""
    seeds, counts = 2000, np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), np.asarray(Mixture({"a": range(size)}, {"a": 1}, seed=seed, length=size))] += 1
    expected, freedom = seeds / size, (size - 1) ** 2
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 5 * (2 * freedom) ** 0.5
