# SPDX-License-Identifier: Apache-2.0
"""The option `device`, with a GPU that is simulated (lib/simulated_device.py): no GPU runs here."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import pytest
import torch
from headrace import _core
from headrace.torch._device import choose, sender
from headrace.torch._own import table
from interruptions import Interrupter
from loaders import ENGINE, Headrace, needs_failpoints
from processes import run
from simulated_device import OutOfMemory, Simulated, standing_in

if not ENGINE:
    pytest.skip("torch's loader does not do this", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:headrace. workers are started by fork")

ROWS, WIDE = 64, 20_000  # 80 kB a sample: batches are above HR_BATCH_LARGE_BYTES
Pair = collections.namedtuple("Pair", "first second")


class Wide(torch.utils.data.Dataset[Any]):
    """index -> (a row of that number, the number)."""

    def __init__(self, rows: int = ROWS, wide: int = WIDE) -> None:
        self.rows, self.wide = rows, wide

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.wide,), float(index)), index


class Growing(Wide):
    """Batches that grow from one to the next."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.wide + 20_000 * (index // 4),), float(index)), index


class Many(Wide):
    """Samples of many tensors, of all size classes."""

    def __getitem__(self, index: int) -> Any:
        small = [torch.full((3,), index * 100 + number) for number in range(20)]
        middle = [torch.full((5_000 + number,), float(index + number)) for number in range(4)]
        return {"huge": torch.full((90_000,), float(index)), "small": small, "middle": middle, "n": index}


class Mixed(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int = 8) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index


class Boxed:
    """An object that moves itself."""

    def __init__(self, value: Any, device: Any = "cpu") -> None:
        self.value, self.device = value, device

    def to(self, device: Any) -> Boxed:
        return Boxed(self.value.to(device), device)


def mixed(indices: list[int]) -> Any:
    """Collates to all kinds of parts."""
    wide = torch.full((4, WIDE), float(indices[0]))
    return {
        "plain": wide,
        "tuple": (wide + 1, [wide + 2]),
        "named": Pair(wide + 3, "text"),
        "numpy": (wide + 4).numpy(),
        "boxed": Boxed(wide + 5),
        "ordered": collections.OrderedDict(one=wide + 6),
        "views": [wide[:2], wide[1:]],
        "empty": torch.empty(0, 3),
        "strided": (wide + 7).t(),
        "halves": wide.bfloat16(),
        "flags": wide > 0,
        "none": None,
    }


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    yield from standing_in(monkeypatch)


@pytest.fixture
def flawless(device: Simulated) -> Iterator[Simulated]:
    """The device; at the end, nothing was wrong and nothing is registered."""
    yield device
    gc.collect()
    device.look()
    assert device.faults == []
    assert device.registered == {}


def loader_of(dataset: Any, **options: Any) -> Any:
    options = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "device": "cuda", **options}
    return Headrace(dataset, **options)


def is_there(simulated: Simulated, tensor: Any) -> bool:
    return tensor.untyped_storage().data_ptr() in simulated.blocks


def check(batches: Any, count: int = ROWS // 4, size: int = 4) -> None:
    number = -1
    for number, (rows, indices) in enumerate(batches):
        assert indices.tolist() == list(range(size * number, size * number + size))
        assert rows[:, 0].tolist() == rows[:, -1].tolist() == indices.tolist()
    assert number == count - 1


# ---- batches ----


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_arrive_on_device_complete_and_in_order(flawless: Simulated, prefetch: int) -> None:
    loader = loader_of(Wide(), device_prefetch=prefetch)
    for _ in range(2):
        check(loader)
    batch = next(iter(loader))
    assert all(is_there(flawless, one) for one in batch)
    del batch


def test_each_part_of_a_batch_is_torchs_or_moved(flawless: Simulated) -> None:
    options = {"collate_fn": mixed, "num_workers": 1}
    theirs = list(loader_of(Mixed(), device=None, **options))
    ours = list(loader_of(Mixed(), **options))
    for one, other in zip(theirs, ours, strict=True):
        assert list(one) == list(other)
        for name in ("plain", "empty", "strided", "halves", "flags"):
            assert torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype
            assert one[name].stride() == other[name].stride()
        assert other["named"].second == "text" and type(other["named"]) is Pair
        assert type(other["ordered"]) is collections.OrderedDict
        assert torch.equal(one["boxed"].value, other["boxed"].value) and str(other["boxed"].device) == "cpu"
        assert (one["numpy"] == other["numpy"]).all()
        assert [x.tolist() for x in one["views"]] == [x.tolist() for x in other["views"]]


def test_plain_parts_keep_their_strides_and_are_sent(flawless: Simulated) -> None:
    def collate(indices: list[int]) -> Any:
        whole = mixed(indices)
        names = ("plain", "tuple", "named", "strided", "halves", "flags", "numpy", "none")
        return {name: whole[name] for name in names}

    options = {"collate_fn": collate, "num_workers": 1}
    for one, other in zip(loader_of(Mixed(), device=None, **options), loader_of(Mixed(), **options), strict=True):
        for name in ("plain", "strided", "halves", "flags"):
            assert torch.equal(one[name], other[name]) and one[name].stride() == other[name].stride()
        sent = [other["strided"], other["tuple"][1][0], other["named"].first, other["flags"]]
        assert [is_there(flawless, tensor) for tensor in sent] == [True] * 4


def test_parts_that_are_not_plain_are_moved_by_to(device: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "resolved", lambda given: torch.device("meta"))
    batch = next(iter(loader_of(Mixed(), collate_fn=mixed, num_workers=1)))
    moved = [batch["ordered"]["one"], batch["boxed"].value, *batch["views"], batch["empty"]]
    assert [one.device.type for one in moved] == ["meta"] * 5
    assert type(batch["numpy"]).__name__ == "ndarray"


def test_many_tensors_of_a_batch_are_copied_in_three_pieces(flawless: Simulated) -> None:
    for number, batch in enumerate(loader_of(Many(16))):
        first = 4 * number
        assert batch["n"].tolist() == list(range(first, first + 4))
        assert batch["huge"][:, 0].tolist() == batch["n"].tolist()
        for place, one in enumerate(batch["small"]):
            assert one[:, 0].tolist() == [100 * index + place for index in range(first, first + 4)]
        for place, one in enumerate(batch["middle"]):
            assert one[:, -1].tolist() == [index + place for index in range(first, first + 4)]
    assert len(flawless.copied) == 4 * 3
    huge, small, middle = batch["huge"], batch["small"], batch["middle"]
    assert len({one.untyped_storage().data_ptr() for one in [*small, batch["n"]]}) == 1
    assert len({one.untyped_storage().data_ptr() for one in [huge, small[0], middle[0]]}) == 3


def test_change_of_one_shared_tensor_leaves_backward_of_others(flawless: Simulated) -> None:
    batch = next(iter(loader_of(Many(16))))
    weight = torch.ones(1, requires_grad=True)
    product = weight * batch["middle"][0]
    batch["middle"][1].add_(1)  # views of one tensor would share a counter, and the backward would raise
    product.sum().backward()


def test_bytes_are_read_late_and_slots_are_kept(flawless: Simulated) -> None:
    """The device copies only when it has to, while the workers make the next batches."""
    iterator = iter(loader_of(Wide()))
    kept = []
    for number in range(ROWS // 4):
        flawless.go.clear()
        rows, _ = next(iterator)
        kept.append(rows)
        assert rows[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
    assert [one[0, 0].item() for one in kept] == list(range(0, ROWS, 4))


def test_batches_of_private_memory_and_errors_have_no_lease(flawless: Simulated) -> None:
    """Nothing that the consumer gets is in shared memory."""
    loader = loader_of(Mixed(), collate_fn=mixed, num_workers=1)
    batches = list(loader)
    assert loader.report()["held"] == 0
    with open("/proc/self/maps") as maps:
        shared = [line.split()[0] for line in maps if "memfd:headrace" in line]
    ranges = [tuple(int(one, 16) for one in line.split("-")) for line in shared]
    for batch in batches:
        address = batch["numpy"].__array_interface__["data"][0]
        assert not any(begin <= address < end for begin, end in ranges)


# ---- registering ----


def test_slots_are_registered_at_second_use_one_per_step(flawless: Simulated) -> None:
    iterator = iter(loader_of(Wide(200), num_workers=1))
    counts = []
    for _ in range(50):
        next(iterator)
        counts.append(len(flawless.registered))
    assert counts[0] == 0
    assert all(later - earlier <= 2 for earlier, later in itertools.pairwise(counts))
    assert counts[-1] > 0
    del iterator


def test_next_epoch_registers_nothing_again(flawless: Simulated) -> None:
    loader = loader_of(Wide())
    for _ in range(3):
        check(loader)
    registered = flawless.calls.count("register")
    for _ in range(3):
        check(loader)
    assert flawless.calls.count("register") - registered <= 2
    assert flawless.calls.count("unregister") <= 2


def test_slot_that_grew_is_registered_again(flawless: Simulated) -> None:
    loader = loader_of(Growing(100))
    for _ in range(2):
        for rows, indices in zip(loader, range(0), strict=False):
            del rows, indices
        for number, (rows, indices) in enumerate(loader):
            assert rows[:, -1].tolist() == indices.tolist() == list(range(4 * number, 4 * number + 4))
    assert flawless.calls.count("unregister") > 0


def test_refusal_is_reported_and_batches_are_copied_plainly(flawless: Simulated) -> None:
    flawless.refuses_after = 1
    loader = loader_of(Wide())
    for _ in range(3):
        check(loader)
    report = loader.report()["device"]
    assert report["refusal"] == "out of memory (2)"
    assert report["registered_slots"] == 1
    assert report["plain"] > 0


def test_at_most_a_quarter_of_the_limit_is_registered(flawless: Simulated) -> None:
    limit = 4 << 20
    loader = loader_of(Wide(), arena_limit=limit)
    for _ in range(3):
        check(loader)
        assert sum(flawless.registered.values()) <= limit // 4
    assert loader.report()["device"]["is_full"]


SMALL = pytest.mark.parametrize("limit", [1 << 20, 2 << 20, 3 << 20])


def check_small(flawless: Simulated, limit: int, workers: int) -> Any:
    loader = loader_of(Wide(), arena_limit=limit, num_workers=workers)
    for _ in range(3):
        flawless.go.clear()
        check(loader)
    return loader


@SMALL
def test_small_limits_of_two_workers_lose_nothing(flawless: Simulated, limit: int) -> None:
    """A batch that waits for its turn is copied when the worker whose turn it is finds no room."""
    check_small(flawless, limit, 2)


@SMALL
def test_small_limits_copy_nothing_and_lose_nothing(flawless: Simulated, limit: int) -> None:
    loader = check_small(flawless, limit, 1)
    assert loader.report()["copied"] <= 1  # the first one, before the arena knows that batches are sent


def test_larger_batches_take_memory_of_registered_slots(flawless: Simulated) -> None:
    loader = loader_of(Growing(160), arena_limit=40 << 20, num_workers=1)
    for _ in range(2):
        for number, (rows, indices) in enumerate(loader):
            assert rows[:, -1].tolist() == indices.tolist() == list(range(4 * number, 4 * number + 4))


class Alternating(Wide):
    """Batches of 0.3 MB, and for a while some of 3 MB."""

    def __getitem__(self, index: int) -> Any:
        is_large = index // 4 % 3 == 2 and index < 200
        return torch.full((200_000 if is_large else self.wide,), float(index)), index


class Jumping(Wide):
    """Batches of one size, and then one that needs nearly all memory."""

    def __init__(self, rows: int, jump: int, most: int) -> None:
        super().__init__(rows)
        self.jump, self.most = jump, most

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.most if index // 4 == self.jump else self.wide,), float(index)), index


def test_slot_of_several_windows_is_not_registered(flawless: Simulated) -> None:
    """With a limit on the sizes of files a larger batch takes a run of slots. When it is free, each of them is a slot
    of its own, whose memory is released without a look at the others."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    loader = loader_of(Alternating(400), num_workers=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24 << 20, before[1]))
    try:
        iterator = iter(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    number = -1
    for number, (rows, indices) in enumerate(iterator):
        assert rows[:, -1].tolist() == indices.tolist() == list(range(4 * number, 4 * number + 4))
    report = loader.report()
    assert number == 99 and report["window_bytes"] < 3_000_000 and not report["device"]["is_full"]
    assert flawless.registered and max(flawless.registered.values()) <= report["window_bytes"]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_batch_that_needs_what_is_registered_gets_it(flawless: Simulated, prefetch: int) -> None:
    """It does so too if it is looked for ahead of time, when only the next call of next() can wait for copies, and if
    it is looked for several times before that call, because other batches are ahead."""
    dataset = Jumping(80, 10, 500_000)  # 8 MB of 8 MiB
    options = {"arena_limit": 8 << 20, "num_workers": 1, "prefetch_factor": 4}
    loader = loader_of(dataset, device_prefetch=prefetch, **options)
    for number, (rows, indices) in enumerate(loader):
        assert rows[:, -1].tolist() == indices.tolist() == list(range(4 * number, 4 * number + 4))
        time.sleep(0.05)  # the worker asks for memory meanwhile
    assert number == 19


# ---- faults that the device would not report ----


@needs_failpoints
@pytest.mark.parametrize("dataset", [Wide(), Growing(100)], ids=["wide", "growing"])
def test_device_notices_registered_memory_that_is_lost(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, dataset: Any
) -> None:
    """Without the rule that registered memory keeps its pages, closing an arena punches and unmaps it."""
    monkeypatch.setattr(sender.Registrations, "remove_all", lambda *_, **__: None)
    monkeypatch.setenv("HEADRACE_FAIL", "registered_pages:EIO")
    loader = loader_of(dataset)
    for _ in range(2):
        for _ in loader:
            pass
    del loader
    gc.collect()
    device.look()
    assert "registered memory was punched or unmapped" in device.faults


@needs_failpoints
@pytest.mark.leaves("mappings", "the device may still read from this memory")
def test_mapping_stays_if_it_cannot_be_unregistered(device: Simulated) -> None:
    device.unregister_fails = True
    loader = loader_of(Wide())
    check(loader)
    addresses = list(device.registered)
    assert addresses
    del loader
    gc.collect()
    device.look()
    assert device.faults == []
    with open("/proc/self/maps") as maps:
        ranges = [tuple(int(one, 16) for one in line.split()[0].split("-")) for line in maps]
    assert all(any(begin <= address < end for begin, end in ranges) for address in addresses)


def test_device_notices_a_slot_that_is_used_too_early(device: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait for the event of a copy, a worker writes into the slot that the device reads."""

    def begin(self: sender.Sender) -> None:
        self._copies.clear()

    monkeypatch.setattr(sender.Sender, "begin", begin)
    monkeypatch.setattr(device, "wait", lambda event: device.calls.append("wait_for_consumers"))
    iterator = iter(loader_of(Wide(400)))
    device.go.clear()
    for _ in range(40):
        next(iterator)
    assert device.synchronize(None, None)  # all copies: the iterator does not wait for those that were forgotten
    assert "the bytes of a copy changed before it was done" in device.faults


def test_device_notices_a_copy_across_a_border(device: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender.Sender, "_register", _register_once)
    for _ in loader_of(Growing(100)):
        pass
    assert "a copy crosses the border of registered memory" in device.faults


def _register_once(self: sender.Sender, core: Any) -> bool:
    slot, size, registered, times = core.slot()
    if times > 1 and not registered:
        self.registrations.add(core, slot, size, False)
    return True


def test_device_notices_an_error_left_behind(device: Simulated) -> None:
    device.refuses_after, device.clears_errors = 0, False
    for _ in loader_of(Wide()):
        pass
    assert "an error of the runtime was left behind" in device.faults


# ---- failures ----


def test_batch_without_memory_is_sent_again(flawless: Simulated) -> None:
    loader = loader_of(Wide(), device_prefetch=0)
    iterator = iter(loader)
    first = next(iterator)
    flawless.room = 0
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            next(iterator)
    flawless.room = None
    assert first[1].tolist() == [0, 1, 2, 3]
    assert [indices[0].item() for _, indices in iterator] == list(range(4, ROWS, 4))


def test_short_memory_ends_sending_ahead(flawless: Simulated) -> None:
    loader = loader_of(Wide(), persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    taken: list[Any] = []
    while len(taken) < ROWS // 4 - 1:
        is_noted = loader.report()["device"]["not_ahead"] != ""
        flawless.room = 1 if is_noted else 0
        try:
            taken.append(next(iterator)[1][0].item())
        except OutOfMemory:  # it was not sent ahead; the next one is tried without room
            flawless.room = 1
            taken.append(next(iterator)[1][0].item())
    assert taken == list(range(4, ROWS, 4))
    assert "OutOfMemory" in loader.report()["device"]["not_ahead"]
    flawless.room = None
    check(loader)
    assert loader.report()["device"]["not_ahead"] == ""


def test_next_during_capture_raises_and_loses_nothing(flawless: Simulated) -> None:
    iterator = iter(loader_of(Wide()))
    next(iterator)
    flawless.is_in_capture = True
    with pytest.raises(RuntimeError, match="CUDA graph is being captured"):
        next(iterator)
    flawless.is_in_capture = False
    assert next(iterator)[1].tolist() == [4, 5, 6, 7]
    del iterator


def test_exception_of_dataset_comes_in_its_turn(flawless: Simulated) -> None:
    class Thirteen(Wide):
        def __getitem__(self, index: int) -> Any:
            if index == 13:
                raise ValueError("thirteen", torch.zeros(WIDE))
            return super().__getitem__(index)

    iterator = iter(loader_of(Thirteen()))
    got: list[Any] = []
    while True:
        try:
            got.append(next(iterator)[1][0].item())
        except ValueError as error:
            assert "thirteen" in str(error)
            got.append(None)
        except StopIteration:
            break
    assert got == [0, 4, 8, None, *range(16, ROWS, 4)]


@pytest.mark.parametrize("at", ["allocate", "copy", "record", "wait"])
def test_signal_during_sending_loses_no_batch(flawless: Simulated, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    iterator = iter(loader_of(Wide()))
    next(iterator)
    original = getattr(flawless, at)

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(flawless, at, original)
        raise KeyboardInterrupt

    for _ in range(3):
        monkeypatch.setattr(flawless, at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            while True:
                next(iterator)
        break
    left = [indices[0].item() for _, indices in iterator]
    assert left == list(range(left[0], ROWS, 4)) and left[0] <= 12
    assert flawless.faults == []


@pytest.mark.parametrize("in_order", [True, False])
def test_interrupted_next_loses_no_batch(flawless: Simulated, in_order: bool) -> None:
    """A signal's handler raises at each place of next(), one after the other."""
    loader = loader_of(Mixed(1400), batch_size=2, in_order=in_order, collate_fn=torch.tensor)
    with Interrupter(step=3) as interrupter:
        got = [int(one) for batch in interrupter.all_of(iter(loader)) for one in batch]
    assert (got if in_order else sorted(got)) == list(range(1400))
    assert interrupter.rounds > 0


def test_device_that_loses_events_ends_by_a_deadline(device: Simulated) -> None:
    loader = loader_of(Wide(), shutdown_timeout=1.0)
    iterator = iter(loader)
    next(iterator)
    device.loses_events = True
    device.synchronize = lambda event, timeout: False  # type: ignore[method-assign]
    next(iterator)
    del iterator
    gc.collect()
    device.look()
    assert device.faults == []
    with open("/proc/self/maps") as maps:
        assert "memfd:headrace" in maps.read()  # what may still be read stays mapped


@pytest.mark.parametrize("call", ["query", "synchronize", "unregister", "record"])
def test_end_of_a_broken_device_is_quiet(device: Simulated, call: str) -> None:
    """After an illegal access of a kernel, each call of CUDA raises. The workers end, and what was registered stays."""
    loader = loader_of(Wide(), shutdown_timeout=2.0)
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)

    def fails(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    setattr(device, call, fails)
    workers = list(iterator._workers)
    iterator._shutdown_workers()
    assert not any(one.is_alive() for one in workers)
    del iterator, loader
    gc.collect()
    device.look()
    assert device.faults == []


# ---- the consumer ----


def test_state_counts_batches_that_the_consumer_has(flawless: Simulated) -> None:
    loader = loader_of(Wide(), device_prefetch=3)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    other = loader_of(Wide(), device_prefetch=3)
    other.load_state_dict(state)
    assert [indices[0].item() for _, indices in other] == list(range(20, ROWS, 4))
    del iterator


def test_indices_are_drawn_when_a_batch_is_delivered(flawless: Simulated) -> None:
    drawn: list[int] = []

    class Sampler:
        def __iter__(self) -> Any:
            for index in range(12):
                drawn.append(index)
                yield index

    iterator = iter(loader_of(Wide(12), sampler=Sampler(), batch_size=1, num_workers=1))
    for delivered in range(1, 11):
        next(iterator)
        assert len(drawn) == min(12, 2 + delivered)
    del iterator


def test_broken_epoch_leaves_nothing_to_the_next(flawless: Simulated) -> None:
    loader = loader_of(Wide(), persistent_workers=True)
    for taken in range(5):
        for number, (_, indices) in enumerate(loader):
            assert indices.tolist() == list(range(4 * number, 4 * number + 4))
            if number == taken:
                break
    check(loader)


def test_kept_batches_stay_as_they_are(flawless: Simulated) -> None:
    batches = list(loader_of(Wide()))
    gc.collect()
    check(batches)


def test_two_loaders_take_turns(flawless: Simulated) -> None:
    pairs = zip(loader_of(Wide()), loader_of(Wide()), strict=True)
    for number, (one, other) in enumerate(pairs):
        assert one[1].tolist() == other[1].tolist() == list(range(4 * number, 4 * number + 4))


def test_replaced_worker_loses_no_batch(flawless: Simulated) -> None:
    loader = loader_of(Wide(), max_restarts=1)
    iterator = iter(loader)
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="headrace replaces it"):
        assert [indices[0].item() for _, indices in iterator] == list(range(4, ROWS, 4))


def test_forked_child_makes_no_call_and_keeps_no_slot(flawless: Simulated) -> None:
    iterator = iter(loader_of(Wide(400)))
    for _ in range(20):
        next(iterator)
    flawless.go.clear()
    next(iterator)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = len(flawless.calls)
            try:
                next(iterator)
                text = "a batch"
            except RuntimeError as error:
                text = str(error)
            del iterator
            gc.collect()
            os.write(writer, pickle.dumps((text, len(flawless.calls) - before)))
        finally:
            os._exit(0)
    text, calls = pickle.loads(os.read(reader, 10_000))
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    assert "belongs to the process that forked" in text and calls == 0
    flawless.go.set()
    for _ in range(40):
        next(iterator)
    del iterator


def test_inference_mode_sends_nothing_ahead(flawless: Simulated) -> None:
    loader = loader_of(Wide())
    iterator = iter(loader)
    with torch.inference_mode():
        next(iterator)
    assert not torch.is_inference(next(iterator)[0])
    del iterator


def test_iterator_ends_its_copies_in_another_thread(flawless: Simulated) -> None:
    iterators = [iter(loader_of(Wide()))]
    next(iterators[0])
    thread = threading.Thread(target=iterators.clear)
    thread.start()
    thread.join(50)
    assert not thread.is_alive()


def test_other_methods_of_starting_workers(flawless: Simulated) -> None:
    check(loader_of(Wide(), multiprocessing_context="forkserver"))


# ---- options ----


@pytest.mark.parametrize("given", [None, "cpu", torch.device("cpu")])
def test_cpu_means_off(given: Any) -> None:
    loader = loader_of(Wide(), device=given)
    check(loader)
    assert "device" not in loader.report()


def test_other_devices_are_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"does not copy batches to mps.*batch\.to\('mps'\)"):
        loader_of(Wide(), device="mps")
    with pytest.raises(RuntimeError, match="cudda"):
        loader_of(Wide(), device="cudda")
    with pytest.raises(TypeError, match="device should be"):
        loader_of(Wide(), device=1.5)
    for wrong, error in [(-1, ValueError), (1.5, TypeError)]:
        with pytest.raises(error, match="device_prefetch should"):
            loader_of(Wide(), device=None, device_prefetch=wrong)
    with pytest.raises(ValueError, match="device is an option of one loader"):
        headrace.torch.install(device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_without_cuda_the_exception_is_torchs(workers: int) -> None:
    context = {"multiprocessing_context": "fork"} if workers else {"multiprocessing_context": None}
    loader = loader_of(Wide(), num_workers=workers, **context)
    with pytest.raises((AssertionError, RuntimeError)) as ours:
        iter(loader)
    with pytest.raises((AssertionError, RuntimeError)) as theirs:
        torch.zeros(1, device="cuda")
    assert str(ours.value) == str(theirs.value)


def test_loader_without_workers_moves_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "resolved", lambda given: torch.device("meta"))
    loader = loader_of(Wide(), num_workers=0, multiprocessing_context=None)
    assert [[one.device.type for one in batch] for batch in loader] == [["meta", "meta"]] * (ROWS // 4)


def test_torchs_iterators_move_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context whose processes are not multiprocessing's gets torch's workers."""
    from headrace.torch._loader import choose as iterator_choice

    monkeypatch.setattr(choose, "resolved", lambda given: torch.device("meta"))
    monkeypatch.setattr(iterator_choice, "why_torchs", lambda loader: "a test")
    loader = loader_of(Wide(), persistent_workers=True)
    for _ in range(2):
        assert {one.device.type for batch in loader for one in batch} == {"meta"}


FALLBACK = """
import warnings

import torch

warnings.simplefilter("ignore")
from headrace.torch import DataLoader
from headrace.torch._device import choose

assert DataLoader.__module__.endswith("fallback"), DataLoader.__module__
choose.resolved = lambda given: torch.device("meta")
for options in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
    loader = DataLoader(range(8), 4, device="cuda", device_prefetch=2, **options)
    for _ in range(2):
        print([batch.device.type for batch in loader])
loader = DataLoader(range(8), 4, device="cpu")
print([batch.device.type for batch in loader])
try:
    DataLoader(range(8), device="mps")
except ValueError as error:
    print(error)
"""


def test_torchs_loader_moves_batches_if_the_engine_is_off(tmp_path: Any) -> None:
    lines = run(tmp_path, FALLBACK, HEADRACE_DISABLE="1").splitlines()
    assert lines[:7] == ["['meta', 'meta']"] * 6 + ["['cpu', 'cpu']"]
    assert "does not copy batches to mps" in lines[7]


def test_pin_memory_is_ignored_with_device(flawless: Simulated, pinned: dict[int, str]) -> None:
    check(loader_of(Wide(), pin_memory=True))
    assert pinned == {}


def test_numpy_loader_refuses_device() -> None:
    with pytest.raises(ValueError, match="device should be None"):
        headrace.Loader([1], device="cuda")


def test_loader_keeps_its_arena_no_longer_than_itself(flawless: Simulated) -> None:
    loader = loader_of(Wide())
    check(loader)
    assert table.kept(loader).arena is not None
    lost = _core.guard_lost()
    del loader
    gc.collect()
    assert flawless.registered == {} and _core.guard_lost() == lost


def test_doctor_explains_a_refusal(flawless: Simulated) -> None:
    from headrace.doctor.run.device import check_device

    flawless.refuses_after = 0
    loader = loader_of(Wide())
    check(loader)
    (refused,) = check_device(loader.report())
    assert refused.severity == "warning" and "memlock" in refused.fix
    assert check_device({}) == []
