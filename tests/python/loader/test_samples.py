# SPDX-License-Identifier: Apache-2.0
"""Random numbers by sample, and samples that cannot be made or that kill their worker."""

from __future__ import annotations

import itertools
import os
import random
import re
from typing import Any

import headrace
import headrace.torch
import mishaps
import numpy as np
import pytest
import torch
import torch.utils.data
from disturbed import BOTH, COUNT, DATASETS, HERE, SLOW_METHODS, as_sum, load, pids, undisturbed
from loaders import needs_failpoints, only_headrace
from mishaps import Bad, Marks, Numbers, Plan, Random, collected_warnings, epoch, kill

pytestmark = only_headrace


# ---- random numbers by sample ----


def numbers(kind: Any, marks: Marks, events: dict[int, list[str]] | None = None, **options: Any) -> Any:
    return load(kind, Random(COUNT, Plan(marks, events or {})), rng="sample", **{"seed": 5, **options})


@BOTH
@pytest.mark.parametrize("batch_size", [3, None])
def test_random_numbers_are_equal_for_any_workers_and_deaths(kind: Any, batch_size: int | None, marks: Marks) -> None:
    expected = epoch(numbers(kind, marks, num_workers=1, batch_size=batch_size))
    for options in ({"num_workers": 2}, {"num_workers": 3}, HERE):
        assert epoch(numbers(kind, marks, batch_size=batch_size, **options)) == expected
    disturbed = numbers(kind, marks, {2: ["SIGKILL"], 19: ["exit 3"], 40: ["SIGSEGV"]}, batch_size=batch_size)
    assert epoch(disturbed) == expected
    assert disturbed.report()["restarts"] == 3


@BOTH
@pytest.mark.parametrize("method", SLOW_METHODS)
def test_random_numbers_are_the_same_with_every_start_method(kind: Any, method: str, marks: Marks) -> None:
    disturbed = numbers(kind, marks, {2: ["SIGKILL"]}, multiprocessing_context=method)
    expected, batches = epoch(numbers(kind, marks)), epoch(disturbed)
    if kind is headrace.Loader:  # it does not import torch
        expected, batches = [batch[:3] for batch in expected], [batch[:3] for batch in batches]
    assert batches == expected


@BOTH
def test_random_numbers_differ_between_samples_epochs_and_seeds(kind: Any, marks: Marks) -> None:
    loader = numbers(kind, marks, batch_size=None)
    drawn = [sample[1:] for _ in range(3) for sample in epoch(loader)]
    drawn += [sample[1:] for sample in epoch(numbers(kind, marks, batch_size=None, seed=6))]
    for generator in zip(*drawn, strict=True):
        assert len(set(generator)) == len(drawn)
    assert len(drawn[0]) == 3


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_counted_and_can_be_set(kind: Any, persistent: bool, marks: Marks) -> None:
    loader = numbers(kind, marks, persistent_workers=persistent)
    epochs = [epoch(loader) for _ in range(3)]
    assert len({repr(one) for one in epochs}) == 3
    loader.set_epoch(1)
    assert [epoch(loader), epoch(loader)] == epochs[1:]
    later = numbers(kind, marks, {9: ["SIGKILL"]}, persistent_workers=persistent)
    later.set_epoch(np.int64(2))
    assert epoch(later) == epochs[2]


@BOTH
def test_random_numbers_of_a_later_epoch_survive_a_death(kind: Any, marks: Marks) -> None:
    loader = numbers(kind, marks, persistent_workers=True)
    expected = [epoch(loader) for _ in range(3)]
    disturbed = numbers(kind, marks, persistent_workers=True)
    assert epoch(disturbed) == expected[0]
    kill(*pids(disturbed))
    assert [epoch(disturbed), epoch(disturbed)] == expected[1:]


def test_the_seed_is_torchs_where_none_is_given(marks: Marks) -> None:
    def first_epoch(generator: int) -> Any:
        drawn = torch.Generator()
        drawn.manual_seed(generator)
        return epoch(numbers(headrace.torch.DataLoader, marks, seed=None, generator=drawn))

    assert first_epoch(1) == first_epoch(1)
    assert first_epoch(1) != first_epoch(2)


@BOTH
def test_a_seed_may_be_numpys(kind: Any, marks: Marks) -> None:
    assert epoch(numbers(kind, marks, seed=np.int64(5))) == epoch(numbers(kind, marks, seed=5))


@BOTH
def test_the_order_of_samples_does_not_matter(kind: Any, marks: Marks) -> None:
    batches = [[40, 3], [2, 39, 3]]
    loader = numbers(kind, marks, batch_sampler=batches, batch_size=1)
    samples = {sample[0]: list(sample) for sample in epoch(numbers(kind, marks, batch_size=None))}
    drawn = [[*map(list, zip(*batch, strict=True))] for batch in epoch(loader)]
    assert drawn[0] == [samples[40], samples[3]]
    assert drawn[1][:2] == [samples[2], samples[39]]
    assert drawn[1][2] != samples[3], "it is the second draw of 3"


def test_the_trainers_own_random_numbers_are_left_alone(marks: Marks) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist()
    epoch(numbers(headrace.torch.DataLoader, marks))
    epoch(numbers(headrace.Loader, marks))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state


@BOTH
def test_random_state_of_trainer_is_unchanged_without_workers(kind: Any, marks: Marks) -> None:
    def states() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    loader = numbers(kind, marks, **HERE)
    iterator = iter(loader)  # torch draws its seed
    state = states()
    for _ in iterator:
        assert states() == state
    failing = bad(kind, marks, "raise", bad=(1,), rng="sample", **HERE)
    iterator = iter(failing)
    state = states()
    with pytest.raises(KeyError, match="sample 1 is bad"):
        next(iterator)
    assert states() == state


@BOTH
def test_without_workers_epochs_and_torchs_seed_count_the_same(kind: Any, marks: Marks) -> None:
    def epochs(**options: Any) -> list[Any]:
        torch.manual_seed(4)
        own_seed = {"seed": None} if kind is headrace.torch.DataLoader else {}
        loader = numbers(kind, marks, **own_seed, **options)
        drawn = [epoch(loader) for _ in range(2)]
        loader.set_epoch(7)
        return [*drawn, epoch(loader)]

    assert epochs(**HERE) == epochs()


# ---- bad samples ----


class Decides:
    """An on_bad_sample that looks at the index."""

    def __init__(self, words: dict[int, Any]) -> None:
        self.words = words

    def __call__(self, index: int, error: Exception) -> Any:
        assert str(error) == repr(f"sample {index} is bad")
        word = self.words[index]
        if isinstance(word, Exception):
            raise word
        return word


BAD = (4, 20, 21, 22)  # in batches of 3: one sample of one batch, then two and one of the next two


def bad(kind: Any, marks: Marks, policy: Any, bad: tuple[int, ...] = BAD, **options: Any) -> Any:
    return load(kind, Bad(COUNT, Plan(marks), bad), on_bad_sample=policy, **{"seed": 3, **options})


@BOTH
@pytest.mark.parametrize("collate", [None, as_sum])
def test_skip_makes_a_batch_smaller(kind: Any, collate: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", collate_fn=collate)
    expected = [[i for i in range(at, min(at + 3, COUNT)) if i not in BAD] for at in range(0, COUNT, 3)]
    with collected_warnings() as texts:
        assert epoch(loader) == (expected if collate is None else [*map(as_sum, expected)])
    assert len(expected) == len(loader)
    assert sorted(one.index for one in loader.report()["bad_samples"]) == list(BAD)
    (text,) = texts
    assert text.startswith("headrace: 4 bad samples in this epoch:\n")
    assert re.search(r"\n  20 \(worker \d\): KeyError: 'sample 20 is bad'", text)


@BOTH
@pytest.mark.parametrize("batch_size", [3, None])
def test_refill_puts_another_sample_in_its_place(kind: Any, batch_size: int | None, marks: Marks) -> None:
    loader = bad(kind, marks, "refill", batch_size=batch_size)
    batches = epoch(loader)
    samples = list(itertools.chain(*batches)) if batch_size else batches
    assert len(samples) == COUNT
    assert [i for i, sample in enumerate(samples) if sample != i] == list(BAD)
    assert not set(samples) & set(BAD)
    assert epoch(bad(kind, marks, "refill", batch_size=batch_size, num_workers=3)) == batches
    assert epoch(bad(kind, marks, "refill", batch_size=batch_size, seed=4)) != batches
    assert epoch(loader) != batches, "another epoch, other refills"
    loader.set_epoch(0)
    assert epoch(loader) == batches


@BOTH
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("policy", ["skip", "refill", Decides({4: "skip", 20: "refill", 21: "refill", 22: "skip"})])
def test_same_samples_are_skipped_and_refilled_without_workers(
    kind: Any, policy: Any, batch_size: int | None, marks: Marks
) -> None:
    def epochs(**options: Any) -> Any:
        loader = bad(kind, marks, policy, batch_size=batch_size, **options)
        seen = []
        for _ in range(2):
            with collected_warnings() as texts:
                batches = epoch(loader)
            report = loader.report()
            listed = sorted((one.index, one.error) for one in report["bad_samples"])
            assert len(batches) == report["batches"] == len(loader)
            assert (report["seed"], report["skipped"], len(texts)) == (3, len(listed), 1)
            seen.append((batches, listed, re.sub(r" \(worker \d\)", "", texts[0]).splitlines()[0]))
        return seen

    assert epochs(**HERE) == epochs()


@BOTH
def test_bad_samples_are_reported_once_without_workers(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", bad=(4,), **HERE)
    with collected_warnings() as texts:
        iterator = iter(loader)
        assert len([*iterator]) == len(loader)
        assert next(iterator, None) is None
    page = "\n  (headrace help bad-samples)"
    assert texts == [f"headrace: 1 bad sample in this epoch:\n  4: KeyError: 'sample 4 is bad'{page}"]
    (one,) = loader.report()["bad_samples"]
    assert one.worker is None


@BOTH
def test_without_workers_the_loop_goes_on_after_a_bad_sample(kind: Any, marks: Marks) -> None:
    iterator = iter(bad(kind, marks, skip_even, bad=(4, 7), **HERE))
    assert [mishaps.plain(next(iterator)) for _ in range(2)] == [[0, 1, 2], [3, 5]]
    with pytest.raises(KeyError, match="sample 7 is bad"):
        next(iterator)
    assert mishaps.plain(next(iterator)) == [9, 10, 11]


def test_install_gives_sample_options_without_workers(marks: Marks) -> None:
    """Under install(), torch's own DataLoader applies them with num_workers=0 too."""

    def batches(**options: Any) -> Any:
        return epoch(torch.utils.data.DataLoader(Bad(COUNT, Plan(marks), BAD), batch_size=3, **options))

    with headrace.torch.installed(on_bad_sample="refill", rng="sample", seed=3), collected_warnings() as texts:
        assert batches() == batches(num_workers=2)
        stream = torch.utils.data.DataLoader(Anything())
        assert epoch(stream) == [[0], [1]], "an iterable one has no random numbers by sample"
    assert len(texts) == 2
    with pytest.raises(KeyError, match="sample 4 is bad"):
        batches()


class Anything(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(2))


@BOTH
def test_a_function_decides_for_each_sample(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, Decides({4: "skip", 20: "refill", 21: "skip", 22: "skip"}))
    batches = epoch(loader)
    assert (batches[1], batches[7]) == ([3, 5], [23])
    assert len(batches[6]) == 3
    assert batches[6][:2] == [18, 19]
    loader = bad(kind, marks, Decides(dict.fromkeys(BAD, "raise")))
    with pytest.raises(KeyError, match="sample 4 is bad"):
        epoch(loader)


@BOTH
@pytest.mark.parametrize("word", ["skp", None, 3, ["skip"]])
def test_a_function_that_gives_another_word_raises(kind: Any, word: Any, marks: Marks) -> None:
    with pytest.raises(ValueError, match=r"on_bad_sample should give .* not .*, for sample 4") as caught:
        epoch(bad(kind, marks, Decides({4: word})))
    assert repr(word) in str(caught.value)


@BOTH
def test_exception_of_on_bad_sample_is_raised(kind: Any, marks: Marks) -> None:
    with pytest.raises(ZeroDivisionError, match="in on_bad_sample") as caught:
        epoch(bad(kind, marks, Decides({4: ZeroDivisionError("in on_bad_sample")})))
    assert "sample 4 is bad" in str(caught.value), "why it was called"


@BOTH
def test_a_batch_of_bad_samples_only_gets_a_good_one(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", bad=(6, 7, 8, 40))
    with collected_warnings() as texts:
        batches = epoch(loader)
    assert len(batches) == len(loader)
    assert len(batches[2]) == 1
    assert batches[2][0] not in (6, 7, 8, 40)
    assert batches[13] == [39]
    assert "headrace: 4 bad samples" in texts[0]
    assert epoch(bad(kind, marks, "skip", bad=(6, 7, 8, 40), num_workers=3)) == batches


@BOTH
@pytest.mark.parametrize("policy", ["skip", "refill"])
def test_a_dataset_of_bad_samples_only_raises(kind: Any, policy: str, marks: Marks) -> None:
    with pytest.raises(RuntimeError, match=r"sample 0 failed, and so did .* others of this epoch that were tried"):
        epoch(bad(kind, marks, policy, bad=tuple(range(COUNT))))


@BOTH
def test_many_bad_samples_are_cut_short_in_the_warning_only(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", bad=tuple(range(0, 38, 2)))
    with collected_warnings() as texts:
        epoch(loader)
    assert "and 9 more: see report()['bad_samples']" in texts[0]
    assert len(texts[0].splitlines()) == 13
    assert len(loader.report()["bad_samples"]) == 19


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_bad_samples_are_those_of_this_epoch(kind: Any, persistent: bool, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", persistent_workers=persistent)
    for _ in range(2):
        with collected_warnings() as texts:
            epoch(loader)
        assert len(texts) == 1
        assert len(loader.report()["bad_samples"]) == len(BAD)
    assert loader.report()["skipped"] == (2 if persistent else 1) * len(BAD)


def whole(samples: list[int]) -> list[int]:
    if len(samples) < 3:
        raise ValueError("too few")
    return samples


def skip_even(index: int, error: Exception) -> str:
    return "raise" if index % 2 else "skip"


@BOTH
@pytest.mark.parametrize("policy, collate, skipped", [("skip", whole, {6, 7}), (skip_even, None, {6})])
def test_a_bad_sample_of_a_batch_that_raises_is_listed_too(
    kind: Any, policy: Any, collate: Any, skipped: set[int], marks: Marks
) -> None:
    loader = bad(kind, marks, policy, bad=(6, 7), collate_fn=collate)
    iterator, errors = iter(loader), 0
    with collected_warnings() as texts:
        for _ in range(len(loader)):
            try:
                next(iterator)
            except (ValueError, KeyError, RuntimeError):
                errors += 1
        assert next(iterator, None) is None
    report = loader.report()
    assert errors and {one.index for one in report["bad_samples"]} == skipped
    assert report["skipped"] == len(skipped)
    assert len(texts) == 1


@BOTH
def test_bad_samples_and_deaths_go_together(kind: Any, marks: Marks) -> None:
    dataset = Bad(COUNT, Plan(marks, {3: ["SIGKILL"], 23: ["SIGKILL"]}), BAD)
    loader = load(kind, dataset, on_bad_sample="refill", seed=3)
    other = bad(kind, marks, "refill")
    assert epoch(loader) == epoch(other)
    assert loader.report()["restarts"] == 2
    both = [[(one.index, one.error) for one in one.report()["bad_samples"]] for one in (loader, other)]
    assert both[0] == both[1]
    assert {index for index, _ in both[0]} == set(BAD)


# ---- a sample that kills its worker twice ----


@BOTH
@pytest.mark.parametrize("name", ["map", "getitems"])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("policy", ["raise", "skip", "refill"])
def test_a_sample_that_kills_its_worker_twice_is_not_tried_again(
    kind: Any, name: str, batch_size: int | None, policy: str, marks: Marks
) -> None:
    plan = Plan(marks, {7: ["SIGKILL", "SIGSEGV", "exit 3"]})
    loader = load(kind, DATASETS[name](plan), batch_size=batch_size, on_bad_sample=policy, seed=1)
    batches, errors = [], []
    with collected_warnings() as texts:
        iterator = iter(loader)
        for _ in range(COUNT + 1):
            try:
                batches.append(mishaps.plain(next(iterator)))
            except StopIteration:
                break
            except RuntimeError as error:
                errors.append(error)
    assert not marks.has("7.2"), "it was tried a third time"
    assert loader.report()["restarts"] == 2
    is_whole = name == "getitems" and kind is not headrace.Loader and batch_size and policy == "raise"
    what = "batch 2, of [6, 7, 8]," if is_whole else "sample 7"
    assert f"making {what} killed its worker 2 times: it is not tried again" in texts[1]
    expected = undisturbed(kind, name, batch_size=batch_size)
    assert len(batches) + len(errors) == len(expected)
    if policy == "raise":
        assert len(errors) == 1
        assert f"making {what} killed its worker 2 times" in str(errors[0])
        assert batches == [batch for batch in expected if batch not in ([6, 7, 8], 7)]
        return
    assert errors == []
    (bad,) = loader.report()["bad_samples"]
    page = "(headrace help sample-killed-worker)"
    assert (bad.index, bad.error) == (7, f"SampleKilledWorker: making sample 7 killed its worker 2 times {page}")
    assert "headrace: 1 bad sample in this epoch:\n  7 (worker " in texts[2]
    changed = [(got, want) for got, want in zip(batches, expected, strict=True) if got != want]
    if policy == "skip" and batch_size:
        assert changed == [([6, 8], [6, 7, 8])]
    elif batch_size:
        ((got, want),) = changed
        assert (got[0], got[2], want) == (6, 8, [6, 7, 8])
        assert 0 <= got[1] < COUNT
    else:
        assert all(want == 7 for _, want in changed)


@BOTH
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    "fates", [["SIGKILL", "SIGKILL"], ["SIGKILL", "live", "SIGKILL"]], ids=["at once", "in two epochs"]
)
def test_sample_that_killed_workers_is_not_tried_in_later_epochs(
    kind: Any, persistent: bool, fates: list[str], marks: Marks
) -> None:
    plan = Plan(marks, {7: [*fates, "SIGKILL"]})
    loader = load(kind, Numbers(COUNT, plan), persistent_workers=persistent, on_bad_sample="skip", shuffle=True, seed=1)
    epochs = [epoch(loader) for _ in range(4)]
    assert marks.has(f"7.{len(fates) - 1}") and not marks.has(f"7.{len(fates)}"), "it was tried a third time"
    if "live" in fates:
        assert sorted(itertools.chain(*epochs.pop(0))) == list(range(COUNT))
    for batches in epochs:
        assert sorted(itertools.chain(*batches)) == [i for i in range(COUNT) if i != 7]
        assert len(batches) == len(loader)


@BOTH
def test_without_restarts_it_is_tried_whenever_the_user_tries(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"] * 3})), max_restarts=0)
    for number in range(3):
        with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
            epoch(loader)
        assert marks.has(f"7.{number}")
    assert epoch(loader) == undisturbed(kind, "map")


@BOTH
def test_samples_near_one_that_killed_the_worker_are_made(kind: Any, marks: Marks) -> None:
    """Each dies at a sample of its own, in the same batch: none is given up."""
    plan = Plan(marks, {6: ["SIGKILL"], 7: ["SIGKILL"], 8: ["SIGKILL"]})
    loader = load(kind, Numbers(COUNT, plan))
    assert epoch(loader) == undisturbed(kind, "map")
    assert loader.report()["restarts"] == 3


class OutsideTheDataSet:
    """A collate function that dies, twice."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def __call__(self, samples: list[Any]) -> list[Any]:
        if 7 in samples and (self.marks.first("collate.0") or self.marks.first("collate.1")):
            mishaps.die("SIGKILL")
        return samples


@BOTH
@pytest.mark.parametrize("name", ["map", "replayed", "resumed"])
def test_a_collate_function_may_die_as_often_as_restarts_allow(kind: Any, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks)), collate_fn=OutsideTheDataSet(marks))
    assert epoch(loader) == undisturbed(kind, name)
    assert loader.report()["restarts"] == 2


@needs_failpoints
@BOTH
def test_a_death_before_a_worker_has_begun_is_not_its_samples(kind: Any, marks: Marks) -> None:
    """The second process dies with the first one's sample still in its record."""

    def arm() -> None:
        if marks.has("7.0") and marks.first("armed"):
            os.environ["HEADRACE_STOP"] = "port.pid:9"

    os.register_at_fork(after_in_child=arm)
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})))
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, "map")
    assert loader.report()["restarts"] == 2
    assert not any("not tried again" in text for text in texts)


# ---- what is not of class Exception ----


class Ends(BaseException):
    pass


class EndsAt(Numbers):
    """Raises at sample 7, which is no Exception."""

    kind: type[BaseException] = Ends

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise self.kind("at sample 7")
        return super().__getitem__(index)


class ExitsAt(EndsAt):
    kind = SystemExit


class IsInterruptedAt(EndsAt):
    kind = KeyboardInterrupt


@BOTH
@pytest.mark.parametrize("options", [HERE, {"max_restarts": 0}, {"max_restarts": 3}])
@pytest.mark.parametrize("word", ["skip", "refill"])
@pytest.mark.parametrize("data", [EndsAt, ExitsAt])
def test_exit_and_interrupt_of_a_sample_end_the_run(
    kind: Any, data: Any, word: str, options: Any, marks: Marks
) -> None:
    loader = load(kind, data(COUNT, Plan(marks)), **options, on_bad_sample=word)
    iterator = iter(loader)
    with collected_warnings() as texts:
        batches = [next(iterator) for _ in range(2)]
        with pytest.raises(data.kind, match="at sample 7"):
            next(iterator)
    assert len(batches) == 2
    assert texts == []


@BOTH
def test_a_keyboard_interrupt_of_a_sample_is_never_skipped(kind: Any, marks: Marks) -> None:
    dataset = IsInterruptedAt(COUNT, Plan(marks))
    with pytest.raises(KeyboardInterrupt):
        epoch(load(kind, dataset, **HERE, on_bad_sample="skip"))
    with collected_warnings() as texts, pytest.raises(RuntimeError, match="It was interrupted") as caught:
        epoch(load(kind, dataset, on_bad_sample="skip", max_restarts=3))
    assert len(texts) == 3
    assert "the limit max_restarts=3 is reached" in str(caught.value)


@BOTH
def test_without_a_policy_what_is_no_exception_ends_its_worker(kind: Any, marks: Marks) -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly with exit code 1"):
        epoch(load(kind, EndsAt(COUNT, Plan(marks)), max_restarts=0))
