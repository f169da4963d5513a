# SPDX-License-Identifier: Apache-2.0
"""Datasets and trainers that do what they should not: it works as with torch, or an error says what to do.

`HEADRACE_LARGE=1` runs the tests that move gigabytes too.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import sys
import threading
import traceback
from typing import Any

import datasets as d
import headrace
import numpy as np
import pytest
import torch.utils.data
from compare import assert_same, failures
from loaders import METHODS, Headrace, forked, only_headrace
from processes import Script, run, with_method

# ---- where an exception came from ----

needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")


def shown(loader: Any) -> str:
    """Returns the text of the exception that iterating raises."""
    with pytest.raises(Exception) as caught:
        list(loader)
    assert "headrace: " not in str(caught.value)  # torch's text is left alone
    return "".join(traceback.format_exception(caught.value))


PAGE = " (headrace help collate)"
MAP_STYLE = [
    (d.Failing(9, (3,)), {"batch_size": 2}, "sample 3 of batch 1, [2, 3] (worker 1)"),
    (d.Failing(9, (3,)), {"batch_size": None}, "sample 3, batch 3 (worker 1)"),
    (d.Failing(9, (8,)), {"sampler": [4, 8], "batch_size": 1}, "sample 8 of batch 1, [8] (worker 1)"),
    (d.Failing(8, (0,)), {"batch_size": 8}, "sample 0 of batch 0, [0, 1, 2, 3, 4, 5, 6, 7] (worker 0)"),
    (
        d.Failing(64, (63,)),
        {"batch_size": 64},
        "sample 63 of batch 0, [0, 1, 2, 3, 4, 5, 6, 7, ...], 64 in all (worker 0)",
    ),
    (d.Failing(9, (3,)), {"batch_sampler": [(0, 1), (3, 2)]}, "sample 3 of batch 1, (3, 2) (worker 1)"),
    ({"a": 1}, {"sampler": ["a", "b"], "batch_size": None}, "sample 'b', batch 1 (worker 1)"),
]


@only_headrace
@needs_notes
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
@pytest.mark.parametrize("dataset, options, note", MAP_STYLE, ids=lambda value: value if type(value) is str else "")
def test_an_exception_names_its_batch_and_samples(kind: Any, dataset: Any, options: dict[str, Any], note: str) -> None:
    output = shown(forked(kind, dataset, num_workers=2, **options)).splitlines()
    assert output[-2] == f"headrace: {note}" and output[-1].startswith("headrace: to make it alone: headrace replay ")


@only_headrace
@needs_notes
def test_an_exception_of_an_iterable_dataset_names_its_batch() -> None:
    assert shown(forked(Headrace, d.FailingIter(3), batch_size=2)).endswith("\nheadrace: batch 1 (worker 0)\n")


@only_headrace
@needs_notes
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_exception_of_a_started_worker_names_its_batch(method: str) -> None:
    loader = forked(Headrace, d.Failing(4, (2,)), batch_size=2, multiprocessing_context=method)
    assert "\nheadrace: sample 2 of batch 1, [2, 3] (worker 0)\n" in shown(loader)


@only_headrace
@needs_notes
@pytest.mark.parametrize(
    "kind, odd_one",
    [
        ("unequal tensors", "sample 1 does not collate with those before it"),
        ("unequal numpy", "sample 1 does not collate with those before it"),
        ("unequal lists", "sample 1 does not collate with those before it"),
        ("dicts with unequal keys", "sample 1 does not collate with those before it"),
        ("unequal in the middle", "sample 2 does not collate with those before it"),
        ("none", "sample 0 does not collate"),
    ],
)
def test_samples_that_cannot_be_collated_are_named(kind: str, odd_one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(d.SAMPLES, "unequal in the middle", lambda i: {"x": i, "y": torch.ones(3 if i == 2 else 2)})
    found = assert_same(lambda loader: forked(loader, d.Samples(kind), batch_size=3))
    assert failures(found)
    assert shown(forked(Headrace, d.Samples(kind), batch_size=3)).endswith(
        f"\nheadrace: {odd_one}{PAGE}\nheadrace: batch 0, samples [0, 1, 2] (worker 0)\n"
    )


@only_headrace
@needs_notes
@pytest.mark.parametrize(
    "kind, options, odd_one",
    [
        (Headrace, {"sampler": [7, 5, 8]}, "sample 5 does not collate with those before it"),
        (Headrace, {"sampler": range(100, 163), "batch_size": 63}, "sample 137 does not collate with those before it"),
        (Headrace, {"batch_sampler": [("a", "bc", "d")]}, "sample 'bc' does not collate with those before it"),
        (headrace.Loader, {"sampler": [7, 5, 8]}, "sample 5 does not collate with those before it"),
        (Headrace, {"sampler": [7, 5, 8], "on_bad_sample": "skip"}, "sample 5 does not collate with those before it"),
    ],
)
def test_the_sample_that_does_not_collate_is_named_by_its_index(
    kind: Any, options: dict[str, Any], odd_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(d.SAMPLES, "uneven", lambda index: np.ones(3 if index in (5, "bc", 137, 150) else 2))
    if "batch_sampler" not in options:
        options = {"batch_size": 3, **options}
    assert f"\nheadrace: {odd_one}{PAGE}\n" in shown(forked(kind, d.Samples("uneven"), **options))


@only_headrace
@needs_notes
def test_sample_of_iterable_dataset_is_named_by_its_position() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([np.ones(2), np.ones(2), np.ones(3)])

    output = shown(forked(Headrace, Stream(), batch_size=3))
    assert f"\nheadrace: the sample at place 2 of the batch does not collate with those before it{PAGE}\n" in output


@only_headrace
@needs_notes
@pytest.mark.parametrize("what", ["a batch that does not pickle", "own collate_fn", "a sample was skipped"])
def test_no_sample_is_named_that_may_be_another(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(index: int) -> Any:
        if what == "a batch that does not pickle":
            return threading.Lock()
        if what == "a sample was skipped" and index == 0:
            raise ValueError("bad")
        return np.ones(3 if index == 2 else 2)

    monkeypatch.setitem(d.SAMPLES, "odd", make)
    options: dict[str, Any] = {"on_bad_sample": "skip"} if what == "a sample was skipped" else {}
    if what == "a batch that does not pickle":
        options["collate_fn"] = d.identity
    if what == "own collate_fn":
        options["collate_fn"] = np.stack
    assert "does not collate" not in shown(forked(Headrace, d.Samples("odd"), batch_size=3, **options))


@only_headrace
@needs_notes
def test_an_exception_of_worker_init_fn_is_no_batchs() -> None:
    assert "headrace: batch" not in shown(forked(Headrace, d.Squares(4), worker_init_fn=d.init_raises))


@only_headrace
@needs_notes
def test_a_batch_that_cannot_be_pickled_is_named() -> None:
    assert shown(forked(Headrace, [0, 1], collate_fn=d.collate_to_lambda)).endswith(
        "\nheadrace: batch 1, samples [1] (worker 0)\n"
    )


@only_headrace
def test_an_exception_that_takes_no_note_arrives_without() -> None:
    with pytest.raises(d.Unchangeable, match="frozen"):
        next(iter(forked(Headrace, d.Acts(d.act_raise_unchangeable))))


@only_headrace
@pytest.mark.skipif(sys.version_info >= (3, 11), reason="it is a note there")
def test_without_notes_headraces_own_loader_says_it_in_the_text() -> None:
    with pytest.raises(ValueError, match=r"headrace: batch 1, samples \[2, 3\] \(worker 0\)$"):
        list(forked(headrace.Loader, d.Failing(9, (3,)), batch_size=2))


# ---- little address space ----

# The limit is set when everything is imported: what then is left is for the arena.
LITTLE_ADDRESS_SPACE = """
import pathlib, resource, warnings
{imports}
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    loader = Headrace(d.Images(8, side={side}), 4, num_workers=2, multiprocessing_context={method!r})
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ({room} << 20),) * 2)
    try:
        for number, (image, labels) in enumerate(loader):
            assert all(bool((image[k] == labels[k]).all()) for k in range(4))
            assert labels.tolist() == list(range(4 * number, 4 * number + 4))
        print("read all")
    except (MemoryError, OSError, RuntimeError) as error:
        print(type(error).__name__, str(error))
"""


def with_room(tmp_path: pathlib.Path, room: int, side: int, method: str = "fork") -> str:
    return run(tmp_path, with_method(LITTLE_ADDRESS_SPACE, method, room=room, side=side))


@only_headrace
@pytest.mark.parametrize("room", [0, 16])
def test_an_arena_that_cannot_be_mapped_names_the_limit(tmp_path: pathlib.Path, room: int) -> None:
    output = with_room(tmp_path, room, 256)
    assert output.startswith("MemoryError arena: cannot map ") and "ulimit -v" in output


@only_headrace
@pytest.mark.parametrize(
    "method, room, side",
    [
        ("fork", 64, 256),
        ("fork", 1024, 1024),
        ("fork", 16384, 1024),
        ("forkserver", 256, 1024),
    ],
)
def test_little_address_space_is_enough(tmp_path: pathlib.Path, method: str, room: int, side: int) -> None:
    assert with_room(tmp_path, room, side, method) == "read all\n"


@only_headrace
def test_batch_over_the_address_space_limit_names_that_limit(tmp_path: pathlib.Path) -> None:
    output = with_room(tmp_path, 1024, 4096)
    assert output.startswith("MemoryError headrace: a batch of 256.0 MiB (batch_size 4 x 64.0 MiB) does not fit"), (
        output
    )
    assert "ulimit -v" in output and "arena_limit" not in output


# ---- a limit on file sizes ----

SMALL_FILES = """
import os, resource, warnings
{imports}
class Heavy(d.Images):
    ballast = None
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit} << 20,) * 2)
    dataset = Heavy(24, side={side})
    dataset.ballast = os.urandom({ballast} << 20)
    loader = Headrace(dataset, 4, num_workers=2, multiprocessing_context={method!r})
    try:
        kept = list(loader) if {keeps} else loader
        for number, (image, labels) in enumerate(kept):
            assert all(bool((image[k] == labels[k]).all()) for k in range(4))
            assert labels.tolist() == list(range(4 * number, 4 * number + 4))
        print("read all")
    except (MemoryError, OSError, RuntimeError) as error:
        print(type(error).__name__, str(error))
"""


def with_small_files(tmp_path: pathlib.Path, limit: int, side: int, **more: Any) -> str:
    options = {"method": "fork", "ballast": 0, "keeps": False, **more}
    method = options.pop("method")
    return run(tmp_path, with_method(SMALL_FILES, method, limit=limit, side=side, **options))


@only_headrace
@pytest.mark.parametrize(
    "limit, side, more",
    [
        (16, 64, {}),
        (16, 64, {"keeps": True}),
        (16, 512, {}),  # batches of 4 MiB
        (16, 512, {"keeps": True}),
        (16, 800, {}),  # 10 MB
        (4, 256, {}),  # 1 MiB
        (2, 64, {"method": "forkserver"}),
    ],
)
def test_batches_that_fit_the_file_limit_arrive(
    tmp_path: pathlib.Path, limit: int, side: int, more: dict[str, Any]
) -> None:
    assert with_small_files(tmp_path, limit, side, **more) == "read all\n"


@only_headrace
def test_a_batch_over_the_file_limit_names_it(tmp_path: pathlib.Path) -> None:
    output = with_small_files(tmp_path, 16, 1024)
    assert output.startswith("MemoryError headrace: a batch of 16.0 MiB (batch_size 4 x 4.0 MiB) does not fit"), output
    assert "ulimit -f" in output and "arena_limit" not in output and "ulimit -v" not in output


@only_headrace
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_over_the_file_limit_reaches_workers(tmp_path: pathlib.Path, method: str) -> None:
    assert with_small_files(tmp_path, 4, 64, method=method, ballast=9) == "read all\n"


FROZEN_SMALL_FILES = """
import os, pickle, resource, headrace
data = [os.urandom(1 << 20) for _ in range(6)]
frozen = headrace.freeze(data)
pickled = pickle.dumps(frozen)
del frozen
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20,) * 2)
assert list(pickle.loads(pickled)) == data
for path in (None, "image"):
    try:
        headrace.freeze(data, path)
    except OSError as error:
        print(error)
print(os.path.exists("image"))
"""


@only_headrace
def test_frozen_data_over_the_file_limit_loads_or_raises(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, FROZEN_SMALL_FILES)
    assert (
        output.count("over the limit on file sizes, which also applies to shared memory; raise it (ulimit -f)") == 2
    ), output
    assert output.endswith("False\n")


@only_headrace
def test_worker_without_address_space_raises_next_epoch_works() -> None:
    loader = forked(Headrace, d.Images(8, side=4096), batch_size=4, worker_init_fn=d.init_allows_no_more_address_space)
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises((MemoryError, RuntimeError), match="memory"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    loader.worker_init_fn = None
    assert len(list(loader)) == 2


# ---- gigabytes ----


@only_headrace
@pytest.mark.skipif(os.environ.get("HEADRACE_LARGE") != "1", reason="moves gigabytes: HEADRACE_LARGE=1")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:headrace. batches are copied")
def test_a_batch_of_5_gib_crosses() -> None:
    (batch,) = forked(Headrace, d.Huge(5 << 30), batch_size=None, prefetch_factor=1)
    assert batch.shape == (5 << 30,)
    assert (batch[-1], batch[-2], batch[1 << 32], batch[(1 << 32) - 1]) == (7, 0, 5, 0)


@only_headrace
@pytest.mark.skipif(os.environ.get("HEADRACE_LARGE") != "1", reason="moves gigabytes: HEADRACE_LARGE=1")
@pytest.mark.timeout(600)
def test_a_batch_of_5_gib_above_the_limit_says_both_sizes() -> None:
    with pytest.raises(MemoryError, match=r"a batch of 5\.0 GiB does not fit the limit of 1\.0 GiB"):
        list(forked(Headrace, d.Huge(5 << 30), batch_size=None, arena_limit=1 << 30))


# ---- datasets that start threads and processes ----


@pytest.mark.parametrize(
    "method, act",
    [
        *itertools.product(["fork", "forkserver"], [d.act_thread, d.act_pool, d.act_subprocess, d.act_fork]),
        ("spawn", d.act_fork),
    ],
)
def test_a_dataset_may_start_threads_and_processes(method: str, act: Any) -> None:
    options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": method}
    found = assert_same(lambda kind: kind(d.Acts(act), **options))
    assert not failures(found)


def test_multiprocessing_in_a_worker_is_refused_as_with_torch() -> None:
    found = assert_same(lambda kind: forked(kind, d.Acts(d.act_process, 2), batch_size=None))
    assert "daemonic processes are not allowed to have children" in repr(failures(found))


class Refreshed:
    """Samples are cached containers, whose items a thread of the worker replaces."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.cache: list[Any] = []

    def __len__(self) -> int:
        return 64 * 30

    def _new_sample(self, number: float = 0) -> Any:
        return {"x": torch.full((3,), number), "y": 0} if self.kind is dict else [torch.full((3,), number), 0]

    def _refresh(self) -> None:
        for number in itertools.count():
            for sample in self.cache:
                sample["x" if self.kind is dict else 0] = torch.full((3,), float(number))

    def __getitem__(self, index: int) -> Any:
        if not self.cache:
            torch.set_num_threads(1)
            self.cache = [self._new_sample() for _ in range(64)]
            threading.Thread(target=self._refresh, daemon=True).start()
        return self.cache[index % 64]


@pytest.mark.parametrize("kind", [dict, list])
def test_samples_that_a_thread_changes_do_not_end_the_worker(kind: type) -> None:
    assert sum(1 for _ in forked(Headrace, Refreshed(kind), batch_size=64)) == 30


LEAVES_A_CHILD = """
import os, signal, time
{imports}
from processes import is_still, until
if __name__ == "__main__":
    options = dict(batch_size=None, num_workers=1, multiprocessing_context={method!r})
    iterator = iter(Headrace(d.Acts(d.act_leave_a_child, 40, side=512), **options))
    child = [next(iterator)[1] for _ in range(2)][1]
"""

AND_ENDS = """
    kept = list(iterator)
    before = time.monotonic()
    del iterator
    took = time.monotonic() - before
    assert until(lambda: is_still(child), 60)  # the child pauses, and has closed the inherited descriptors
    names = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
    maps = open(f"/proc/{child}/maps").read()
    os.kill(child, signal.SIGKILL)
    print(took < 3, any("memfd:headrace" in name or "eventfd" in name for name in names), "memfd:headrace" in maps)
"""

AND_IS_KILLED = """
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    before = time.monotonic()
    try:
        list(iterator)
    except RuntimeError as error:
        print(str(error).split(". ")[0].split(") ")[1], time.monotonic() - before < 5)
    del iterator
    os.kill(child, signal.SIGKILL)
"""


@only_headrace
@pytest.mark.parametrize("method", METHODS)
def test_child_that_outlives_its_worker_keeps_no_memory(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, with_method(LEAVES_A_CHILD, method) + AND_ENDS) == "True False False\n"


@only_headrace
def test_death_is_reported_at_once_while_a_child_lives(tmp_path: pathlib.Path) -> None:
    waits = (  # longer than the trainer waits after it learns of the death
        "from headrace._loader.trainer import crew, shutdown\ncrew.SLICE_S = shutdown.EXIT_CODE_S = 30.0\n"
    )
    code = waits + with_method(LEAVES_A_CHILD, "fork") + AND_IS_KILLED
    assert run(tmp_path, code) == "is killed by signal: Killed True\n"


@only_headrace
def test_a_child_that_goes_on_as_the_worker_disturbs_nothing() -> None:
    batches = list(forked(Headrace, d.Acts(d.act_fork_that_returns, 8), batch_size=2))
    assert [indices.tolist() for indices, _, _ in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(bool((image[k] == indices[k]).all()) for indices, _, image in batches for k in range(2))


# ---- workers that close what is not theirs ----

CLOSED = "the arena's descriptors were closed in worker 0"

CLOSES = """
{imports}
if __name__ == "__main__":
    options = dict(num_workers=1, multiprocessing_context={method!r}, worker_init_fn={init})
    try:
        for indices, _, image in Headrace(d.Acts(d.{act}, 40, side={side}), 2, **options):
            assert bool((image[1] == indices[1]).all())
        print("read all")
    except (OSError, RuntimeError) as error:
        print(type(error).__name__, str(error))
"""


# A small batch needs no more memory from the kernel, and is published: then the worker ends at its next wait.
@only_headrace
@pytest.mark.parametrize(
    "method, act, side",
    [
        ("fork", "act_close_all", 8),
        ("fork", "act_close_all", 1024),
        ("fork", "act_reuse_numbers", 8),
        ("fork", "act_reuse_numbers", 256),
        ("fork", "act_reuse_numbers_for_pipes", 8),
        ("spawn", "act_close_all", 256),
        ("forkserver", "act_close_all", 256),
    ],
)
def test_a_worker_that_closes_all_descriptors_says_so(tmp_path: pathlib.Path, method: str, act: str, side: int) -> None:
    code = with_method(CLOSES, method, init=None, act=act, side=side)
    with Script(tmp_path, code, HEADRACE_TEST_FOLDER=str(tmp_path)) as script:
        assert script.finish() == 0
        assert CLOSED in script.stdout + script.stderr
        assert script.stdout.startswith(("OSError Caught OSError", "RuntimeError DataLoader worker (pid(s) "))
        assert script.left() == []
    assert not any(path.stat().st_size for path in tmp_path.glob("own *"))  # nothing of ours went into them


@only_headrace
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_worker_init_fn_that_closes_all_descriptors_says_so(tmp_path: pathlib.Path, method: str) -> None:
    code = with_method(CLOSES, method, init="d.close_all", act="int", side=256).replace("d.int", "int")
    with Script(tmp_path, code) as script:
        assert script.finish() == 0
        assert CLOSED in script.stdout + script.stderr  # the latter if no task has come yet that could have failed
        assert script.left() == []


# ---- a dataset that returns a value for attributes that it does not have ----


class Particular:
    """Raises what it likes for an attribute that it does not have."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return range(4)[index]

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class ParticularStream:
    def __iter__(self) -> Any:
        return iter(range(4))

    __getattr__ = Particular.__getattr__


@only_headrace
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Particular(), ParticularStream()], ids=["by index", "a stream"])
def test_dataset_may_raise_anything_for_unknown_attributes(dataset: Any, workers: int) -> None:
    batches = headrace.Loader(dataset, 2, num_workers=workers, multiprocessing_context="fork")
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


# ---- a trainer in which other code waits for its children ----

WAITS = {
    "a handler": """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
""",
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "a thread": """
def reap():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.001)
threading.Thread(target=reap, daemon=True).start()
""",
}

REAPED = """
import os, signal, threading, time
{imports}
if __name__ == "__main__":
    exec({waits!r})
    options = dict(num_workers=2, multiprocessing_context={method!r})
    for _ in range(2):
        assert [index.item() for _, index in Headrace(d.Images(10), **options)] == list(range(10))
    iterator = iter(Headrace(d.Dying(100, 20, "exit code 3"), **options))
    try:
        list(iterator)
    except RuntimeError as error:
        print(error)
    before = time.monotonic()
    del iterator
    assert time.monotonic() - before < 3
"""


@only_headrace
@pytest.mark.parametrize("who", WAITS)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_trainer_that_reaps_exit_codes_itself_still_sees_a_death(tmp_path: pathlib.Path, method: str, who: str) -> None:
    output = run(tmp_path, with_method(REAPED, method, waits=WAITS[who]), PYTHONWARNINGS="ignore")  # of fork
    assert output.startswith("DataLoader worker (pid(s) ")
    is_taken = method == "fork" and "SIGCHLD" in output and "os.wait" in output  # whichever of the two waited first
    assert is_taken or "with exit code 3" in output


# ---- indices, samples and batches ----


@only_headrace
def test_an_index_that_is_a_generator_raises_in_the_trainer() -> None:
    loader = forked(Headrace, d.Echo(), sampler=[1, (i for i in range(3)), 3], batch_size=None)
    with pytest.raises(TypeError, match="generator"):
        list(loader)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_huge_and_negative_indices_do_as_with_torch(batch_size: int | None) -> None:
    sampler = [0, 2**63 - 1, 2**63, -(2**63), 2**70, -(2**70), -1, -3]
    options = {"sampler": sampler, "batch_size": batch_size, "collate_fn": d.identity}
    assert_same(lambda kind: forked(kind, d.Echo(), **options))
    assert failures(assert_same(lambda kind: forked(kind, [1, 2, 3], **options)))


@pytest.mark.parametrize("batch_size", [None, 1, 2, 8])
def test_samples_of_another_type_each_time_do_as_with_torch(batch_size: int | None) -> None:
    assert_same(lambda kind: forked(kind, d.Mixture(), batch_size=batch_size))


@only_headrace
def test_collate_returning_same_objects_keeps_earlier_batches() -> None:
    kept = list(forked(Headrace, d.Squares(16), batch_size=2, collate_fn=d.CollateInPlace()))
    for number, (large, small, counts, array) in enumerate(kept, 1):
        assert bool((large == number).all()) and bool((small == number).all())
        assert counts == [number] and bool((array == number).all())
