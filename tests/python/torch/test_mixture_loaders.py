# SPDX-License-Identifier: Apache-2.0
"""headrace.Mixture with the loaders: batches, ranks, resume with others, random numbers, cache, bad samples, plans."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sysconfig
import warnings
import zlib
from collections import Counter
from typing import Any

import headrace
import numpy as np
import pytest
import torch
import torch.utils.data
from headrace import Mixture, sources
from headrace._samples.prepared import PreparedDataset
from headrace._samples.rows import gatherer_of_source
from headrace.torch import DataLoader, per_rank
from loaders import only_headrace
from resumed import plain
from torch.utils.data import BatchSampler, ConcatDataset, Subset, TensorDataset

pytestmark = [only_headrace]
SEVEN_THREE = {"a": 0.7, "b": 0.3}


class Samples:
    """Sample i is (first + i, a random number)."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, float]:
        return range(self.first, self.first + self.count)[index], random.random()


def mixture(count: int = 40, **options: Any) -> Mixture:
    """Returns a mixture whose second source is read more than once in an epoch that has all."""
    return Mixture({"a": Samples(0, count), "b": Samples(count, 9)}, SEVEN_THREE, **options)


def numbers_of(loader: Any) -> list[int]:
    return [number for batch in loader for number in plain(batch[0])]


# ---- batches ----

TWO = {"a": 300, "b": 100}


def of_tensors() -> dict[str, Any]:
    return {name: TensorDataset(torch.arange(n) + n, torch.rand(n, 3)) for name, n in TWO.items()}


def of_arrays() -> dict[str, Any]:
    return {name: sources.Arrays(x=np.arange(n) + n, y=np.ones((n, 2), np.float32)) for name, n in TWO.items()}


def of_mixed_kinds() -> dict[str, Any]:
    rows = [(torch.tensor(number), torch.rand(3)) for number in range(100)]
    return {"a": TensorDataset(torch.arange(300), torch.rand(300, 3)), "b": rows}


def of_other_dtypes() -> dict[str, Any]:
    return {"a": sources.Arrays(x=np.arange(300)), "b": sources.Arrays(x=np.arange(100, dtype=np.int32))}


def of_subsets() -> dict[str, Any]:
    whole = TensorDataset(torch.arange(400))
    return {
        "a": Subset(whole, range(300)),
        "b": ConcatDataset([Subset(whole, range(300, 350)), Subset(whole, [7] * 50)]),
    }


@pytest.mark.parametrize("make", [of_tensors, of_arrays, of_mixed_kinds, of_other_dtypes, of_subsets])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_of_torchs_loader(make: Any, workers: int) -> None:
    """Gathered batches, and those that are made sample by sample, with indices of later passes."""
    torch.manual_seed(1)
    datasets = make()
    mix = Mixture(datasets, SEVEN_THREE, seed=2, until="all")
    assert max(mix) >= 400
    gathers = make in (of_tensors, of_arrays, of_subsets)
    theirs = torch.utils.data.DataLoader(mix.dataset, 16, sampler=mix)  # type: ignore[arg-type]
    loader = DataLoader(mix.dataset, 16, sampler=mix, num_workers=workers)  # type: ignore[arg-type]
    for ours, expected in zip(loader, theirs, strict=True):
        pairs = zip(*(one.values() if isinstance(one, dict) else one for one in (ours, expected)), strict=True)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    if workers:
        assert (loader.report().get("rows") == "MixedDataset") == gathers


def test_sources_of_other_kinds_are_not_gathered() -> None:
    """One column cannot be an array of NumPy and a tensor: torch's collate would raise or give another batch."""
    held = np.arange(300)
    for other in (torch.arange(9), np.arange(9.0), np.arange(18).reshape(9, 2)):
        mix = Mixture({"a": sources.Arrays(x=held), "b": sources.Arrays(x=other)}, SEVEN_THREE)
        assert gatherer_of_source(mix.dataset) is None
    for differing in (sources.Arrays(y=held), sources.Arrays(held), sources.Arrays(x=held, y=held)):
        assert gatherer_of_source(Mixture({"a": sources.Arrays(x=held), "b": differing}, SEVEN_THREE).dataset) is None
    assert gatherer_of_source(Mixture({"a": sources.Arrays(x=held)}, {"a": 1}).dataset) is not None


def test_numpy_loader_gathers_a_mixture_of_arrays() -> None:
    mix = Mixture(of_arrays(), SEVEN_THREE, seed=2, until="all")
    loader = headrace.Loader(mix.dataset, batch_size=16, sampler=mix, num_workers=1)
    found = [number for batch in loader for number in batch["x"].tolist()]
    assert found == [mix.dataset[index]["x"] for index in mix] and loader.report()["rows"] == "MixedDataset"


def test_arrays_that_change_are_made_one_by_one() -> None:
    """A source that has other rows than when the mixture was made must not give those of its neighbour."""
    held: Any = of_arrays()
    mix = Mixture(held, SEVEN_THREE, until="all")
    held["a"]._arrays[:] = [np.zeros(200, np.int64), np.zeros((200, 2), np.float32)]
    with pytest.raises(IndexError, match=r"index .* is out of range, there are 200 samples"):
        list(DataLoader(mix.dataset, 16, sampler=np.asarray(mix).tolist()))  # type: ignore[arg-type]


def test_sources_are_shown_the_indices_of_a_batch() -> None:
    """A source that gets the samples of a batch ready, as sources.Tar does, sees its own indices."""

    class Shown(PreparedDataset):
        def __init__(self, first: int, count: int) -> None:
            self.first, self.count, self.seen, self.begun = first, count, [], 0

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> int:
            return self.first + index

        def prepare(self, indices: Any) -> None:
            self.seen.append(list(indices))

        def begin(self, is_first: bool) -> None:
            self.begun += 1

    one, two = Shown(0, 30), Shown(30, 5)
    mix = Mixture({"a": one, "b": two, "c": range(35, 44)}, {"a": 2, "b": 2, "c": 1}, length=40)
    batches = [plain(batch) for batch in DataLoader(mix.dataset, 10, sampler=mix)]  # type: ignore[arg-type]
    assert [number for batch in batches for number in batch] == [index % 44 for index in mix]
    for source in (one, two):
        mine = range(source.first, source.first + source.count)
        assert source.seen == [[one - source.first for one in batch if one in mine] for batch in batches]
        assert source.begun == 1
    mix.dataset.prepare([-99, "a"])
    same = Mixture({"a": one, "b": one}, {"a": 1, "b": 1})
    one.seen.clear()
    same.dataset.prepare([0, 31, 2])  # the same dataset twice: it keeps only what it was shown last
    assert one.seen == [[0, 1, 2]]


# ---- ranks and states ----


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_have_each_sample_once(world: int) -> None:
    mix = mixture(until="all", seed=1)
    parts = [per_rank(mix, num_replicas=world, rank=rank, tail="exact") for rank in range(world)]
    loaders = [DataLoader(mix.dataset, 4, sampler=part) for part in parts]  # type: ignore[arg-type]
    seen = []
    for loader in loaders:
        for _ in loader:
            seen += [i for i, weight in zip(loader.last.indices, loader.last.weights, strict=True) if weight]
    assert sorted(seen) == sorted(mix) and len({len(loader) for loader in loaders}) == 1


def take(make: Any, world: int, state: Any, steps: int) -> tuple[list[int], Any, bool]:
    """Returns the indices that all ranks get in some steps from a state on, the state then, and if the epoch ended."""
    seen: list[int] = []
    after, ended = state, False
    for rank in range(world):
        loader = make(world, rank)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        for _ in range(steps):
            if next(iterator, None) is None:
                ended = True
                break
            weights = loader.last.weights.tolist()
            seen += [i for i, weight in zip(loader.last.indices, weights, strict=True) if weight]
        after = loader.state_dict()
    return seen, after, ended


@pytest.mark.parametrize("kind", ["per_rank", "plan", "numpy"])
def test_twenty_stops_with_other_ranks_read_each_sample_once(kind: str) -> None:
    """The run stops after a few steps, and goes on with another number of ranks, workers and batch size."""
    drawn = random.Random(4)
    mix = mixture(count=600, until="all", seed=3)

    def make(world: int, rank: int) -> Any:
        workers, size = drawn.choice([0, 0, 0, 1]), drawn.choice([2, 3])
        if kind == "numpy":
            return headrace.Loader(mix.dataset, size, sampler=mix[rank::world], num_workers=workers)
        if kind == "per_rank":
            part = per_rank(mix, num_replicas=world, rank=rank, tail="exact")
            return DataLoader(mix.dataset, size, sampler=part, num_workers=workers)  # type: ignore[arg-type]
        lengths = [1 + i % 5 for i in range(609)]
        plan = headrace.Plan(lengths, order=mix, pack=10, world_size=world, rank=rank, tail="exact")
        return DataLoader(mix.dataset, batch_sampler=plan, num_workers=workers)  # type: ignore[arg-type]

    seen: list[int] = []
    state, ended, stops = None, False, 0
    while not ended:
        size = random.Random(stops)
        world, steps = size.choice([1, 2, 3, 4]), 3 if stops < 20 else 10**6
        drawn.seed(stops)
        before = drawn.getstate()

        def same(world: int, rank: int, before: Any = before) -> Any:
            drawn.setstate(before)  # all ranks of a run have the same batch size
            return make(world, rank)

        part, state, ended = take(same, world, state, steps)
        seen += part
        stops += 1
    assert stops >= 20 and sorted(seen) == sorted(mix)
    assert set(Counter(index % 609 for index in seen)) == set(range(609))


def test_state_of_a_changed_mixture_is_refused() -> None:
    loader = DataLoader(mixture().dataset, 4, sampler=mixture())  # type: ignore[arg-type]
    next(iter(loader))
    state = loader.state_dict()
    for other in (mixture(count=41), mixture(until="all")):
        changed = DataLoader(other.dataset, 4, sampler=other)  # type: ignore[arg-type]
        with pytest.raises(headrace.StateError, match=r"taken with a Mixture of \d+ samples an epoch, .*'a': 40 x 7"):
            changed.load_state_dict(state)
        changed = DataLoader(other.dataset, 4, sampler=other, on_changed="next_epoch")  # type: ignore[arg-type]
        changed.load_state_dict(state)
        assert changed.steps_left == len(changed)
    other = DataLoader(mixture().dataset, 4, sampler=mixture(seed=1))  # type: ignore[arg-type, assignment]
    with pytest.raises(headrace.StateError, match="seed=0 of the Mixture"):
        other.load_state_dict(state)  # type: ignore[attr-defined]


@pytest.mark.parametrize("part", [slice(None), slice(1, None, 2), slice(3, 90)])
def test_state_of_an_earlier_order_is_refused(part: slice) -> None:
    """States had no "algorithm" while the order was another one. The rest of the epoch can be left out."""

    def make(**options: Any) -> Any:
        mix = mixture()
        return DataLoader(mix.dataset, 4, sampler=mix[part], **options)  # type: ignore[arg-type]

    loader = make()
    next(iter(loader))
    fields = json.loads(loader.state_dict()["headrace"])
    del fields["checksum"]
    assert fields["order"].pop("algorithm") == 2
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    earlier = {"headrace": f'{text[:-1]},"checksum":{zlib.crc32(text.encode())}}}'}
    with pytest.raises(headrace.StateError, match="a Mixture of algorithm 1, and this version of headrace has 2"):
        make().load_state_dict(earlier)
    loader = make(on_changed="next_epoch")
    loader.load_state_dict(earlier)
    assert loader.steps_left == len(loader)


def test_batch_sampler_around_a_mixture_is_continued() -> None:
    """The mixture is at hand in a sampler of the user's: its epoch is what set_epoch says, not what a state says."""

    class Pairs:
        def __init__(self, sampler: Mixture) -> None:
            self.sampler = sampler

        def __iter__(self) -> Any:
            yield from BatchSampler(self.sampler, 2, False)

        def set_epoch(self, epoch: int) -> None:
            self.sampler.set_epoch(epoch)

    def make() -> Any:
        mix = mixture(length=12)
        return DataLoader(mix.dataset, batch_sampler=Pairs(mix))  # type: ignore[arg-type]

    whole, loader, states = [], make(), []
    for epoch in range(3):
        loader.set_epoch(epoch)
        for batch in loader:
            whole.append(plain(batch[0]))
            states.append(loader.state_dict())
    for done, state in enumerate(states[:-1], 1):
        other, found = make(), []
        other.load_state_dict(state)
        for epoch in range(done // 6, 3):
            other.set_epoch(epoch)
            found += [plain(batch[0]) for batch in other]
        assert found == whole[done:]


# ---- what loaders have for all datasets ----


def test_later_passes_draw_other_random_numbers() -> None:
    mix = mixture(until="all")

    def batches(workers: int) -> list[Any]:
        options: Any = {"rng": "sample", "seed": 7, "num_workers": workers}
        return list(DataLoader(mix.dataset, 4, sampler=mix, **options))  # type: ignore[arg-type]

    drawn: dict[int, list[float]] = {}
    for numbers, values in batches(0):
        for number, value in zip(plain(numbers), plain(values), strict=True):
            drawn.setdefault(number, []).append(value)
    assert max(map(len, drawn.values())) > 1
    assert all(len(set(values)) == len(values) for values in drawn.values())
    for one, other in zip(batches(0), batches(1), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_cache_makes_each_sample_of_a_mixture_once(tmp_path: pathlib.Path) -> None:
    """Later passes are read from the cache, and an own cache in front of a source works too."""

    class Noted(Samples):
        def __getitem__(self, index: int) -> Any:
            with open(tmp_path / "made", "a") as file:
                file.write(f"{self.first + index}\n")
            return torch.tensor([self.first + index])

    mix = Mixture({"a": Noted(0, 300), "b": Noted(300, 20)}, SEVEN_THREE, until="all")
    cached = headrace.cache_samples(mix.dataset, name="mixture", root=tmp_path / "cache")
    for workers in (0, 1):
        loader = DataLoader(cached, 8, sampler=mix, num_workers=workers)  # type: ignore[arg-type]
        assert [one for batch in loader for one in plain(batch)] == [[index % 320] for index in mix]
    report = cached.report()
    assert report["ready"] == report["made"] == 320 and report["made_alone"] == 0
    before = (tmp_path / "made").read_text().count("\n")
    assert [plain(cached[np.int64(index)]) for index in mix] == [[index % 320] for index in mix]
    assert (tmp_path / "made").read_text().count("\n") == before
    nested = Mixture({"a": cached, "b": Noted(320, 9)}, SEVEN_THREE, length=64)
    loader = DataLoader(nested.dataset, 8, sampler=nested, num_workers=1)  # type: ignore[arg-type]
    assert [one for batch in loader for one in plain(batch)] == [[index % 329] for index in nested]


def test_bad_samples_of_a_mixture_are_replaced() -> None:
    class Bad(Samples):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise ValueError("this sample is bad")
            return super().__getitem__(index)

    mix = Mixture({"a": Samples(0, 30), "b": Bad(30, 9)}, SEVEN_THREE, until="all")
    loader = DataLoader(mix.dataset, 4, sampler=mix, on_bad_sample="refill", num_workers=1)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = numbers_of(loader)
    assert len(found) == len(mix) and 33 not in found
    bad = [index for index in mix if index % 39 == 33]
    assert len(bad) > 1 and any("this sample is bad" in str(one.message) for one in caught)
    assert [one.index for one in loader.report()["bad_samples"]] == bad


def test_plan_of_a_mixture_looks_lengths_up() -> None:
    """Later passes have the lengths of their samples, and no row is longer than its capacity."""
    mix = mixture(until="all", seed=2)
    lengths = [1 + index % 7 for index in range(49)]
    plan = headrace.Plan(lengths, order=mix, pack=14, tail="exact", seed=1)
    rows = list(plan)
    assert sorted(index for row in rows for index in row) == sorted(mix)
    assert all(sum(lengths[index % 49] for index in row) <= 14 for row in rows)
    with pytest.raises(ValueError, match=r"order is a Mixture of 49 samples, but lengths are given for 50"):
        headrace.Plan([*lengths, 1], order=mix, pack=14)
    with pytest.raises(ValueError, match=r"samples are longer than pack \(6\): sample 6 has length 7"):
        headrace.Plan(lengths, order=mix, pack=6)


@pytest.mark.parametrize("make", [DataLoader, headrace.Loader])
def test_plan_of_sources_that_change_is_an_error(make: Any) -> None:
    rows = list(range(40))
    mix = Mixture({"a": rows, "b": range(9)}, SEVEN_THREE)
    loader = make(mix.dataset, batch_sampler=headrace.Plan([1] * 49, order=mix, max_sum=4))
    assert list(loader)
    rows.insert(0, -1)
    with pytest.raises(ValueError, match=r"source 'a' of the mixture has 41 samples now, but had 40"):
        list(loader)


def test_dataset_of_another_mixture_is_refused() -> None:
    """Each index has some sample there, so batches would have wrong ones."""
    mix, other = mixture(), mixture(count=30)
    for sampler in (mix, mix[::2], mix[3:9], per_rank(mix, num_replicas=2, rank=0)):
        with pytest.raises(ValueError, match=r"indices of this Mixture are those of mix.dataset\(a: Samples of 40"):
            list(DataLoader(other.dataset, 4, sampler=sampler))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"indices of this Mixture are those of mix.dataset\(a: Samples of 40"):
        list(headrace.Loader(other.dataset, 4, sampler=mix))
    assert list(DataLoader(mixture().dataset, 4, sampler=mix))  # type: ignore[arg-type]


def test_own_state_is_not_ignored_by_torchs_ways() -> None:
    mix = mixture()
    mix.load_state_dict({**mix.state_dict(), "given": 20})
    for make in (lambda: DataLoader(mix.dataset, 4, sampler=mix), lambda: per_rank(mix, num_replicas=1, rank=0)):
        with pytest.raises(ValueError, match=r"has loaded a state .* begins at the first one"):
            list(make())  # type: ignore[call-overload]


def test_replay_takes_an_index_of_a_later_pass(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(
        "import headrace\n"
        "mix = headrace.Mixture({'a': range(100, 130), 'b': range(9)}, {'a': 0.7, 'b': 0.3}, until='all')\n"
        "dataset = mix.dataset\n"
    )
    program = pathlib.Path(sysconfig.get_path("scripts")) / "headrace"
    words = [str(program), "replay", "train.py:dataset", str(39 * 2 + 4)]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert found.returncode == 0 and "104" in found.stdout + found.stderr


def test_epochs_of_so_many_steps_follow_each_other() -> None:
    mix = mixture(length=20)
    loader = DataLoader(mix.dataset, 4, sampler=mix, steps_per_epoch=3)  # type: ignore[arg-type]
    found = []
    for epoch in range(5):
        loader.set_epoch(epoch)
        found += numbers_of(loader)
    expected = [index % 49 for epoch in range(3) for index in mix.with_epoch(epoch)]
    assert found == expected[:60]


def test_persistent_workers_get_each_epoch() -> None:
    mix = mixture(length=20)
    loader = DataLoader(  # type: ignore[call-overload]
        mix.dataset, 4, sampler=per_rank(mix, num_replicas=2, rank=1), num_workers=1, persistent_workers=True
    )
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert numbers_of(loader) == [index % 49 for index in mix.with_epoch(epoch)[1::2]]
