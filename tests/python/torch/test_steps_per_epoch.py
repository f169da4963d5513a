# SPDX-License-Identifier: Apache-2.0
"""Epochs of so many steps: the steps of all epochs together are the passes over the sampler, one after the other."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import headrace
import headrace.torch
import pytest
import torch
from drawn_orders import (
    KINDS,
    SHUFFLES,
    WRAPPERS,
    is_refused,
    make_loader,
    seed_all,
    set_shared_states,
    shared_states,
)
from headrace.sampling import _windows
from headrace.sampling._state import StateError, decode
from headrace.torch import DataLoader, DistributedSampler, per_rank
from headrace.torch._loader.fallback import DataLoader as Fallback
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from processes import Script
from resumed import MAKERS, Counting, N, Noisy, Numbers, Stateless, plain

pytestmark = pytest.mark.filterwarnings("ignore:headrace")
EXAMPLES = settings(
    max_examples=int(os.environ.get("HEADRACE_EXAMPLES", 100)),
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
PASSES = 5  # so many are compared
TAKEN = 14  # steps of them, where the passes are short


class Case(NamedTuple):
    """A training. steps: of an epoch. left: an odd epoch is left after so many steps; 0: never."""

    kind: str
    shuffle: str
    wrapper: str
    steps: int
    left: int = 0

    @property
    def has_no_equal(self) -> bool:
        """Returns True if there is no such loader, or if no two trainings with it are equal."""
        return self.shuffle == "operating system" or is_refused(*self[:3])

    def loader(self, **options: Any) -> Any:
        return make_loader(*self[:3], 1, 0, 4, **options)


CASES = st.builds(
    Case,
    kind=st.sampled_from(KINDS),
    shuffle=st.sampled_from(list(SHUFFLES)),
    wrapper=st.sampled_from(WRAPPERS),
    steps=st.integers(1, 18),
    left=st.one_of(st.just(0), st.integers(1, 9)),
).filter(lambda case: not case.has_no_equal)


def _passes(loader: Any) -> list[Any]:
    """Returns the batches of the passes, each of which is an epoch of a loader without the option."""
    found = []
    for number in range(PASSES):
        loader.set_epoch(number)
        found += [plain(batch) for batch in loader]
    return found


def _epoch(case: Case, loader: Any, epoch: int, due: int) -> Iterator[Any]:
    """Yields the batches of an epoch that has `due` steps left. Checks what the loader says."""
    first = case.steps - due
    assert len(loader) == case.steps
    for count, batch in enumerate(loader, start=1):
        assert loader.last[:2] == (epoch, first + count - 1) and loader.steps_left == due - count
        yield plain(batch)
        if epoch % 2 and count == case.left:
            return
    assert loader.steps_left == 0 and loader.last.step == case.steps - 1


def _run(case: Case, loader: Any, first: int, count: int) -> Iterator[tuple[int, Any]]:
    """Yields up to `count` batches, each with its epoch."""
    due = itertools.chain([loader.steps_left], itertools.repeat(case.steps))
    epochs = zip(itertools.count(first), due, strict=False)
    numbered = ((epoch, batch) for epoch, left in epochs for batch in _epoch(case, loader, epoch, left))
    return itertools.islice(numbered, count)


def _whole(case: Case) -> list[Any]:
    seed_all(5)
    return _passes(case.loader())


def _check_stream(case: Case, takes: bool) -> None:
    whole = _whole(case)
    seed_all(5)
    loader = case.loader(steps_per_epoch=case.steps)
    seen = []
    for _, batch in _run(case, loader, 0, len(whole)):
        seen.append(batch)
        if takes:
            loader.state_dict()
    assert seen == whole


@given(case=CASES, takes=st.booleans())
@EXAMPLES
def test_epochs_together_are_the_passes(case: Case, takes: bool) -> None:
    """This holds with states that are taken at each step, and if an epoch is left early."""
    _check_stream(case, takes)


def _check_resume(case: Case, stop: int) -> None:
    whole = _whole(case)
    stop %= len(whole)
    seed_all(5)
    loader = case.loader(steps_per_epoch=case.steps)
    seen = list(_run(case, loader, 0, stop))
    state, numbers = loader.state_dict(), shared_states()
    seed_all(6)  # a new process
    loader = case.loader(steps_per_epoch=case.steps)
    set_shared_states(numbers)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    epoch = _epoch_of(state)
    assert not seen or epoch == seen[-1][0] + (loader.steps_left == case.steps)
    rest = list(_run(case._replace(left=0), loader, epoch, len(whole) - stop))
    assert [batch for _, batch in seen + rest] == whole


def _epoch_of(state: dict[str, str]) -> int:
    return decode(state).window["epoch"]


@given(case=CASES, stop=st.integers(0, 500))
@EXAMPLES
def test_resumed_stream_is_the_whole_one(case: Case, stop: int) -> None:
    """A checkpoint has the shared random numbers too. Samplers that cannot be put back are not compared."""
    if case.kind not in ("Counting", "ShuffledInPlace"):
        _check_resume(case, stop)


# ---- workers, headrace.Loader, the fallback, iterable datasets ----

KINDS_OF_LOADERS: dict[str, Callable[..., Any]] = {
    "Loader": lambda **o: headrace.Loader(Numbers(), 4, True, seed=3, **o),
    "Loader, order": lambda **o: headrace.Loader(Numbers(), 4, sampler=headrace.Order(N, seed=4), **o),
    "Loader, iterable": lambda **o: headrace.Loader(Counting(), 4, **o),
    "iterable": lambda **o: DataLoader(Counting(), 4, **o),
    "iterable without a state": lambda **o: DataLoader(Stateless(), 4, **o),
    "fallback": lambda **o: Fallback(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 1), **o),
    "fallback, iterable": lambda **o: Fallback(Stateless(), 4, **o),
    **{
        name: MAKERS[name]
        for name in ("shuffle, generator", "torch's distributed", "per_rank", "plan", "own generator")
    },
}
LOADERS = pytest.mark.parametrize("make", KINDS_OF_LOADERS.values(), ids=list(KINDS_OF_LOADERS))
# Workers before and after a resume, and whether they persist. An iterable dataset needs the same number.
WORKERS = [(0, 0, False), (2, 2, True), (2, 0, False), (0, 2, False)]


def _options(workers: int, is_persistent: bool = False) -> dict[str, Any]:
    context = "fork" if workers else None
    return {"num_workers": workers, "multiprocessing_context": context, "persistent_workers": is_persistent}


def _take(loader: Any, count: int, sizes: list[int]) -> list[Any]:
    """Returns so many batches of epochs, and notes the epochs' sizes."""
    found: list[Any] = []
    while len(found) < count:
        batches = [plain(batch) for batch in itertools.islice(loader, count - len(found))]
        found += batches
        sizes.append(len(batches))
    return found


@pytest.mark.parametrize(("workers", "then", "is_persistent"), WORKERS)
@LOADERS
def test_stream_goes_on_with_workers(make: Any, workers: int, then: int, is_persistent: bool) -> None:
    if isinstance(make().dataset, (Counting, Stateless)):
        then = workers
    options, steps = _options(workers, is_persistent), 4
    loader = make(**options)
    whole = _passes(loader)[:TAKEN]
    assert len(whole) == TAKEN
    for stop in (9, 12) if workers or then else range(13):  # 12 also ends a pass of 3 or 6
        sizes: list[int] = []
        loader = make(steps_per_epoch=steps, **options)
        seen = _take(loader, stop, sizes)
        state = loader.state_dict()
        loader = make(steps_per_epoch=steps, **_options(then, is_persistent))
        loader.load_state_dict(state)
        assert loader.state_dict() == state and len(loader) == steps
        assert loader.steps_left == (4 - stop) % 4 or 4
        seen += _take(loader, min(loader.steps_left, TAKEN - stop), [])
        seen += _take(loader, TAKEN - len(seen), [])
        assert seen == whole and set(sizes[:-1]) <= {steps}


def test_pass_and_epoch_that_end_together_go_on() -> None:
    loader = MAKERS["order"](steps_per_epoch=6)  # a pass has six steps
    assert [plain(batch) for _ in range(3) for batch in loader] == _passes(MAKERS["order"]())[:18]
    other = MAKERS["order"](steps_per_epoch=6)
    other.load_state_dict(loader.state_dict())
    assert (other.steps_left, decode(other.state_dict()).window["epoch"], decode(other.state_dict()).epoch) == (6, 3, 3)
    assert [plain(batch) for batch in other] == [plain(batch) for batch in loader]


def test_epoch_may_have_more_steps_than_a_pass() -> None:
    loader = MAKERS["order"](steps_per_epoch=20)
    assert [plain(batch) for batch in loader] == _passes(MAKERS["order"]())[:20]


# ---- random numbers, weights, batches that are held back ----


def _noisy(**options: Any) -> Any:
    sampler = [index % 7 for index in range(N)]  # each index comes several times
    return DataLoader(Noisy(), 4, sampler=sampler, rng="sample", seed=5, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_an_index_are_counted_in_each_pass(workers: int) -> None:
    whole = _passes(_noisy())
    assert len({str(batch) for batch in whole}) == len(whole)
    loader = _noisy(steps_per_epoch=4, **_options(workers))
    seen = _take(loader, 9, [])
    other = _noisy(steps_per_epoch=4)
    other.load_state_dict(loader.state_dict())
    assert seen + _take(other, 3, []) + _take(other, 8, []) == whole[:20]


def test_weights_are_those_of_the_passes() -> None:
    def make(**options: Any) -> Any:  # the other rank has one sample more
        sampler = per_rank(range(9), num_replicas=2, rank=1, tail="exact")
        return DataLoader(Numbers(9), 4, sampler=sampler, **options)

    loader, expected = make(), []
    for number in range(5):
        loader.set_epoch(number)
        expected += [loader.last.weights.tolist() for _ in loader]
    assert any(0 in weights for weights in expected)
    loader, found = make(steps_per_epoch=5), []
    for epoch in range(2):
        for step, _ in enumerate(loader):
            assert loader.last[:2] == (epoch, step)
            found.append(loader.last.weights.tolist())
    assert found == expected[:10]


@pytest.mark.parametrize("steps", [4, 6])
def test_batch_that_is_held_back_comes_again(steps: int) -> None:
    make = MAKERS["order"]
    whole = _passes(make())
    for stop in range(1, 14):
        loader = make(steps_per_epoch=steps, held_back=1)
        _take(loader, stop, [])
        at_end = stop % steps == 0
        other = make(steps_per_epoch=steps)
        other.load_state_dict(loader.state_dict())  # before StopIteration
        assert other.steps_left == steps - (stop - 1) % steps
        assert plain(next(iter(other))) == whole[stop - 1]
        if at_end:
            loader = make(steps_per_epoch=steps, held_back=1)
            assert len([batch for _ in range(stop // steps) for batch in loader]) == stop
            other.load_state_dict(loader.state_dict())
            assert plain(next(iter(other))) == whole[stop]


def test_example_of_the_docs_is_two_passes_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    text = (pathlib.Path(__file__).parents[3] / "docs" / "sampling.md").read_text()
    _, _, section = text.partition("## Epochs of so many steps")
    exec(section.split("```python")[1].split("```")[0], {})
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [(int(epoch), int(step)) for epoch, step, _ in lines] == [(e, s) for e in range(4) for s in range(3)]
    indices = [index for *_, batch in lines for index in json.loads(batch)]
    assert sorted(indices[:10]) == sorted(indices[10:20]) == list(range(10)) and indices[:10] != indices[10:20]


# ---- leaving, skipping, several iterators, copies ----


def test_epoch_that_is_left_is_ended() -> None:
    """The next one begins with the step that comes next, and has all of its steps."""
    loader, seen, sizes = MAKERS["order"](steps_per_epoch=4), [], []
    for epoch in range(4):
        for step, batch in enumerate(loader):
            assert loader.last.epoch == epoch
            seen.append(plain(batch))
            if epoch == 1 and step == 1:
                break
        sizes.append(step + 1)
    assert sizes == [4, 2, 4, 4] and seen == _passes(MAKERS["order"]())[:14]


@pytest.mark.parametrize("name", ["shuffle, generator", "Loader"])
def test_state_of_an_epoch_that_was_left_goes_on(name: str) -> None:
    make = {**MAKERS, **KINDS_OF_LOADERS}[name]
    whole = _passes(make())
    loader = make(steps_per_epoch=4)
    _take(loader, 7, [])
    state = loader.state_dict()
    for epoch, steps in ((1, 1), (2, 4)):
        other = make(steps_per_epoch=4)
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert [plain(batch) for batch in other] == whole[7 : 7 + steps] and other.last.epoch == epoch


def test_iterator_that_is_not_used_ends_no_epoch() -> None:
    loader = MAKERS["order"](steps_per_epoch=4)
    iter(loader), iter(loader)
    assert [plain(batch) for batch in loader] == _passes(MAKERS["order"]())[:4] and loader.last.epoch == 0


@pytest.mark.parametrize("make", [MAKERS["order"], KINDS_OF_LOADERS["Loader"]])
def test_iterator_that_was_left_raises(make: Any) -> None:
    loader = make(steps_per_epoch=4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(RuntimeError, match="only the newest iterator goes on"):
        next(first)
    assert len(list(second)) == 4 and list(second) == []
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="went to another place"):
        next(first)


@pytest.mark.parametrize("make", [MAKERS["order"], KINDS_OF_LOADERS["Loader"]])
def test_copy_begins_where_the_loader_would(make: Any) -> None:
    whole = _passes(make())
    loader = make(steps_per_epoch=4)
    _take(loader, 6, [])
    state = loader.state_dict()
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert _take(other, 8, []) == whole[:8]
    loader.load_state_dict(state)
    iter(loader)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.state_dict() == state
        assert _take(other, 2, []) + _take(other, 4, []) == whole[6:12]


@pytest.mark.parametrize("kind", [DataLoader, headrace.Loader])
def test_batches_out_of_order_come_once(kind: Any) -> None:
    """A state has the batches of the pass that were overtaken; they come first then."""
    for stop in (3, 4, 6, 7):  # a pass has six steps
        loader = kind(Numbers(), 4, in_order=False, steps_per_epoch=4, **_options(2))
        seen = _take(loader, stop, [])
        state = loader.state_dict()
        loader = kind(Numbers(), 4, steps_per_epoch=4)
        loader.load_state_dict(state)
        seen += _take(loader, min(loader.steps_left, 12 - stop), [])
        seen += _take(loader, 12 - len(seen), [])
        assert sorted(index for batch in seen for index in batch) == sorted([*range(N)] * 2)


@pytest.mark.parametrize("make", [MAKERS["order"], KINDS_OF_LOADERS["Loader"]])
def test_skip_goes_on_in_the_stream(make: Any) -> None:
    whole = _passes(make())
    for taken, skipped in ((0, 3), (0, 4), (4, 3), (5, 4), (11, 2), (11, 4)):
        loader = make(steps_per_epoch=4)
        _take(loader, taken, [])
        loader.skip(skipped)
        left = 4 - skipped
        assert loader.steps_left == left
        assert [plain(batch) for batch in loader] == whole[taken + skipped : taken + 4]
        assert [plain(batch) for batch in loader] == whole[taken + 4 : taken + 8]
    with pytest.raises(ValueError, match="4 steps are left"):
        loader.skip(5)


@pytest.mark.parametrize("make", [MAKERS["order"], MAKERS["distributed"], KINDS_OF_LOADERS["Loader"]])
def test_set_epoch_goes_to_the_place_of_an_epoch(make: Any) -> None:
    whole = _passes(make())
    loader = make(steps_per_epoch=3)
    for epoch in (0, 1, 3, 2, 2, 0):
        loader.set_epoch(epoch)
        assert [plain(batch) for batch in loader] == whole[3 * epoch : 3 * epoch + 3] and loader.last.epoch == epoch


def test_loop_that_counts_epochs_and_is_resumed_goes_on() -> None:
    """Frameworks do so: they count epochs and batches, call set_epoch of the loader and of its sampler, look at the
    length, and limit the batches of an epoch."""
    whole = _passes(MAKERS["distributed"]())

    def train(loader: Any, first: int, until: int) -> list[Any]:
        seen: list[Any] = []
        for epoch in range(first, 9):
            loader.set_epoch(epoch)
            loader.sampler.set_epoch(epoch)
            iterator = iter(loader)
            loader.sampler.set_epoch(epoch)
            for _ in range(loader.steps_left):
                seen.append(plain(next(iterator)))
                assert loader.last[:2] == (epoch, len(loader) - loader.steps_left - 1)
                if len(seen) == until:
                    return seen
        return seen

    for stop in (1, 2, 3, 6, 7):
        loader = MAKERS["distributed"](steps_per_epoch=2)
        seen = train(loader, 0, stop)
        state = loader.state_dict()
        loader = MAKERS["distributed"](steps_per_epoch=2)
        loader.load_state_dict(state)
        assert seen + train(loader, decode(state).window["epoch"], 12 - stop) == whole[:12]


# ---- other ranks ----


def _ranks(world: int, batch: int, **options: Any) -> list[Any]:
    return [
        DataLoader(Numbers(24), batch, sampler=DistributedSampler(Numbers(24), world, rank, seed=2), **options)
        for rank in range(world)
    ]


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_pass_continued_by_other_ranks_has_each_sample_once(stop: int) -> None:
    """The first pass is divided again; the number of steps of each epoch stays the same."""
    ranks = _ranks(2, 2, steps_per_epoch=4)
    seen = [sample for loader in ranks for batch in _take(loader, stop, []) for sample in batch]
    state = ranks[0].state_dict()
    left = 24 - 4 * stop
    for loader in _ranks(4, 1, steps_per_epoch=4):
        loader.load_state_dict(state)
        assert loader.steps_left == 4 - stop % 4 and len(loader) == 4
        first = loader.steps_left
        batches = _take(loader, first, [])
        batches += _take(loader, max(0, left // 4 - first), [])
        seen += [sample for batch in batches[: left // 4] for sample in batch]
    assert sorted(seen) == list(range(24))


# ---- what is refused ----


def _refused(message: str, call: Callable[[], Any], kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("make", [MAKERS["order"], KINDS_OF_LOADERS["Loader"]])
def test_numbers_of_steps_that_cannot_be_are_refused(make: Any) -> None:
    _refused("at least 1", lambda: make(steps_per_epoch=0))
    _refused("steps_per_epoch", lambda: make(steps_per_epoch="3"), TypeError)
    _refused("held_back=1 or less", lambda: make(steps_per_epoch=3, held_back=2))
    _refused("not for install", lambda: headrace.torch.install(steps_per_epoch=3))


def test_iterable_dataset_is_not_skipped_or_held_back() -> None:
    for kind in (DataLoader, headrace.Loader, Fallback):
        loader = kind(Counting(), 4, steps_per_epoch=3)
        _refused("load a state instead", lambda loader=loader: loader.skip(1))
        _refused("the iterable|an iterable dataset", lambda loader=loader: loader.set_epoch(4))
        _refused("held_back=0", lambda kind=kind: kind(Counting(), 4, steps_per_epoch=3, held_back=1))
        assert len(list(loader)) == len(loader) == 3


@pytest.mark.parametrize("make", [MAKERS["order"], KINDS_OF_LOADERS["Loader"]])
def test_state_of_another_kind_of_epochs_is_refused(make: Any) -> None:
    with_steps, without = make(steps_per_epoch=6), make()
    _take(with_steps, 5, []), _take(without, 5, [])
    _refused("this loader has none", lambda: without.load_state_dict(with_steps.state_dict()), StateError)
    _refused("without steps_per_epoch", lambda: with_steps.load_state_dict(without.state_dict()), StateError)
    smaller = make(steps_per_epoch=5)
    _refused("give it more than 5", lambda: smaller.load_state_dict(with_steps.state_dict()), StateError)
    larger = make(steps_per_epoch=9)
    larger.load_state_dict(with_steps.state_dict())
    assert larger.steps_left == 4


def test_orders_that_are_not_known_before_are_not_gone_to() -> None:
    loader = MAKERS["shuffle, generator"](steps_per_epoch=4)
    loader.set_epoch(0)
    _take(loader, 5, [])
    loader.set_epoch(2)
    _refused("the RandomSampler", lambda: loader.set_epoch(7))
    _refused("the Plan", lambda: MAKERS["plan"](steps_per_epoch=4).set_epoch(1))
    _refused(r"skip\(4\) would go to another pass", lambda: loader.skip(4))
    assert _take(loader, 4, []) == _passes(MAKERS["shuffle, generator"]())[5:9]


@pytest.mark.parametrize("kind", [DataLoader, Fallback, headrace.Loader])
def test_sampler_that_gives_nothing_raises(kind: Any) -> None:
    loader = kind(Numbers(), 4, sampler=iter(range(8)), steps_per_epoch=3)
    with pytest.raises(RuntimeError, match="after 2 steps of epoch 0 gives no batch"):
        list(loader)


@pytest.mark.parametrize("kind", [DataLoader, Fallback])
def test_accelerate_does_not_get_such_a_loader(kind: Any) -> None:
    assert not kind(Numbers())._is_accelerate_prepared
    loader = kind(Numbers(), steps_per_epoch=3)
    _refused("without steps_per_epoch=3", lambda: loader._is_accelerate_prepared, RuntimeError)


# ---- the parts ----


def test_discarded_state_is_warned_of() -> None:
    loader = MAKERS["order"](steps_per_epoch=4)
    _take(loader, 6, [])
    loader.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match=r"set_epoch\(5\) discards the state .*, of epoch 1 after 2 steps"):
        loader.set_epoch(5)


@pytest.mark.parametrize("kind", [DataLoader, Fallback, headrace.Loader])
def test_workers_that_were_ended_are_begun_again(kind: Any) -> None:
    """Lightning ends workers that persist after a training."""
    loader = kind(Numbers(), 4, steps_per_epoch=4, **_options(2, is_persistent=True))
    seen = _take(loader, 5, [])
    end = "close" if kind is headrace.Loader else "_shutdown_workers"
    getattr(loader._iterator, end)()
    assert seen + _take(loader, 7, []) == _passes(kind(Numbers(), 4))[:12]


class Interrupts(_windows._Mark):
    """The first call is interrupted, as by Ctrl-C."""

    count = 0

    def end(self) -> object:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt
        return super().end()


class InterruptsIter:
    """An iterator of a pass, whose __iter__ is interrupted if it is not called when the pass begins."""

    has_begun = False

    def __iter__(self) -> InterruptsIter:
        if self.has_begun:
            raise KeyboardInterrupt
        self.has_begun = True
        return self

    def __next__(self) -> int:
        raise StopIteration


def test_interrupted_end_of_a_pass_is_done_again() -> None:
    mark = Interrupts()
    batches = _windows._marked(InterruptsIter(), mark)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert not mark.is_over and next(batches, None) is None and mark.is_over


def test_loader_that_is_gone_has_no_workers() -> None:
    loader = MAKERS["order"](steps_per_epoch=4, **_options(2))
    iterator = iter(loader)
    next(iterator)
    workers = torch.multiprocessing.active_children()  # type: ignore[attr-defined]
    assert len(workers) >= 2
    del iterator, loader
    assert not any(worker.is_alive() for worker in workers)


DIES = """
import os, pathlib, sys, time
import headrace, torch
from headrace.torch import DataLoader
from headrace.torch._loader.fallback import DataLoader as Fallback

class DiesOnce(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 9 and not flag.exists():
            flag.touch()
            time.sleep(0.2)  # the trainer waits for this batch
            os._exit(3)
        return index

flag, seen, errors = pathlib.Path(sys.argv[0]).parent / "died", [], 0
kind = {"engine": DataLoader, "fallback": Fallback, "numpy": headrace.Loader}[NAME]
loader = kind(DiesOnce(), 2, num_workers=2, max_restarts=0, multiprocessing_context="fork", steps_per_epoch=4)
while len(seen) < 12:
    try:
        for batch in loader:
            seen.append(batch.tolist())
    except RuntimeError:
        errors += 1
print(errors, seen[:12])
"""


@pytest.mark.parametrize("name", ["engine", "fallback", "numpy"])
def test_pass_goes_on_after_a_worker_died(name: str, tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, f"NAME = {name!r}\n{DIES}") as script:
        assert script.finish(100) == 0, script.stderr
        assert script.stdout.split(" ", 1) == ["1", f"{[[i, i + 1] for i in range(0, 24, 2)]}\n"]


def test_iterator_is_not_copied() -> None:
    with pytest.raises(NotImplementedError, match=r"cannot be copied"):
        copy.copy(iter(DataLoader(list(range(4)), steps_per_epoch=3)))  # type: ignore[arg-type]


class OwnGetstate(DataLoader[Any]):
    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_copy_of_a_class_with_its_own_getstate_has_windows() -> None:
    loader = OwnGetstate(list(range(10)), 2, steps_per_epoch=3)  # type: ignore[arg-type]
    assert len(copy.copy(loader)) == 3
