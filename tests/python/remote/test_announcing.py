# SPDX-License-Identifier: Apache-2.0
"""The samples that a loop will read are announced to the fetcher: of which samplers the order is known, that nothing is
drawn for that, and that they are withdrawn."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace import _core, sources
from headrace._loader.trainer import announcing
from headrace.sources import _reads
from headrace.torch import DataLoader, per_rank
from headrace.torch import DistributedSampler as OwnDistributedSampler
from processes import until
from remote_runs import FILES, as_text, fetchers_of, kill_fetchers, tar_bytes
from remote_server import RemoteServer
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

COUNT = 60  # samples of a.tar
ALL = 10**9
PATIENCE_S = 60


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return self.first + index


class Yielding:
    """A sampler of a user's, whose order is not known."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(COUNT).tolist()

    def __len__(self) -> int:
        return COUNT


def make_plan() -> headrace.Plan:
    return headrace.Plan([1 + i % 7 for i in range(COUNT)], max_sum=20, seed=4)


def make_mixture() -> headrace.Mixture:
    return headrace.Mixture({"a": Numbers(), "b": Numbers(COUNT)}, weights={"a": 0.3, "b": 0.7}, seed=0, until="first")


GENERATOR = lambda: torch.Generator().manual_seed(5)  # noqa: E731

# How a loader is made, and how many samples after the drawn ones are known, at most.
TORCHS: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "sequential": (dict, ALL),
    "SequentialSampler": (lambda: {"sampler": SequentialSampler(Numbers())}, ALL),
    "shuffle": (lambda: {"shuffle": True}, ALL),
    "drop_last": (lambda: {"shuffle": True, "drop_last": True}, ALL),
    "generator": (lambda: {"sampler": RandomSampler(Numbers(), generator=GENERATOR())}, ALL),
    "num_samples": (lambda: {"sampler": RandomSampler(Numbers(), num_samples=100)}, COUNT),
    "replacement": (lambda: {"sampler": RandomSampler(Numbers(), replacement=True, num_samples=70)}, 32),
    "SubsetRandomSampler": (lambda: {"sampler": SubsetRandomSampler([3 * i for i in range(20)])}, ALL),
    "SubsetRandomSampler of an array": (lambda: {"sampler": SubsetRandomSampler(np.arange(20))}, 0),
    "WeightedRandomSampler": (lambda: {"sampler": WeightedRandomSampler([1.0] * COUNT, 50)}, ALL),
    "DistributedSampler": (lambda: {"sampler": DistributedSampler(Numbers(), 7, 2)}, ALL),
    "no batches": (lambda: {"batch_size": None, "shuffle": True}, ALL),
    "batch_sampler": (lambda: {"batch_sampler": BatchSampler(RandomSampler(Numbers()), 4, False)}, ALL),
    "generator function": (lambda: {"sampler": Yielding()}, 0),
    "batches of a user": (lambda: {"batch_sampler": [[1, 2], [3, 4], [5], [6]]}, ALL),
}
OWN: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "DistributedSampler of headrace": (lambda: {"sampler": OwnDistributedSampler(Numbers(), 7, 2, seed=1)}, ALL),
    "Order": (lambda: {"sampler": headrace.Order(COUNT, seed=1)}, ALL),
    "Order of a rank": (lambda: {"sampler": headrace.Order(COUNT, seed=1)[1::3]}, ALL),
    "slice of an Order": (lambda: {"sampler": headrace.Order(COUNT, seed=1)[10:50]}, ALL),
    "Mixture": (lambda: {"sampler": make_mixture()}, ALL),
    "per_rank": (lambda: {"sampler": per_rank(RandomSampler(Numbers()), num_replicas=3, rank=1, seed=0)}, ALL),
    "per_rank of an Order": (lambda: {"sampler": per_rank(headrace.Order(COUNT, seed=1), num_replicas=3, rank=1)}, ALL),
    "Plan": (lambda: {"batch_sampler": make_plan()}, ALL),
}
EVERY = {**TORCHS, **OWN}


def make(name: str, kind: Any = DataLoader, **options: Any) -> Any:
    arguments = EVERY[name][0]()
    has_size = "batch_size" in arguments or "batch_sampler" in arguments
    dataset = make_mixture().dataset if name == "Mixture" else Numbers()
    return kind(dataset, **({} if has_size else {"batch_size": 4}), **arguments, **options)


def samples_of(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in ([batch] if isinstance(batch, int) else batch)]


def rest_of(iterator: Any) -> list[int] | None:
    """Returns what is known to come. The random numbers of all generators stay as they are."""
    tasks, before = iterator.epoch.tasks, torch.get_rng_state()
    items = announcing.rest_of(tasks)
    found = None if items is None else announcing._Rest(items, 0).take(0, ALL)
    assert torch.equal(before, torch.get_rng_state())
    return found


@pytest.mark.parametrize("name", EVERY)
def test_known_order_is_the_one_that_comes(name: str) -> None:
    """At each batch, also after a state was loaded in the middle."""
    torch.manual_seed(1)
    whole = samples_of(make(name))
    most = EVERY[name][1]
    torch.manual_seed(1)
    loader = make(name)
    given, known, states = 0, [], []
    iterator = iter(loader)
    for batch in iterator:
        given += len(samples_of([batch]))
        rest = rest_of(iterator)
        left = whole[given:]
        assert (rest is None) == (most == 0)
        assert rest is None or rest[: len(left)] == left[: len(rest)]
        assert most < ALL or rest == left or name == "drop_last"
        known.append(len(rest or ()))
        states.append((given, loader.state_dict()))
    assert max(known) > 0 or most == 0
    if name == "batches of a user":
        return
    given, state = states[len(states) // 2]
    torch.manual_seed(1)
    again = make(name)
    again.load_state_dict(state)
    iterator = iter(again)
    given += len(samples_of([next(iterator)]))
    rest = rest_of(iterator)
    assert rest is None or rest[: len(whole) - given] == whole[given:][: len(rest)]
    assert (rest is None) == (most == 0) and samples_of(iterator) == whole[given:]


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("workers", [0, 1])
def test_data_and_random_numbers_are_torchs(name: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an announcer that looks at what is known after each draw."""
    looked = []

    class Looking:
        def step(self, tasks: Any) -> None:
            items = announcing.rest_of(tasks)
            looked.append(None if items is None else list(items))

        def end(self) -> None:
            pass

    monkeypatch.setattr("headrace._loader.trainer.engine.announcing_of", lambda dataset: Looking())
    monkeypatch.setattr("headrace._loader.both.in_process.announcing_of", lambda dataset: Looking())
    found = []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(1)
        seen = [(samples_of([batch]), torch.get_rng_state()) for batch in make(name, kind, num_workers=workers)]
        found.append((seen, torch.get_rng_state()))
    (theirs, their_end), (ours, our_end) = found
    assert [one for one, _ in theirs] == [one for one, _ in ours]
    assert all(torch.equal(one[1], other[1]) for one, other in zip(theirs, ours, strict=True))
    assert torch.equal(their_end, our_end) and looked


def test_numpy_loader_knows_what_comes() -> None:
    for options in ({}, {"shuffle": True, "seed": 3}, {"batch_sampler": make_plan()}):
        size = {} if "batch_sampler" in options else {"batch_size": 4}
        whole = [int(one) for batch in headrace.Loader(Numbers(), **size, **options) for one in batch]
        loader = headrace.Loader(Numbers(), **size, **options)
        iterator, given = iter(loader), 0
        for batch in iterator:
            given += len(batch)
            assert rest_of(iterator) == whole[given:]


# ---- datasets around sources ----


class Asked:
    """Stands for open files; notes what is asked for."""

    def __init__(self) -> None:
        self.indices: list[Any] = []

    def ask(self, indices: list[Any], announcer: Any) -> None:
        self.indices += indices


class FakeSource(sources._source.Source):
    def __init__(self, asked: Asked | None) -> None:
        self.asked = asked

    def _asked(self) -> Any:
        return self.asked

    def _count(self) -> int:
        return 10


def test_datasets_around_sources_are_looked_through() -> None:
    one, other = Asked(), Asked()
    near, far, farther = FakeSource(None), FakeSource(one), FakeSource(other)
    chain = ConcatDataset([near, far, Subset(farther, [9, 8, 7])])

    def asked_of(dataset: Any, indices: list[Any]) -> tuple[list[int], list[int]]:
        one.indices, other.indices = [], []
        reads = _reads.reads_of(dataset)
        assert reads is not None
        reads.ask(indices, _core.Announcer())
        return one.indices, other.indices

    assert asked_of(chain, [0, 9, 10, 19, 20, 22, 23, -1, "x", 2.0]) == ([0, 9], [9, 7])
    assert asked_of(Subset(chain, range(15, 25)), [0, 5, 7, 8, 10]) == ([5], [9, 7])
    mix = headrace.Mixture({"a": near, "b": far}, weights={"a": 1, "b": 1}, seed=0, until="first")
    assert asked_of(mix.dataset, [3, 10, 19, 20 + 12, "x", -1]) == ([0, 9, 2], [])
    assert asked_of(Subset(far, np.arange(3)), [0]) == ([], [])
    assert _reads.reads_of(near) is None and _reads.reads_of(ConcatDataset([near, near])) is None
    assert _reads.reads_of(Numbers()) is None and _reads.reads_of(Subset(near, [1])) is None


class Reversed:
    """A dataset of a user's around a source, which says what it reads."""

    def __init__(self, *sources_: Any) -> None:
        for number, one in enumerate(sources_):
            setattr(self, f"source_{number}", one)

    def __len__(self) -> int:
        return 10

    def reads(self, index: int) -> int | None:
        return 9 - index if index else None


def test_dataset_says_what_it_reads() -> None:
    asked = Asked()
    source = FakeSource(asked)
    for dataset in (Reversed(source), Subset(Reversed(Subset(source, range(10))), [0, 1, 2, 3])):
        asked.indices = []
        reads = _reads.reads_of(dataset)
        assert reads is not None
        reads.ask([0, 1, 3], _core.Announcer())
        assert [one for one in asked.indices if one is not None] == [8, 6]
    assert _reads.reads_of(Reversed(source, source)) is None and _reads.reads_of(Reversed(FakeSource(None))) is None
    assert _reads.reads_of(Reversed(Reversed(source))) is None


# ---- with a server ----


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HEADRACE_REMOTE_QUOTA", "0")  # nothing is kept, so that no whole object is fetched
    with RemoteServer(dict(FILES)) as found:
        yield found


def open_tar(server: RemoteServer) -> Any:
    return sources.Tar(server.url("a.tar"), fields=("bin", "cls"))


def as_list(samples: list[Any]) -> list[Any]:
    return [as_text(sample) for sample in samples]


def status() -> dict[str, int]:
    found: dict[str, int] = json.loads(_core.remote_call(b"status"))
    return found


def announced() -> int:
    return status()["announced"]


def is_done() -> bool:
    """Returns True if all that was announced was fetched, and nothing else is."""
    found = status()
    return found["announced"] == 0 and found["jobs"] == 1  # this call


@pytest.mark.parametrize("name", ["shuffle", "Order", "DistributedSampler", "per_rank", "SubsetRandomSampler"])
@pytest.mark.parametrize("workers", [0, 1])
def test_all_of_a_pass_is_fetched_before_it_is_read(name: str, workers: int, server: RemoteServer) -> None:
    remote = open_tar(server)
    before = len(server.requests)
    loader = DataLoader(remote, 4, num_workers=workers, collate_fn=as_list, **EVERY[name][0]())
    torch.manual_seed(1)
    indices = samples_of(DataLoader(Numbers(), 4, **EVERY[name][0]()))
    torch.manual_seed(1)
    iterator = iter(loader)
    got = next(iterator)
    assert until(lambda: len(server.requests) - before >= len(indices) - 1 and is_done(), PATIENCE_S)  # one was at hand
    del server.files["a.tar"]  # what is read now is in the memory of the fetcher
    got += [sample for batch in iterator for sample in batch]
    assert [int(label) for _, label in got] == indices and len(server.requests) - before <= len(indices)


def test_headrace_loader_and_plan_announce(server: RemoteServer) -> None:
    remote = open_tar(server)
    for options in ({"batch_size": 4, "shuffle": True}, {"batch_sampler": make_plan()}):
        before = len(server.requests)
        iterator = iter(headrace.Loader(remote, num_workers=1, collate_fn=as_list, **options))
        got = next(iterator)
        assert until(lambda: len(server.requests) - before >= COUNT - 1 and is_done(), PATIENCE_S)  # noqa: B023
        got += [sample for batch in iterator for sample in batch]
        assert len(server.requests) - before <= COUNT
        assert sorted(int(label) for _, label in got) == list(range(COUNT))


class Labels:
    def __init__(self, tar: Any) -> None:
        self.tar = tar

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        return int(self.tar[2 * index][1])

    def reads(self, index: int) -> int:
        return 2 * index


def test_dataset_with_reads_is_announced(server: RemoteServer) -> None:
    remote = open_tar(server)
    before = len(server.requests)
    iterator = iter(DataLoader(Labels(remote), 3, shuffle=True, num_workers=1))
    got = next(iterator).tolist()
    assert until(lambda: len(server.requests) - before >= 29 and is_done(), PATIENCE_S)
    got += [label for batch in iterator for label in batch.tolist()]
    assert sorted(got) == list(range(0, 60, 2)) and len(server.requests) - before <= 30


def test_of_other_samplers_nothing_is_fetched_twice(server: RemoteServer) -> None:
    remote = open_tar(server)
    before = len(server.requests)
    loader = DataLoader(remote, 4, sampler=Yielding(), num_workers=1, prefetch_factor=3, collate_fn=as_list)
    got = [sample for batch in loader for sample in batch]
    assert sorted(int(label) for _, label in got) == list(range(COUNT))
    assert until(is_done, PATIENCE_S) and len(server.requests) - before <= COUNT


def test_mixture_announces_its_remote_sources(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.tar").write_bytes(FILES["a.tar"])
    near, far = sources.Tar(str(tmp_path / "a.tar"), fields=("bin", "cls")), open_tar(server)
    mix = headrace.Mixture({"near": near, "far": far}, weights={"near": 0.5, "far": 0.5}, seed=0, until="first")
    wanted = sum(mix.dataset.place_of(index)[0] for index in mix)
    before = len(server.requests)
    iterator = iter(DataLoader(mix.dataset, 4, sampler=mix, num_workers=1, collate_fn=as_list))
    next(iterator)
    assert until(lambda: len(server.requests) - before >= wanted - 1 and is_done(), PATIENCE_S)
    assert sum(len(batch) for batch in iterator) + 4 == len(mix)
    assert len(server.requests) - before <= wanted


def test_limits_of_time_and_samples(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "LEAST", 8)
    monkeypatch.setattr(announcing, "MOST", 12)
    monkeypatch.setattr(announcing, "_CHUNK", 2)
    remote = open_tar(server)
    before = len(server.requests)
    iterator = iter(DataLoader(remote, 4, shuffle=True, num_workers=1, prefetch_factor=1, collate_fn=as_list))
    for taken in range(4, 24, 4):
        next(iterator)
        # What is delivered to the loop now is not counted as delivered yet.
        assert until(lambda: len(server.requests) - before >= taken + 3 and is_done(), PATIENCE_S)  # noqa: B023
        assert len(server.requests) - before <= taken - 4 + 12
    assert sum(len(batch) for batch in iterator) == COUNT - 20


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["break", "close", "end"])
def test_announcements_are_withdrawn(how: str, workers: int, server: RemoteServer) -> None:
    server.files["many.tar"] = tar_bytes(count=400, size=500)
    remote = sources.Tar(server.url("many.tar"), fields=("bin", "cls"))
    server.latency_s = 1  # so that what is announced waits for a thread
    loader = DataLoader(remote, 4, shuffle=True, num_workers=workers, collate_fn=as_list)
    iterator = iter(loader)
    next(iterator)
    assert until(lambda: announced() > 100, PATIENCE_S)
    if how == "end":
        server.latency_s = 0
        assert sum(len(batch) for batch in iterator) == 396
    elif how == "close" and workers:
        iterator._shutdown_workers()
    else:
        del iterator
    assert until(lambda: announced() == 0, PATIENCE_S)
    server.latency_s = 0
    assert as_text(remote[399]) == as_text(sources.Tar([server.url("many.tar")], fields=("bin", "cls"))[399])


def test_fetcher_that_was_killed_is_told_again(server: RemoteServer, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.tar").write_bytes(FILES["a.tar"])
    local, remote = sources.Tar(str(tmp_path / "a.tar"), fields=("bin", "cls")), open_tar(server)
    got, pids = [], set()
    for number, batch in enumerate(DataLoader(remote, 4, num_workers=1, collate_fn=as_list)):
        pids.update(fetchers_of(tmp_path / "remote"))
        if number == 2:
            kill_fetchers(tmp_path / "remote")
            before = len(server.requests)
        got += batch
    assert got == [as_text(local[i]) for i in range(COUNT)]
    assert len(pids) >= 2 and len(server.requests) - before >= COUNT - 24


# ---- step by step ----


class FakeAnnouncer:
    """Keeps what is announced, by position."""

    def __init__(self) -> None:
        self.begins: list[bool | None] = [True]
        self.sends: list[bool] = []
        self.is_kept = False
        self.calls: list[tuple[int, int]] = []
        self.added: list[int] = []
        self.found: list[tuple[int, list[int]]] = []

    def ask(self, indices: list[int], announcer: Any) -> None:
        assert announcer is self
        self.added += indices

    def begin(self) -> bool | None:
        return self.begins.pop(0) if self.begins else False

    def send(self, position: int) -> int:
        added, self.added = self.added, []
        if self.sends and not self.sends.pop(0):
            return -11
        self.found.append((position, added))
        return 0 if self.is_kept else len(added)

    def withdraw(self, read: int, given: int) -> bool:
        self.calls.append((read, given))
        return True

    def samples(self) -> list[int]:
        """Returns all samples, of which each is its position."""
        for position, some in self.found:
            assert some == list(range(position - len(some) + 1, position + 1))
        return [sample for _, some in self.found for sample in some]


def new_announcing() -> tuple[announcing.Announcing, FakeAnnouncer]:
    fake = FakeAnnouncer()
    one = announcing.Announcing(fake)
    one._announcer = fake  # type: ignore[assignment]
    return one, fake


def new_tasks(items: Any, size: int = 4) -> Any:
    tasks = _core.Tasks(items, size)
    tasks.keeps_sent = True
    return tasks


def run(one: announcing.Announcing, tasks: Any, count: int) -> None:
    """Does what an iterator without workers does for so many batches."""
    for _ in range(count):
        tasks.draw()
        one.step(tasks)
        tasks.done()


ALL_WITHDRAWN = (announcing._ALL, announcing._ALL)


def all_withdrawn(drawn: int) -> tuple[int, int]:
    """The call at the begin of a pass of which so many samples were drawn: workers may have read these."""
    return announcing._ALL, drawn


def test_drawn_tasks_of_other_samplers_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    one, fake = new_announcing()
    monkeypatch.setattr("headrace._loader.trainer.engine.announcing_of", lambda dataset: one)
    iterator = iter(DataLoader(Numbers(), 4, sampler=(index for index in range(COUNT)), num_workers=1))
    for taken in range(1, 5):
        next(iterator)
        assert fake.samples() == list(range(4 * (taken + 2)))
    assert fake.calls[0] == all_withdrawn(8)


def test_steps_announce_the_rest_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "time", SimpleNamespace(monotonic=lambda: 0.0))  # the rate is not known
    one, fake = new_announcing()
    tasks = new_tasks(list(range(1000)))
    run(one, tasks, 1)
    assert fake.calls == [all_withdrawn(4)]  # the first batch is read now
    assert fake.samples() == list(range(4, 4 + announcing.LEAST - 4))
    run(one, tasks, 100)
    assert fake.samples() == list(range(4, 400 + announcing.LEAST))
    assert fake.calls[1:] == [(4 * number, 4 * number + 4) for number in range(1, 101)]
    one.end()
    assert fake.calls[-1] == ALL_WITHDRAWN


def test_kept_samples_send_nothing() -> None:
    one, fake = new_announcing()
    fake.is_kept = True
    run(one, new_tasks(list(range(1000))), 250)
    assert fake.samples() == list(range(4, 1000)) and fake.calls == [all_withdrawn(4)]


def test_samples_that_were_not_sent_are_announced_again() -> None:
    one, fake = new_announcing()
    fake.sends = [True, False, False, True, True, False, False, True]
    run(one, new_tasks(list(range(1000))), 200)
    found = fake.samples()
    assert found == list(range(4, 1000)) and not fake.sends


def test_new_connection_gets_all_from_the_delivered_batches_on() -> None:
    one, fake = new_announcing()
    fake.begins = [None, True, False, None, True]
    tasks = new_tasks(list(range(1000)))
    run(one, tasks, 1)
    assert not fake.calls and not fake.found
    run(one, tasks, 1)
    assert fake.calls == [all_withdrawn(8)] and fake.samples()[0] == 8
    run(one, tasks, 2)
    fake.found = []
    run(one, tasks, 1)
    assert fake.calls[-1] == all_withdrawn(20) and fake.samples()[0] == 20


def test_new_pass_withdraws_the_one_before() -> None:
    one, fake = new_announcing()
    run(one, new_tasks(list(range(1000))), 3)
    fake.found = []
    run(one, new_tasks(list(range(1000))), 1)
    assert fake.calls[-1] == all_withdrawn(4) and fake.samples()[0] == 4


def test_next_list_is_announced_when_it_is_drawn() -> None:
    class Lists:
        picks = None

        def at(self, number: int) -> list[int] | None:
            return list(range(32 * number, 32 * number + 32)) if number < 20 else None

    one, fake = new_announcing()
    tasks = _core.Tasks(Lists(), 4, lists=True)
    run(one, tasks, 1)
    assert fake.samples() == list(range(4, 32))
    run(one, tasks, 159)
    missing = set(range(640)) - set(fake.samples())
    assert missing == {32 * number + i for number in range(20) for i in range(4)}  # they are drawn when the list is


def test_error_ends_announcing_with_a_warning() -> None:
    one, fake = new_announcing()
    fake.begin = lambda: (_ for _ in ()).throw(ValueError("why"))  # type: ignore[method-assign]
    tasks = new_tasks(list(range(100)))
    with pytest.warns(UserWarning, match="not announced any more, because of ValueError: why"):
        run(one, tasks, 1)
    run(one, tasks, 1)


def test_rate_is_that_of_the_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(announcing, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    one, fake = new_announcing()
    tasks = new_tasks(list(range(100_000)), 100)
    run(one, tasks, 60)  # 100 samples in half a second: 200 a second
    ahead = fake.samples()[-1] + 1 - 5900
    assert ahead == announcing.AHEAD_S * 200
