# SPDX-License-Identifier: Apache-2.0
"""Ranks of one machine that read the same, and that do not: real processes that meet on the board."""

from __future__ import annotations

import pathlib
import signal

import pytest
from loaders import needs_failpoints, only_headrace
from rank_scripts import environments, finish, run_ranks, started

pytestmark = only_headrace

FINE = "fine\n"
REPORT = (
    "headrace: rank 0 is at the end of epoch 5 of the loader at train.py:12 after 77 batches, and rank 1 has taken 78"
)


@pytest.mark.parametrize(("world_size", "others"), [(2, "rank 0 has 78"), (4, "ranks 0, 2, 3 have 78")])
def test_unequal_batches_raise_on_all_ranks(tmp_path: pathlib.Path, world_size: int, others: str) -> None:
    printed = run_ranks(
        tmp_path,
        world_size,
        """
one = agree()
attempt(one.begin_epoch, facts(epoch=2))
attempt(one.begin_epoch, facts(77, 3, 9856) if RANK == 1 else facts(78, 3, 9984))
""",
    )
    texts = {text.removeprefix(FINE) for text in printed}
    assert len(texts) == 1
    first, second = "rank 1 has 77", others
    if world_size == 2:
        first, second = "rank 0 has 78", "rank 1 has 77"
    wanted = f"headrace: loader at train.py:12, epoch 3: {first} batches, {second} (lengths 9856, 9984); give all ranks"
    assert texts.pop().startswith(wanted)


@pytest.mark.parametrize(
    ("field", "value", "epoch", "wanted"),
    [
        ("seed", 5, 1, "epoch 1: rank 1 has the seed 5, ranks 0, 2 have 4; give all ranks the same seed"),
        (
            "epoch",
            0,
            1,
            "at the start of an epoch: rank 1 is in epoch 0, ranks 0, 2 are in epoch 1; call sampler.set_epoch",
        ),
        ("samples", 1010, 1, "epoch 1: rank 1 has a dataset of 1010 samples, ranks 0, 2 have 1000; give all ranks the"),
        (
            "digest",
            9,
            1,
            "epoch 1: rank 1 has another order of samples, ranks 0, 2 have one of their own; a sampler that",
        ),
        (
            "length",
            50,
            1,
            "epoch 1: rank 1 has 50 samples of the epoch, ranks 0, 2 have 40; give all ranks the same number",
        ),
    ],
)
def test_each_field_that_differs_is_named(
    tmp_path: pathlib.Path, field: str, value: int, epoch: int, wanted: str
) -> None:
    common = f"dict(seed=4, samples=1000, digest=8, length=40, epoch={epoch})"
    printed = run_ranks(
        tmp_path,
        3,
        f"attempt(agree().begin_epoch, facts(**{{**{common}, **({{'{field}': {value}}} if RANK == 1 else {{}})}}))",
    )
    assert all(wanted in text for text in printed), printed


def test_all_ranks_decide_equally_about_sizes_of_datasets(tmp_path: pathlib.Path) -> None:
    """Rank 1 is close to both others, which are not close to each other."""
    code = """
warnings.simplefilter("ignore")  # that says so
attempt(agree().begin_epoch, facts(samples=924 + 12 * RANK))
"""
    printed = run_ranks(tmp_path, 3, "import warnings" + code)
    assert all(text.startswith(FINE) for text in printed), printed


def test_equal_ranks_iterate_without_an_error(tmp_path: pathlib.Path) -> None:
    """There are several loaders, and loaders that are made again for each epoch."""
    printed = run_ranks(
        tmp_path,
        2,
        """
train, valid = agree(), agree("train.py:13")
for epoch in range(20):
    train.begin_epoch(facts(3, epoch))
    for step in 1, 2, 3:
        train.step(step)
    train.end(3)
    valid.begin_epoch(facts(1, samples=RANK if epoch < 0 else 5))
    valid.step(1)
    valid.end(1)
    again = agree("train.py:14")
    again.begin_epoch(facts(epoch + 5))
    del again
meet("end")
print("fine")
print(train.describe())
""",
    )
    assert printed == [FINE + "compared with 1 other processes of this machine\n"] * 2


def test_processes_that_share_a_rank_are_compared(tmp_path: pathlib.Path) -> None:
    """Tensor parallelism: four processes read two parts of the dataset."""
    printed = run_ranks(
        tmp_path,
        4,
        """
one = agree(rank=RANK // 2, world_size=2)
attempt(one.begin_epoch, facts(5, 0))
attempt(one.begin_epoch, facts(6 + (RANK == 3), 1))
""",
    )
    assert all(text.startswith(FINE) and "rank 1 has 7 batches, ranks 0, 1 have 6" in text for text in printed)


# ---- ranks that do not come, or come late ----


def test_a_late_rank_raises_and_is_not_waited_for_again(tmp_path: pathlib.Path) -> None:
    early, late = run_ranks(
        tmp_path,
        2,
        """
one = agree()
if RANK == 1:
    await_all("timed out")
    attempt(one.begin_epoch, facts(77))
    announce("compared")
else:
    start = time.monotonic()
    one.begin_epoch(facts(78))
    assert 2 <= time.monotonic() - start < 20
    announce("timed out")
    await_all("compared")
    start = time.monotonic()
    one.begin_epoch(facts(78, 1))
    assert time.monotonic() - start < 1
    print("fine")
meet("end")
""",
    )
    assert early == FINE
    assert "rank 0 has 78 batches, rank 1 has 77;" in late


@needs_failpoints
def test_a_rank_that_dies_before_it_publishes_is_no_error(tmp_path: pathlib.Path) -> None:
    code = """
one = agree()
start = time.monotonic()
attempt(one.begin_epoch, facts())
assert time.monotonic() - start < 20
one.step(1)
one.end(78)
print(one.describe())
"""
    ranks = environments(tmp_path, 2)
    ranks[1]["HEADRACE_STOP"] = "board.entered:9"
    with started(tmp_path, code, ranks) as (first, second):
        assert second.finish() == -signal.SIGKILL
        assert finish([first]) == [FINE + "compared with 0 other processes of this machine\n"]


def test_missing_ranks_are_noted_once_after_a_while(tmp_path: pathlib.Path) -> None:
    """The second rank has another loader only. The first one waits 2 s for it, and continues."""
    code = """
import warnings
agreement.NOTE_AFTER_S = 0.0
one = agree("train.py:12" if RANK == 0 else "valid.py:5")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for epoch in range(4):
        one.begin_epoch(facts(epoch=epoch))
print(len(caught), caught[0].message if caught else "")
meet("end")
"""
    for printed, place in zip(run_ranks(tmp_path, 2, code), ("train.py:12", "valid.py:5"), strict=True):
        assert printed.startswith("1 headrace: rank ")
        assert f"has begun an epoch of the loader at {place}, and other ranks have not done so for" in printed


def test_a_rank_that_looked_at_one_batch_before_is_no_error(tmp_path: pathlib.Path) -> None:
    """Its epochs have other numbers than those of the other ranks."""
    printed = run_ranks(
        tmp_path,
        2,
        """
one = agree()
if RANK == 0:
    one.begin_epoch(facts(78, 0))
    one.step(1)
    announce("looked")
await_all("looked")
for epoch in range(3):
    one.begin_epoch(facts(78, epoch))
    for step in range(1, 79):
        one.step(step)
    one.end(78)
    meet(f"epoch {epoch}")
attempt(one.begin_epoch, facts(77 + RANK, 3))
meet("end")
""",
    )
    assert any("rank 0 has 77 batches, rank 1 has 78" in text for text in printed)


# ---- the end of an epoch ----


def test_unequal_ends_raise_in_one_rank_at_least(tmp_path: pathlib.Path) -> None:
    printed = run_ranks(
        tmp_path,
        2,
        """
def read(one, steps):
    one.begin_epoch(facts(-1, 5))
    for step in range(1, steps + 1):
        one.step(step)
    one.end(steps)
attempt(read, agree(), 77 + RANK)
meet("end")
""",
        report=REPORT,
    )
    wanted = "headrace: loader at train.py:12, epoch 5: rank 0 is at its end after 77 batches, and rank 1 has taken 78;"
    assert any(text.startswith(wanted) for text in printed)


def test_a_rank_that_goes_on_after_an_end_raises(tmp_path: pathlib.Path) -> None:
    ended, going_on = run_ranks(
        tmp_path,
        2,
        """
one = agree()
one.begin_epoch(facts(-1, 5))
if RANK == 0:
    attempt(one.end, 77)
    announce("ended")
await_all("ended")
if RANK == 1:
    attempt(one.step, 77)
    attempt(one.step, 78)
meet("end")
""",
        report=REPORT,
    )
    assert ended == FINE
    assert going_on.startswith(FINE + "headrace: loader at train.py:12, epoch 5: rank 0 is at its end after 77 batches")


def test_a_rank_in_a_collective_operation_prints_the_end(tmp_path: pathlib.Path) -> None:
    code = """
one = agree()
one.begin_epoch(facts(-1, 5))
if RANK == 1:
    one.step(78)
    announce("in a collective operation")
    await_all("printed")
else:
    await_all("in a collective operation")
    attempt(one.end, 77)
    await_all("printed")
"""
    with started(tmp_path, code, environments(tmp_path, 2)) as (first, second):
        assert second.process.stderr is not None
        line = second.process.stderr.readline()
        (tmp_path / "printed").touch()
        assert "rank 0 is at its end after 77 batches, and rank 1 has taken 78" in finish([first])[0]
        assert second.finish() == 0
    assert line.startswith(REPORT)


def test_epochs_that_are_broken_off_are_no_error(tmp_path: pathlib.Path) -> None:
    printed = run_ranks(
        tmp_path,
        2,
        """
one = agree()
for epoch in range(3):
    one.begin_epoch(facts(78, epoch))
    for step in range(1, 20 + 10 * RANK + epoch):
        one.step(step)
one.begin_epoch(facts(78, 3))
one.step(78)
one.end(78)
meet("end")
print("fine")
""",
    )
    assert printed == [FINE] * 2


# ---- which processes meet ----

HOLD = """
one = agree()
attempt(one.begin_epoch, facts(int(os.environ["STEPS"])))
print(one.describe())
meet(os.environ["STEPS"])
await_all("over") if os.environ.get("HOLDS") else None
"""
MET = FINE + "compared with 1 other processes of this machine\n"


def test_two_jobs_at_once_do_not_see_each_other(tmp_path: pathlib.Path) -> None:
    ranks = [*environments(tmp_path, 2, STEPS="77"), *environments(tmp_path, 2, STEPS="78")]
    with started(tmp_path, HOLD, ranks) as scripts:
        assert finish(scripts) == [MET] * 4


def test_a_job_with_the_port_of_a_killed_one_is_compared_alone(tmp_path: pathlib.Path) -> None:
    first, second = environments(tmp_path, 2, STEPS="77", HOLDS="1"), environments(tmp_path, 2, STEPS="78")
    for one, other in zip(first, second, strict=True):
        other["MASTER_PORT"] = one["MASTER_PORT"]
    with started(tmp_path, HOLD, first) as scripts:
        for script in scripts:
            assert script.line() + "\n" == FINE
        scripts[0].process.kill()  # the other one still runs
        scripts[0].process.wait(100)
        with started(tmp_path, HOLD, second) as later:
            assert finish(later) == [MET] * 2


def test_restarted_ranks_do_not_see_the_ones_before(tmp_path: pathlib.Path) -> None:
    """torchrun restarts the processes with the same port and another TORCHELASTIC_RESTART_COUNT."""
    first = environments(tmp_path, 2, STEPS="77", HOLDS="1", TORCHELASTIC_RESTART_COUNT="0")
    with started(tmp_path, HOLD, first) as scripts:
        assert [script.line() for script in scripts] == ["fine"] * 2
        second = [{**rank, "STEPS": "78", "HOLDS": None, "TORCHELASTIC_RESTART_COUNT": "1"} for rank in first]
        with started(tmp_path, HOLD, second) as later:
            assert finish(later) == [MET] * 2
        (tmp_path / "over").touch()
        finish(scripts)


# ---- processes that do not take part ----

ALONE = """
before = set(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
one = agree()
start = time.monotonic()
for epoch in range(3):
    one.begin_epoch(facts())
    one.step(1)
    one.end(1)
assert time.monotonic() - start < 1
assert (set(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before
print(one.describe())
"""


def test_one_rank_does_nothing(tmp_path: pathlib.Path) -> None:
    assert run_ranks(tmp_path, 1, ALONE) == ["there is one rank\n"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"MASTER_ADDR": None}, "the environment does not name the job (MASTER_ADDR and MASTER_PORT, a Slurm step"),
        ({"LOCAL_WORLD_SIZE": "1"}, "this is the only rank of its machine"),
        ({"HEADRACE_BOARD_FD": "999"}, "board: descriptor 999 was not inherited: Bad file descriptor"),
        ({"HEADRACE_BOARD_FD": "x"}, "invalid literal for int"),
        pytest.param({"HEADRACE_FAIL": "board:EPERM"}, "board: a failpoint turns it off", marks=needs_failpoints),
        pytest.param(
            {"HEADRACE_FAIL": "socket:EACCES"}, "board: a local socket cannot be used", marks=needs_failpoints
        ),
    ],
)
def test_without_a_board_the_job_runs(tmp_path: pathlib.Path, changes: dict[str, str | None], reason: str) -> None:
    printed = run_ranks(tmp_path, 2, ALONE, **changes)
    assert all(text.startswith(reason) for text in printed), printed


def test_children_and_data_workers_take_no_part(tmp_path: pathlib.Path) -> None:
    printed = run_ranks(
        tmp_path,
        2,
        """
import multiprocessing
def take_part(one):
    one.begin_epoch(facts(5))
    one.step(100)
    one.end(100)
    print(one.describe(), flush=True)
if RANK == 0:  # before this process has joined
    worker = multiprocessing.get_context("fork").Process(target=take_part, args=[agree()], daemon=True)
    worker.start()
    worker.join()
one = agree()
one.begin_epoch(facts(78))
for other in one, agree():
    if (child := os.fork()) == 0:
        take_part(other)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
one.step(78)
one.end(78)
meet("end")
""",
    )
    no_part = "this is a data worker or a forked child\n"
    assert printed == [3 * no_part, 2 * no_part]
