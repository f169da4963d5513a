# SPDX-License-Identifier: Apache-2.0
"""headrace.cache_samples and DataLoader(cache=): samples that are made once per machine."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import numpy as np
import photos
import pytest
import torch
from cache_scripts import Scripts
from headrace._cache import samples as module
from headrace._cache import tables
from headrace._samples.compare import difference
from headrace.torch import DataLoader
from loaders import ENGINE

if not ENGINE:
    pytest.skip("the fallback does not cache", allow_module_level=True)

COUNT = 40
Pair = collections.namedtuple("Pair", "one other")


@dataclasses.dataclass
class Box:
    corner: Any
    name: str


class Counted:
    """A dataset that counts how often each sample was made, in all processes."""

    def __init__(self, folder: pathlib.Path, count: int = COUNT) -> None:
        self.folder = folder
        self.count = count
        folder.mkdir(exist_ok=True)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(f"there is no sample {index}")
        with open(self.folder / "made", "a") as file:
            file.write(f"{index}\n")
        return torch.arange(3.0) + index, index

    def made(self) -> list[int]:
        path = self.folder / "made"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


class Values:
    """A dataset of one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.value


@pytest.fixture(autouse=True)
def own_root(root: pathlib.Path) -> Iterator[None]:
    yield
    tables._kept.clear()


@pytest.fixture
def counted(tmp_path: pathlib.Path) -> Counted:
    return Counted(tmp_path / "samples")


def _cached(dataset: Any, budget: Any = "8M", **options: Any) -> Any:
    """Returns cached samples that count as compared, so that each is made once."""
    cached = _new(dataset, budget, **options)
    if cached.name is not None and cached._open().begin_check() == 0:
        cached._open().end_check(2)
    cached._has_begun = True
    return cached


def _new(dataset: Any, budget: Any = "8M", **options: Any) -> Any:
    return headrace.cache_samples(dataset, budget, **options)


# ---- what can be kept ----

VALUES = {
    "tensor": torch.randn(3, 4),
    "bfloat16": torch.arange(6).to(torch.bfloat16),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "sparse": torch.eye(3).to_sparse(),
    "gradient": torch.zeros(2, requires_grad=True),
    "large": torch.arange(50_000),
    "array": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big endian": np.arange(3, dtype=">i4"),
    "0-d": np.array(3.5),
    "empty": np.zeros((0, 3)),
    "objects": np.array([None, "a", 3], dtype=object),
    "record": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "scalar": np.float32(1.5),
    "nested": {"a": [1, 2.5, None, True, "text", b"bytes", (1 << 80, -1)], 3: ()},
    "named": Pair(torch.zeros(2), "x"),
    "dataclass": Box(np.ones(2), "b"),
    "same part twice": [[1], [1]] * 2,
    "surrogate": "\udc80",
    "set": {1, 2},
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_as_they_were(name: str) -> None:
    value = VALUES[name]
    cached = _cached(Values(value), name=name, version=1)
    first, second = cached[0], cached[0]
    assert difference(first, value) is None
    assert difference(second, value) is None
    assert cached.report()["hits"] == 1
    assert cached.report()["refused"] == {}


def test_images_come_back_as_they_were() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (5, 4), (1, 2, 3))
    image.putpixel((1, 1), (9, 8, 7))
    cached = _cached(Values((image, 3)))
    for sample in (cached[1], cached[1]):
        assert sample[0].size == (5, 4) and sample[0].mode == "RGB" and sample[0].tobytes() == image.tobytes()


def test_samples_are_private_copies() -> None:
    cached = _cached(Values({"t": torch.zeros(3), "a": np.zeros(50_000), "l": [1]}), version=1)
    for _ in range(3):
        sample = cached[0]
        assert sample["t"].sum() == 0 and sample["a"].sum() == 0 and sample["l"] == [1]
        sample["t"] += 1
        sample["a"] += 1
        sample["l"].append(2)


def test_view_is_read_only_and_not_copied() -> None:
    cached = _cached(Values({"a": np.arange(50_000)}), version=1)
    with pytest.raises(KeyError, match="not in the cache"):
        cached.view(0)
    expected = cached[0]["a"]
    one, other = cached.view(0)["a"], cached.view(0)["a"]
    assert np.array_equal(one, expected) and np.shares_memory(one, other)
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 1
    del cached, other
    assert np.array_equal(one, expected)  # the view keeps what it needs


def test_sample_that_cannot_be_pickled_is_not_kept() -> None:
    cached = _cached(Values(lambda: 3))
    assert cached[0]() == 3 and cached[0]() == 3
    assert cached.report()["refused"] == {"cannot be pickled": 1}
    assert cached.report()["made_alone"] == 1


def test_samples_beyond_the_budget_are_made_by_each_process() -> None:
    dataset = Values(np.zeros(1 << 18, np.uint8))
    dataset.__class__ = type("Many", (Values,), {"__len__": lambda self: 20})
    cached = _cached(dataset, "1M", version=1)
    for _ in range(2):
        assert all(len(cached[index]) == 1 << 18 for index in range(20))
    report = cached.report()
    assert 0 < report["ready"] < 20
    assert report["refused"] == {"the budget is used up": 20 - report["ready"]}
    assert report["hits"] == report["ready"] and report["made_alone"] == 20 - report["ready"]
    assert report["expected_hit_rate"] == report["ready"] / 20
    assert report["bytes"] <= report["budget"] == 1 << 20


# ---- indices ----


def test_indices(counted: Counted) -> None:
    cached = _cached(counted)
    assert cached[3][1] == cached[np.int64(3)][1] == cached[torch.tensor(3)][1] == 3
    assert counted.made() == [3]
    with pytest.raises(IndexError, match="there is no sample -1"):
        cached[-1]  # as without the cache
    with pytest.raises(IndexError, match="there is no sample 40"):
        cached[COUNT]
    assert [one[1] for one in cached] == list(range(COUNT))
    assert sorted(counted.made()) == list(range(COUNT))
    assert len(cached) == COUNT and cached.folder == counted.folder


def test_other_indices_go_to_the_dataset() -> None:
    class Any_:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            return index

    cached = _cached(Any_())
    assert [cached[("a", 1)], cached["b"], cached[True]] == [("a", 1), "b", True]
    assert cached.report()["made"] == 0


def test_batches_of_indices(counted: Counted) -> None:
    cached = _cached(counted)
    assert [one[1] for one in cached.__getitems__([1, 2, 5, 1])] == [1, 2, 5, 1]
    assert counted.made() == [1, 2, 5]


def test_sample_that_raises_is_raised_where_it_is_asked_for(counted: Counted) -> None:
    class Bad(Counted):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise KeyError("sample 2 is bad")
            return super().__getitem__(index)

    dataset = Bad(counted.folder)
    cached = _cached(dataset)
    cached.prepare([1, 2, 3])
    assert cached[1][1] == 1
    with pytest.raises(KeyError, match="sample 2 is bad"):
        cached[2]
    assert cached[3][1] == 3
    assert dataset.made() == [1, 3]
    loader = DataLoader(dataset, 4, cache="8M", on_bad_sample="skip")
    with pytest.warns(UserWarning, match="sample 2 is bad"):
        assert sum(len(batch[1]) for batch in loader) == COUNT - 1


# ---- interruptions, threads ----


def test_interrupted_sample_is_given_back(counted: Counted) -> None:
    class Interrupted(Counted):
        stops = True

        def __getitem__(self, index: int) -> Any:
            if type(self).stops:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    cached = _cached(Interrupted(counted.folder))
    with pytest.raises(KeyboardInterrupt):
        cached[3]
    Interrupted.stops = False
    assert cached[3][1] == 3
    assert cached.report()["made_alone"] == 0


def test_threads_make_each_sample_once(counted: Counted) -> None:
    cached = _cached(counted)
    threads = [threading.Thread(target=lambda: [cached[index] for index in range(COUNT)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted.made()) == COUNT + cached.report()["made_alone"]


# ---- loaders ----


def _flat(loader: Any) -> list[Any]:
    return [(values.tolist(), numbers.tolist()) for values, numbers in loader]


def _context(workers: int) -> Any:
    return "fork" if workers else None


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_makes_each_sample_once(counted: Counted, workers: int) -> None:
    loader = DataLoader(counted, 4, num_workers=workers, multiprocessing_context=_context(workers), cache="8M")
    first = _flat(loader)
    made = counted.made()
    assert first == _flat(DataLoader(Counted(counted.folder / "other"), 4))
    assert first == _flat(loader)
    assert len(counted.made()) - len(made) <= 2  # compared by the first worker
    assert loader.dataset is counted
    report = loader.report()["cache"]
    assert report["ready"] == COUNT and report["expected_hit_rate"] == 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_without_torch_makes_each_sample_once(tmp_path: pathlib.Path, workers: int) -> None:
    dataset = Values({"a": np.arange(4), "b": 3})
    loader = headrace.Loader(
        dataset, 2, num_workers=workers, multiprocessing_context=_context(workers), cache=True, shuffle=True, seed=1
    )
    plain = headrace.Loader(dataset, 2, shuffle=True, seed=1)
    for _ in range(2):
        for one, other in zip(loader, plain, strict=True):
            assert difference(one, other) is None
    assert loader.report()["cache"]["ready"] == 3


def _noisy(sample: Any) -> Any:
    return sample[0] + torch.rand(3) + random.random() + float(np.random.rand()), sample[1]


class Noisy:
    """The same dataset with its random step."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return _noisy(self.dataset[index])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rng", ["worker", "sample"])
def test_random_steps_behind_the_cache_draw_the_same_numbers(counted: Counted, workers: int, rng: str) -> None:
    def run(dataset: Any) -> list[Any]:
        random.seed(3)
        np.random.seed(3)
        options = {"num_workers": workers, "multiprocessing_context": _context(workers), "rng": rng, "seed": 5}
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(3)
        loader = DataLoader(dataset, 4, shuffle=True, generator=generator, **options)
        return [_flat(loader) for _ in range(2)]

    expected = run(Noisy(counted))
    cached = _cached(counted, transform=_noisy)
    assert run(cached) == expected
    assert run(cached) == expected  # all from the cache
    assert cached.report()["made"] == COUNT


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_other_start_methods_attach(counted: Counted, method: str) -> None:
    loader = DataLoader(counted, 4, num_workers=2, multiprocessing_context=method, cache="8M", persistent_workers=True)
    first = _flat(loader)
    assert first == _flat(loader)
    assert len(counted.made()) <= 3 * COUNT + 2  # with those that are compared


def test_handle_is_small(counted: Counted) -> None:
    cached = _cached(counted)
    for index in range(COUNT):
        cached[index]
    assert len(pickle.dumps(cached)) < 1000 + len(pickle.dumps(counted))


def test_worker_that_is_killed_while_it_makes_a_sample(counted: Counted) -> None:
    class Deadly(Counted):
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            if index == 7 and multiprocessing.parent_process() and not (self.folder / "killed").exists():
                (self.folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return sample

    dataset = Deadly(counted.folder)
    loader = DataLoader(
        dataset, 4, num_workers=2, multiprocessing_context="fork", cache="8M", max_restarts=2, timeout=60
    )
    _cached(dataset)  # without the comparison of samples
    with pytest.warns(UserWarning, match="sample 7 of batch 1"):
        got = _flat(loader)
    assert [number for _, numbers in got for number in numbers] == list(range(COUNT))
    assert loader.report()["cache"]["ready"] == COUNT


def test_resumed_loader_gives_the_same(counted: Counted) -> None:
    def run(**cache: Any) -> list[Any]:
        def loader() -> Any:
            options = {"num_workers": 2, "multiprocessing_context": "fork", **cache}
            return DataLoader(counted, 4, shuffle=True, generator=torch.Generator().manual_seed(1), **options)

        one, other = loader(), loader()
        iterator = iter(one)
        seen = [next(iterator) for _ in range(3)]
        other.load_state_dict(one.state_dict())
        return [[part.tolist() for part in batch] for batch in [*seen, *other]]

    assert run(cache="8M") == run()


class Fragile(Counted):
    """Sample 5 is bad with an exception that code also raises if it is given a mark."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise TypeError("sample 5 is bad")
        return super().__getitem__(index)


def test_bad_sample_of_any_class_is_left_to_the_policy(counted: Counted) -> None:
    loader = DataLoader(Fragile(counted.folder), 4, cache="8M", on_bad_sample="skip")
    with pytest.warns(UserWarning, match="sample 5 is bad"):
        assert sum(len(numbers) for _, numbers in loader) == COUNT - 1


def test_two_jobs_share_their_samples(counted: Counted, scripts: Scripts) -> None:
    code = f"""
    import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
    sys.path.insert(0, {str(pathlib.Path(__file__).parents[1] / "lib")!r})
    import test_cache_samples as t
    from headrace._cache import samples
    dataset = t.Counted(pathlib.Path({str(counted.folder)!r}))
    cached = t._cached(dataset)
    note(sys.argv[0] + str(os.getpid()))
    await_("go")
    print(sum(one[1] for _ in range(2) for one in cached))
    await_("end")
    """
    jobs = [scripts.start(code) for _ in range(2)]
    scripts.note("go")
    scripts.note("end")
    for job in jobs:
        out, err = scripts.end(job)
        assert out.strip() == str(2 * sum(range(COUNT)))
        assert "headrace: cache Counted-" in err and "8.0 MiB of 40 samples" in err
    assert set(counted.made()) == set(range(COUNT))
    assert headrace.cache.ls() == []  # keep="job": nothing stays


# ---- is it right? ----


def test_random_samples_are_an_error(counted: Counted) -> None:
    states = random.getstate(), torch.get_rng_state()
    text = r"sample 0 was made twice.*sample\[0\]: values of a torch.float32"
    with pytest.raises(headrace.SamplesDiffer, match=text):
        _new(Noisy(counted)).begin(True)
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert all(entry.state == "removed" for entry in headrace.cache.ls())
    loader = DataLoader(Noisy(counted), 4, cache="8M", num_workers=2, multiprocessing_context="fork")
    with pytest.raises(headrace.SamplesDiffer, match="transform="):
        list(loader)


class FromFile:
    """A dataset that changes with a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"x": np.array([int(self.path.read_text()), index])}


def test_samples_of_other_data_are_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data"
    path.write_text("1")
    loader = headrace.Loader(FromFile(path), 2, cache="8M")
    list(loader)
    path.write_text("2")
    with pytest.raises(headrace.SamplesDiffer, match=r"sample \d differs \(sample\['x'\]: values of a int64 array"):
        list(headrace.Loader(FromFile(path), 2, cache="8M"))


@pytest.mark.parametrize(("text", "error"), [("two", "ValueError: invalid literal"), (None, "FileNotFoundError")])
def test_samples_that_cannot_be_made_again_are_a_warning(tmp_path: pathlib.Path, text: str | None, error: str) -> None:
    path = tmp_path / "data"
    path.write_text("1")
    loader = headrace.Loader(FromFile(path), 2, cache="8M")
    before = [batch["x"].tolist() for batch in loader]
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.warns(UserWarning, match=rf"it raises for sample \d, which is kept: {error}") as warned:
        assert [batch["x"].tolist() for batch in headrace.Loader(FromFile(path), 2, cache="8M")] == before
    assert len(warned) == 1


def test_signal_during_the_comparison_arrives(counted: Counted) -> None:
    class Limit(Exception):
        pass

    class Slow(Counted):
        is_slow = False

        def __getitem__(self, index: int) -> Any:
            if type(self).is_slow:
                signal.raise_signal(signal.SIGUSR1)
            return super().__getitem__(index)

    def end(*_: Any) -> None:
        raise Limit

    cached = _new(Slow(counted.folder))
    for index in range(counted.count):
        cached[index]
    Slow.is_slow = True
    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(Limit):
            cached.begin(True)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_dataset_that_fails_for_a_moment_is_asked_again(counted: Counted) -> None:
    class Failing(Counted):
        fails = 0

        def __getitem__(self, index: int) -> Any:
            if type(self).fails > 0:
                type(self).fails -= 1
                raise OSError("stale file handle")
            return super().__getitem__(index)

    cached = _new(Failing(counted.folder))
    kept = [cached[index][0] for index in range(counted.count)]
    Failing.fails = 1
    cached.begin(True)
    assert Failing.fails == 0 and torch.equal(cached[0][0], kept[0])


def test_changed_sources_or_length_make_the_samples_again(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], counted: Counted
) -> None:
    path = tmp_path / "data"
    path.write_text("1")
    one = _cached(FromFile(path), name="n", sources=path)
    assert one[1]["x"][0] == 1
    path.write_text("23")
    other = _cached(FromFile(path), name="n", sources=path)
    assert other[1]["x"][0] == 23 and one[1]["x"][0] == 1
    assert f"the samples are made again, because the source {path} has changed" in capfd.readouterr().err
    _cached(counted, name="c")
    _cached(Counted(counted.folder, 50), name="c")
    assert "Counted.count has changed" in capfd.readouterr().err


def test_install_leaves_iterable_loaders_alone(counted: Counted) -> None:
    with headrace.torch.installed(cache="8M"):
        assert len(list(torch.utils.data.DataLoader(Stream()))) == 3
        assert len(list(torch.utils.data.DataLoader(counted, 4))) == 10
        assert len(list(torch.utils.data.DataLoader(counted, 4))) == 10
    assert len(counted.made()) <= 3 * COUNT + 2


def test_keep_and_drop(counted: Counted) -> None:
    _cached(counted, name="kept", keep="boot")[3]
    tables._kept.clear()
    (entry,) = headrace.cache.ls()
    assert entry.name == "kept.samples" and entry.keep == "boot" and 0 < entry.bytes < 4 << 20
    cached = _cached(counted, name="kept", keep="boot")
    assert cached[3][1] == 3 and counted.made() == [3]
    headrace.cache.verify("kept.samples")
    cached.drop()
    assert headrace.cache.ls() == [] or headrace.cache.ls()[0].state == "removed"
    assert cached[3][1] == 3  # it goes on with what it has
    cached.drop()


def test_samples_on_a_disk(counted: Counted, tmp_path: pathlib.Path) -> None:
    cached = _cached(counted, root=tmp_path, name="d", keep="boot")
    assert [cached[index][1] for index in (0, 1, 0)] == [0, 1, 0]
    assert cached.report()["hits"] == 1
    headrace.cache.verify("d.samples", root=tmp_path)
    child = pickle.loads(pickle.dumps(cached))
    assert child[1][1] == 1 and counted.made()[:2] == [0, 1] and set(counted.made()) == {0, 1}


# ---- images ----

needs_torchvision = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)


def _pictures(tmp_path: pathlib.Path, transform: Any) -> Any:
    from PIL import Image
    from torchvision.datasets import ImageFolder

    folder = tmp_path / "pictures/a"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(0 if list(folder.iterdir()) else 6):
        size = (40 + number, 30)
        Image.effect_noise(size, 60 + number).convert("RGB").save(folder / f"{number}.png")
    return ImageFolder(tmp_path / "pictures", transform)


@needs_torchvision
def test_native_images_are_cached_with_their_values(tmp_path: pathlib.Path) -> None:
    photos.import_torchvision()
    from headrace import images
    from torchvision import transforms as t

    transform = images.native(t.Compose([t.Resize(20), t.CenterCrop(16), t.ToTensor()]))
    dataset = _pictures(tmp_path, transform)
    dataset.loader = images.load_rgb
    expected = [batch[0].tolist() for batch in DataLoader(dataset, 3)]
    loader = DataLoader(dataset, 3, cache="8M", num_workers=2, multiprocessing_context="fork", threads=2)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == expected


# ---- the rest ----


def test_warm_makes_all_samples(counted: Counted) -> None:
    cached = _cached(counted)
    assert cached.warm(0)["ready"] == COUNT
    other = Counted(counted.folder / "b")
    assert _cached(other, name="b").warm(2, progress=False)["ready"] == COUNT
    with pytest.raises(ValueError, match="-1"):
        cached.warm(-2)


def test_without_the_cache_each_process_makes_its_own(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DISABLE", "1")
    monkeypatch.setitem(module._warned, "disabled", False)
    with pytest.warns(UserWarning, match="HEADRACE_DISABLE is set, so each process makes its own samples"):
        cached = _cached(counted)
    assert [cached[1][1], cached[1][1]] == [1, 1]
    assert counted.made() == [1, 1]
    assert "HEADRACE_DISABLE" in cached.report()["why"] and "not cached" in repr(cached)
    cached.drop()


def test_name_of_data_and_of_samples_are_apart(counted: Counted) -> None:
    data = headrace.cache("features", lambda: np.zeros(3))
    _cached(counted, name="features")
    assert {entry.name for entry in headrace.cache.ls()} == {"features", "features.samples"}
    with pytest.raises(headrace.CacheError, match="cache_samples"):
        headrace.cache("features.samples")
    assert data.sum() == 0


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


# ---- findings of a review ----


def _scaled(number: int) -> Any:
    return Values([lambda x: x * number, {1: number}])


def test_datasets_that_differ_in_any_value_have_different_names() -> None:
    def name(value: Any) -> str | None:
        return _cached(Values(value)).name

    assert name([lambda x: x + 1]) != name([lambda x: x + 2])
    assert _cached(_scaled(1)).name != _cached(_scaled(2)).name
    assert name(torch.zeros(3)) == name(torch.zeros(3)) != name(torch.ones(3))
    assert name({"b", "a", "c"}) == name({"c", "a", "b"})
    assert name([threading.Lock()]) == name([threading.Lock()])
    with open(os.devnull) as file:
        assert name([file]) != name([file])  # cannot be compared: not shared


LOCK = threading.Lock()


class Locked(Values):
    def __getitem__(self, index: int) -> Any:
        with LOCK:
            return self.value


def test_lock_that_code_names_does_not_keep_samples_apart() -> None:
    assert _cached(Locked(1)).name == _cached(Locked(1)).name


def test_edited_base_class_has_another_name(tmp_path: pathlib.Path, scripts: Scripts) -> None:
    code = """
    sys.path.insert(0, {folder!r})
    import users
    print(headrace.cache_samples(users.Train(), "4M").name)
    """
    names = []
    for body in ("return index", "return index + 1"):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        methods = f" def __len__(self): return 3\n def __getitem__(self, index): {body}\n"
        text = f"class Base:\n{methods}class Train(Base): pass\n"
        (folder / "users.py").write_text(text)
        names.append(scripts.end(scripts.start(code.format(folder=str(folder))))[0])
    assert names[0] != names[1]


@pytest.mark.parametrize("around", ["subset", "concatenation", "torch's loader"])
def test_cached_dataset_within_another_is_checked(counted: Counted, around: str) -> None:
    cached = _new(Noisy(counted))
    with pytest.raises(headrace.SamplesDiffer, match="they are random"):
        if around == "subset":
            list(DataLoader(torch.utils.data.Subset(cached, [1, 2])))
        elif around == "concatenation":
            list(DataLoader(torch.utils.data.ConcatDataset([cached])))
        else:
            list(torch.utils.data.DataLoader(cached))


def test_random_samples_stay_an_error(counted: Counted) -> None:
    loader = DataLoader(Noisy(counted), 4, cache="8M")
    for _ in range(2):
        with pytest.raises(headrace.SamplesDiffer, match="they are random"):
            list(loader)
    cached = _new(Noisy(counted), name="n")
    for _ in range(2):
        with pytest.raises(headrace.SamplesDiffer):
            cached[0]
    with pytest.raises(headrace.SamplesDiffer, match="that was found before"):
        pickle.loads(pickle.dumps(cached))[0]


def test_interrupted_check_is_done_again(counted: Counted) -> None:
    class Interrupted(Noisy):
        stops = True

        def __getitem__(self, index: int) -> Any:
            if type(self).stops:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    cached = _new(Interrupted(counted))
    with pytest.raises(KeyboardInterrupt):
        cached.begin(True)
    Interrupted.stops = False
    with pytest.raises(headrace.SamplesDiffer):
        cached.begin(True)


def test_attributes_set_later_reach_the_dataset(counted: Counted) -> None:
    cached = _cached(counted)
    cached.opened = 3
    cached.count = COUNT
    assert counted.opened == 3  # type: ignore[attr-defined]


def test_conjugated_tensors_keep_their_values() -> None:
    value = torch.tensor([1 + 2j]).conj()
    cached = _cached(Values([value, value.imag]), version=1)
    for _ in range(2):
        assert torch.equal(cached[0][0].resolve_conj(), torch.tensor([1 - 2j])) and cached[0][1].item() == -2


class Odd:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def test_samples_that_cannot_be_compared_are_not_called_random() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (Odd(3), np.array([np.zeros(2), None], dtype=object), {"c": cycle}):
        _new(Values(value), name="odd").begin(True)


def test_only_getitems_is_used() -> None:
    class Many(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    assert [batch.item() for batch in DataLoader(Many(), cache="8M")] == [0, 10, 20]


def test_bad_sample_is_named_by_its_place(counted: Counted) -> None:
    def fail(sample: Any) -> Any:
        if sample[1] == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    loader = DataLoader(_cached(counted, transform=fail), 4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="sample 6 of batch 1"):
        list(loader)


def test_jobs_that_were_killed_leave_nothing_for_long(counted: Counted, scripts: Scripts) -> None:
    code = f"""
    import os, signal
    sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
    sys.path.insert(0, {str(pathlib.Path(__file__).parents[1] / "lib")!r})
    import test_cache_samples as t
    kept = t._cached(t.Counted(pathlib.Path({str(counted.folder)!r})), name="left")
    kept[3]
    os.kill(os.getpid(), signal.SIGKILL)
    """
    scripts.end(scripts.start(code), -9)
    assert [entry.name for entry in headrace.cache.ls()] == ["left.samples"]
    kept = Values(1)
    _cached(kept, name="next")
    assert [entry.name for entry in headrace.cache.ls()] == ["next.samples"]


def test_job_with_persistent_workers_leaves_nothing(counted: Counted, scripts: Scripts) -> None:
    code = f"""
    sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
    sys.path.insert(0, {str(pathlib.Path(__file__).parents[1] / "lib")!r})
    import test_cache_samples as t
    dataset = t.Counted(pathlib.Path({str(counted.folder)!r}))
    options = {{"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}}
    loader = t.DataLoader(dataset, 4, cache="4M", **options)
    list(loader)
    """
    scripts.end(scripts.start(code))
    assert headrace.cache.ls() == []


def test_equal_datasets_have_the_same_samples(counted: Counted) -> None:
    other = Counted(counted.folder)
    first, second = _cached(counted), _cached(other)
    assert first.name == second.name
    loader = DataLoader(counted, 4, cache="8M", num_workers=1, multiprocessing_context="fork")
    list(loader)
    del first, second, other  # what one of them kept is still needed
    assert [entry.state for entry in headrace.cache.ls()] == ["ready"]
    assert len(list(loader)) == 10


def test_samples_go_with_their_dataset(counted: Counted) -> None:
    cached = _cached(counted, name="folds")
    cached[1]
    del cached
    assert [entry.name for entry in headrace.cache.ls()] == ["folds.samples"]  # the dataset may be loaded again
    other = Counted(counted.folder)
    _cached(other, name="other")[1]
    del other
    assert [entry.name for entry in headrace.cache.ls()] == ["folds.samples"]


BAD = [
    (lambda: _cached(Stream()), TypeError, "map-style"),
    (lambda: _cached(iter([])), TypeError, "without __getitem__"),
    (lambda: _cached(_cached(Values(1))), TypeError, "cache it once"),
    (lambda: _cached(Values(1), transform=3), TypeError, "transform is a function"),
    (lambda: _cached(Values(1), "many"), ValueError, "give a number of bytes"),
    (lambda: _cached(Values(1), 1000), ValueError, "at least 1 MiB"),
    (lambda: _cached(Values(1), -1), ValueError, "give 0 or more bytes"),
    (lambda: _cached(Values(1), None), TypeError, "number of bytes"),
    (lambda: _cached(Values(1), keep="week"), ValueError, "keep is"),
    (lambda: _cached(Values(1), name="a/b"), ValueError, "slash"),
    (lambda: _cached(Values(1), name="x" * 300), ValueError, "200"),
    (lambda: _cached(Values(1), sources="/nothing/here"), FileNotFoundError, "does not exist"),
    (lambda: DataLoader(Values(1), cache="little"), ValueError, "give a number of bytes"),
    (lambda: DataLoader(Values(1), cache=3), ValueError, "at least 1 MiB"),
    (lambda: DataLoader(Stream(), cache="8M"), ValueError, "map-style"),
    (lambda: headrace.Loader(iter([1]), cache="8M"), ValueError, "map-style"),
    (lambda: iter(DataLoader(_cached(Values(1)), cache="8M")), TypeError, "cache it once"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_explained(number: int) -> None:
    call, kind, text = BAD[number]
    with pytest.raises(kind, match=text):
        call()
