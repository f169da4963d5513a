# SPDX-License-Identifier: Apache-2.0
"""The verdicts of headrace report, on made-up recordings. bench/verdicts.py tries them on real jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace._report import notes, reading, rules, summary
from headrace._report.numbers import numbers_of
from headrace._report.ranks import Job, jobs_of
from headrace._report.recorded import Hour, Recorded
from recorded_runs import MS, OPENED, REAL, S, rows_of, run
from recordings import File


def judged(*loaders: Recorded) -> rules.Verdict:
    (job,) = jobs_of(loaders)
    return rules.verdict_on(job)


def job_of(*loaders: Recorded) -> Job:
    (job,) = jobs_of(loaders)
    return job


FETCHED = {"fetched_bytes": 40 * MS, "requests": 50, "retries": 5, "hit_count": 300, "wait_count": 100}
GOT = [
    "The fetcher got 40 MB/s in 50 requests/s, of which 10 % were made again; 75 % of the reads found all",
    "headrace cache warm",
]
CASES = [
    ({"count": 9}, "short", ["160 steps in 8 s, apart from the first 20", "100 steps and 10 s"]),
    ({"per_s": 1, "count": 60}, "short", ["40 steps in 40 s"]),
    ({"wait": 0.029}, "trainer", ["waits for data 2.9 % of its time"]),
    ({"wait": 0.01, "busy": 0.1, "workers": 8}, "trainer", ["8 workers are busy 10 %", "num_workers=1 would"]),
    ({"wait": 0.1, "start": 0.11}, "starting", ["6.49 s of the 12.4 s", "59 epochs, 110 ms each"]),
    ({"wait": 0.1, "start": 0.09}, "too few", []),
    ({"slow_every": 50}, "slow samples", ["100 % of the waiting is for 2.0 % of", "2.97 ms", "0 (400 ms), 400 ("]),
    ({"collate": 0.41}, "collate", ["41 % of the workers' busy time", "77.9 ms a batch"]),
    ({"cpu": 0.49}, "storage", ["use the CPU for 49 % of that", "or with about 6 workers"]),
    ({"cpu": 0.49, "used": 15}, "storage", []),
    ({"cpu": 0.3, "delay": 0.3, "used": 15}, "no cores", []),
    ({"used": 14.5}, "no cores", ["4 workers are busy 95 %", "91 % of the 16 cores are used"]),
    ({"throttled": 0.2}, "no cores", ["the quota of 16 cores stops them 20 % of the time"]),
    ({}, "too few", ["4 workers are busy 95 %", "11.0 cores are free", "About 6 workers would be enough"]),
    ({"used": 15, "cores": 17, "wait": 0.8}, "too few", ["About 20 workers (the free cores are enough for 6)"]),
    ({"used": 15.2, "cores": 16, "cpu": 0.7}, "no cores", []),
    ({"used": 3.2, "cores": 4, "cpu": 0.7}, "too few", ["0.8 cores are free"]),
    ({"workers": 0, "trainer_cpu": 0.97}, "no workers", ["makes its batches itself", "0.97 cores", "num_workers=8"]),
    ({"workers": 0, "trainer_cpu": 0.1}, "no workers", ["waits for a disk or a network", "num_workers=8"]),
    ({"workers": 0, "trainer_cpu": 0.97, "used": 14.5}, "no workers", ["No core is free for workers (num_workers)"]),
    ({"workers": 0, "trainer_cpu": 0.1, "trainer_delay": 0.8, "used": 15}, "no workers", ["No core is free"]),
    ({"workers": 0, "wait": 0.01}, "trainer", []),
    ({"busy": 0.79}, "unknown", ["30 % for workers", "busy 79 %", "11.0 of 16 cores are free"]),
    ({"network": 0.51, "cpu": 0.3, "more": FETCHED}, "network", ["wait for remote objects for 51 % of that", *GOT]),
    ({"network": 0.51, "cpu": 0.9}, "network", ["for 51 % of that."]),
    ({"network": 0.5, "cpu": 0.3}, "storage", []),
    ({"network": 0.51, "busy": 0.79}, "unknown", []),
    ({"workers": 0, "trainer_cpu": 0.1, "trainer_network": 0.2}, "no workers", ["waits for remote objects", "=8"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "words"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)])
def test_first_rule_that_holds_is_the_verdict(values: dict[str, Any], kind: str, words: list[str]) -> None:
    verdict = judged(run(**values))
    assert verdict.kind == kind
    assert [word for word in words if word not in f"{verdict.text} {verdict.advice}"] == []


def test_parked_workers_do_not_count() -> None:
    """num_workers="auto" uses 3 of 16 workers on average; the others add no time."""
    one = run(workers=16, busy=0.95 * 3 / 16, more={"used_workers": [2, 4, 3] * 20})
    waited = {"wait_ns": [int(0.05 * S * 3 / 16)] * 60}
    workers = [{**worker, **waited} for worker in one.seconds.of_workers]
    job = job_of(replace(one, seconds=replace(one.seconds, of_workers=workers)))
    verdict = rules.verdict_on(job)
    assert (verdict.kind, job.numbers.workers, job.numbers.parked) == ("too few", 3, 13)
    assert "The 3 workers are busy 95 % of their time" in verdict.text
    assert verdict.advice.startswith("About 4 workers would")
    assert dict(summary.facts_on(job))["workers"].startswith("3 on average, and 13 parked, busy 95 %")


def test_first_steps_do_not_count() -> None:
    """The first second has more than 20 steps, and waits all the time."""
    waits = [S, *[S // 100] * 59]
    assert judged(run(more={"inside_ns": waits})).kind == "trainer"


def test_wait_that_began_in_the_first_steps_is_no_more_than_all() -> None:
    """The wait of 9 s is a part of the first row, and that of the workers is known when it ends."""
    one = run(more={"inside_ns": [S, *[S // 100] * 59], "wait_ns": [0, 9 * S, *[0] * 58]})
    numbers = numbers_of(one)
    assert numbers.workers_s == numbers.inside_s == pytest.approx(0.59)


def test_workers_of_a_short_run_are_those_that_got_tasks() -> None:
    assert numbers_of(run(count=1, workers=16, more={"used_workers": 2})).workers == 2


def test_time_between_epochs_does_not_count() -> None:
    """In each half of the time there is an epoch; in between the loop does other things for a minute."""
    moving = [20] * 30 + [0] * 60 + [20] * 30
    one = run(count=120, more={"batches": moving, "epoch": [0] * 90 + [1] * 30,
                               "inside_ns": [S // 4 if batches else 0 for batches in moving]})  # fmt: skip
    numbers = numbers_of(one)
    assert (numbers.steps, numbers.seconds) == (1180, 59.0)
    assert numbers.wait == pytest.approx(0.25, abs=0.01)


def test_time_until_the_first_batch_counts_as_its_epoch() -> None:
    """The workers of the second epoch take 10 s to start, in which no batch comes."""
    batches = [20] * 30 + [0] * 9 + [20] * 21
    starts = [0] * 39 + [10 * S, *[0] * 20]
    one = run(more={"batches": batches, "epoch": [0] * 30 + [1] * 30, "start_ns": starts, "inside_ns": 0, "starts": 1})
    assert numbers_of(one).seconds == 59.0
    assert judged(one).kind == "starting"


def test_cold_disk_is_named() -> None:
    """Both epochs take as long, and the first one has a third of the batches."""
    batches, epoch = [10] * 30 + [30] * 30, [0] * 30 + [1] * 30
    verdict = judged(run(cpu=0.1, more={"batches": batches, "epoch": epoch}))
    assert verdict.kind == "storage"
    assert "3.0 times as long in the first epoch as in the second" in verdict.text


def test_minutes_are_used_where_seconds_are_gone() -> None:
    one = run(count=600, length_s=60)
    newest = rows_of(60, 1, OPENED + 600 * 60 * S, workers=4, batches=20,
                     worker=dict.fromkeys(one.seconds.of_workers[0], 0))  # fmt: skip
    both = replace(one, minutes=one.seconds, seconds=newest)
    assert len(both.rows) == 599 + 60
    assert sum(both.rows["batches"]) == 599 * 1200 + 60 * 20


def test_batches_of_later_epochs_are_told_apart() -> None:
    """Each epoch has 100 steps; only batch 5 of each is slow and waited for."""
    one = run(count=60, per_s=10, slow_every=100)
    task = [number % 100 for number in range(600)]
    steps = {**one.steps, "epoch": [n // 100 for n in range(600)], "step": [n % 100 + 1 for n in range(600)]}
    found = numbers_of(replace(one, batches={**one.batches, "task": task}, steps=steps))
    assert found.slow is not None
    assert (found.slow.share, found.slow.batches) == (1.0, 0.01)


# ---- ranks ----


def test_one_slow_rank_is_named_with_its_cause() -> None:
    verdict = judged(run(rank=0, world_size=2, wait=0.02), run(rank=1, world_size=2, wait=0.4, collate=0.6))
    assert (verdict.kind, verdict.title) == ("rank", "Rank 1")
    assert verdict.cause is not None and verdict.cause.kind == "collate"
    assert "slowest rank in 100 % of the steps, by 19 ms on average (38 % of a step)" in verdict.text
    assert "Its cause: collating. 60 %" in verdict.advice


def of_ranks(*inside: list[int]) -> list[Recorded]:
    """Makes ranks whose loops wait so many us for the batches, again and again."""
    loaders = [run(rank=rank, world_size=len(inside), wait=0.1, cpu=0.4) for rank in range(len(inside))]
    return [
        replace(one, steps={**one.steps, "inside_us": [us[step % len(us)] for step in range(1200)]})
        for one, us in zip(loaders, inside, strict=True)
    ]


def test_rank_whose_two_workers_are_late_together_is_named() -> None:
    """Its loop waits in each second step, which all others wait for."""
    verdict = judged(*of_ranks([100], [100, 40_000]))
    assert (verdict.kind, verdict.title) == ("rank", "Rank 1")
    assert "slowest rank in 50 % of the steps" in verdict.text


def test_rank_that_is_one_of_two_late_ones_is_not_named() -> None:
    assert judged(*of_ranks([30_000, 100], [100, 30_000])).kind == "storage"
    assert judged(*of_ranks([100, 100, 100, 30_000], [100])).kind == "storage"  # late too rarely


def test_ranks_that_wait_alike_have_the_cause_of_one() -> None:
    assert judged(*(run(rank=rank, world_size=4) for rank in range(4))).kind == "too few"


def test_job_waits_as_long_as_the_slowest_rank() -> None:
    """Each rank waits for every fourth batch only, and each for another one."""
    loaders = []
    for rank in range(4):
        one = run(rank=rank, world_size=4, wait=0.1)
        inside = [20_000 if number % 4 == rank else 0 for number in range(1200)]
        loaders.append(replace(one, steps={**one.steps, "inside_us": inside}))
    job = job_of(*loaders)
    assert job.wait == pytest.approx(0.4)
    assert job.slowest == [0.25, 0.25, 0.25, 0.25]
    assert "40 % (slowest rank of each step)" in summary.describe(job)


def test_rank_whose_rows_are_gone_has_no_cause() -> None:
    """Its file was cut behind the steps."""
    cut = run(rank=0, world_size=2, wait=0.4, count=0, torn=2, clock_ns=REAL - OPENED)
    cut = replace(cut, steps=run(wait=0.4).steps)
    job = job_of(cut, run(rank=1, world_size=2, wait=0.1, opened_real_ns=REAL + S))
    assert (verdict := rules.verdict_on(job)).kind == "rank"
    assert "Its cause: too short to say." in verdict.advice
    assert "2 damaged parts of the recording had to be left out." in notes.notes_on(job)


def test_ranks_of_two_runs_are_two_jobs() -> None:
    runs = [opened(at * 100, rank) for at in range(2) for rank in range(2)]
    assert [[one.rank for one in job.loaders] for job in jobs_of(runs)] == [[0, 1], [0, 1]]


def opened(after_s: int, rank: int, **fields: Any) -> Recorded:
    """Makes the recording of a rank of two whose loader was made so many seconds later, and ran for a minute."""
    one = run(rank=rank, world_size=2, opened_real_ns=REAL + after_s * S, **fields)
    later = [real_ns + after_s * S for real_ns in one.seconds["real_ns"]]
    return replace(one, seconds=replace(one.seconds, of_loader={**one.seconds.of_loader, "real_ns": later}))


def test_later_run_does_not_complete_an_earlier_one() -> None:
    """The recording has rank 0 only of the first run."""
    jobs = jobs_of([opened(0, 0, pid=1), opened(100, 0, pid=2), opened(101, 1, pid=3)])
    assert sorted([one.pid for one in job.loaders] for job in jobs) == [[1], [2, 3]]


def test_commands_tell_runs_of_the_same_time_apart() -> None:
    runs = [opened(0, 0, command="a"), opened(1, 0, command="b"), opened(2, 1, command="b"), opened(3, 1, command="a")]
    assert sorted([one.command for one in job.loaders] for job in jobs_of(runs)) == [["a", "a"], ["b", "b"]]


def test_times_of_several_machines_are_compared(tmp_path: Path) -> None:
    """Clocks of CLOCK_MONOTONIC begin when a machine starts."""
    for rank, began_ns in enumerate((900 * S, 3 * S)):
        file = File(rank=rank, world_size=2, opened_ns=began_ns - S, began_ns=began_ns, began_real_ns=REAL + rank * S)
        file.second({"at_ns": began_ns + 9 * S, "real_ns": REAL + 9 * S}, [{}, {}])
        file.write(tmp_path / f"{rank}.hrr")
    found, _ = reading.read(tmp_path)
    assert [one.opened_real_ns for one in found] == [REAL - S, REAL]
    assert [[one.rank for one in job.loaders] for job in jobs_of(found)] == [[0, 1]]


def test_loaders_of_one_script_are_jobs_by_waiting() -> None:
    jobs = jobs_of([run(name="train.py:99", wait=0.05, loader=1), run(wait=0.4)])
    assert [job.loaders[0].name for job in jobs] == ["train.py:88", "train.py:99"]


# ---- notes ----


def test_growth_is_a_note_with_the_time_that_is_left() -> None:
    """Four workers grow by 1 MiB per second each, and 8 GiB are available."""
    private = [(400 << 20) + at * (1 << 20) for at in range(600)]
    (note,) = notes.notes_on(job_of(run(count=600, private=private, available=8 << 30)))
    assert "grows by 14.1 GiB per hour and is 3.9 GiB now: memory is full in about 34 min" in note


@pytest.mark.parametrize("private", [
    400 << 20,
    [(400 << 20) + min(at, 200) * (1 << 20) for at in range(600)],
    [0] * 600,
    [(400 << 20) + at % 100 * (1 << 20) for at in range(600)],
], ids=["even", "at first", "not seen", "with each epoch"])  # fmt: skip
def test_memory_that_does_not_keep_growing_has_no_note(private: Any) -> None:
    assert notes.notes_on(job_of(run(count=600, private=private, available=8 << 30))) == []


def test_events_of_a_run_are_notes() -> None:
    one = run(more={"restarts": [1, *[0] * 59], "bad_samples": [2, *[0] * 59], "errors": [3, *[0] * 59]},
              rank=0, world_size=2, ended="disk full")  # fmt: skip
    found = notes.notes_on(job_of(one))
    assert found == [
        "Workers died and were replaced 1 time.",
        "2 bad samples had to be left out or replaced.",
        "3 batches came as an exception.",
        "The recording has 1 of 2 ranks: a rank that it does not have may be the slowest one.",
        "The recording ends early: disk full.",
    ]


def test_empty_recording_is_too_short() -> None:
    empty = run(count=0)
    assert judged(empty).kind == "short"
    assert "Too short to say" in summary.describe_all([job_of(empty)], "run1/", has_page=False)


def test_command_makes_each_slow_sample_once() -> None:
    """A sample of several epochs is several times among the slowest ones."""
    one = run(slow_every=50)
    doubled = replace(one, slowest=[sample for sample in one.slowest for _ in range(2)])
    assert summary.replay_line(doubled) == "headrace replay train.py:DATASET 0 400 800 1200 1600"


def test_terminal_shows_verdict_numbers_and_how_to_get_the_page() -> None:
    text = summary.describe_all([job_of(run(slow_every=50))], "my run/", has_page=False)
    lines = text.splitlines()
    assert lines[0] == "train.py:88, pid 4187 on node07: Slow samples"
    assert "  headrace replay train.py:DATASET 0 400 800 1200 1600" in lines
    assert "  WAIT      30 % (workers 30 %)" in lines
    assert lines[-1] == "The page with figures: headrace report 'my run/' -o report.html"
    assert max(map(len, lines)) <= 80


def test_names_with_escape_characters_are_shown_harmless() -> None:
    text = summary.describe(job_of(run(name="\x1b[31mtrain.py\n:88", host="a\x07b", slow_every=50)))
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert text.startswith("?[31mtrain.py?:88, pid 4187 on a?b: ")


def test_samples_that_are_short_are_not_what_the_loop_waits_for() -> None:
    """All batches have a sample of over 10 times the median, which still is nothing next to the wait of 15 ms."""
    one = run(collate=0.6, hours=[Hour(OPENED, [0] * 9 + [1000] + [0] * 34, [0] * 44)])
    short = {**one.batches, "slowest_ns": [7_000] * len(one.batches["task"])}
    assert judged(replace(one, batches=short)).kind == "collate"


def test_slow_samples_need_batches_that_were_timed() -> None:
    one = run(slow_every=50, busy=0.5)
    untimed = {**one.batches, "slowest_ns": [0] * len(one.batches["task"])}
    assert judged(replace(one, batches=untimed)).kind == "unknown"
    assert one.slowest[0].ns == 400 * MS
