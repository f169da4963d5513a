# SPDX-License-Identifier: Apache-2.0
"""Bad input and bad surroundings: it works, or an error says what to do; nothing hangs and nothing is left."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

import datasets as d
import numpy as np
import pytest
import torch
from compare import assert_same, failures
from loaders import ENGINE, LOADERS, METHODS, Headrace, Torch, forked, needs_failpoints, only_headrace
from processes import Script, alive, run, shared_bytes, until, with_method

MB = 1 << 20

DEATH = r"^DataLoader worker \(pid(\(s\))? \d+\) (is killed by signal: \w+|exited unexpectedly)"


def _may_unshare() -> bool:
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4k tmpfs /dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_unshare = pytest.mark.skipif(not _may_unshare(), reason="unshare -m or mount is refused here")


def with_dev_shm(options: str) -> list[str]:
    """A command prefix: the rest runs with a /dev/shm of its own."""
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"', "sh"]


# ---- a small or no /dev/shm, few descriptors ----

READ_ALL = """
{imports}
if __name__ == "__main__":
    loader = Headrace(d.Images({count}, side={side}), {batch}, num_workers=2, multiprocessing_context={method!r})
    for _ in range({epochs}):
        for number, (image, labels) in enumerate(loader):
            first = number * {batch}
            assert labels.tolist() == list(range(first, first + {batch})), labels
            assert all(bool((image[k] == first + k).all()) for k in range({batch}))
    print("read all")
"""


@only_headrace
@needs_unshare
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_of_100_mb_cross_with_64_mb_of_dev_shm(tmp_path: pathlib.Path, method: str) -> None:
    code = with_method(READ_ALL, method, count=16, side=2560, batch=4, epochs=1)
    assert run(tmp_path, code, with_dev_shm("size=64m")) == "read all\n"


COLLATE_BY_TORCH = """
import collections, torch, torch.utils.data
from headrace.torch import DataLoader

def collate(samples):
    return {{"image": torch.utils.data.default_collate([image for image, _ in samples]), "odd": {{1}}}}

dataset = [({sample}, i) for i in range(8)]
for batch in DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork", collate_fn={collate_fn}):
    image = batch["image"] if {collate_fn} else batch[0]["image"]
    assert image.shape == (4, 1 << 20) and image[3].unique().numel() == 1
print("read all")
"""


@only_headrace
@needs_unshare
@pytest.mark.parametrize(
    "sample, collate_fn",
    [
        ("torch.full((1 << 20,), float(i))", "collate"),
        ("collections.OrderedDict(image=torch.full((1 << 20,), float(i)))", "None"),
    ],
)
def test_torchs_collate_functions_put_nothing_into_dev_shm(
    tmp_path: pathlib.Path, sample: str, collate_fn: str
) -> None:
    code = COLLATE_BY_TORCH.format(sample=sample, collate_fn=collate_fn)
    assert run(tmp_path, code, with_dev_shm("size=4k")) == "read all\n"


@only_headrace
@needs_unshare
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_dev_shm_of_one_page_is_enough(tmp_path: pathlib.Path, method: str) -> None:
    code = with_method(READ_ALL, method, count=40, side=256, batch=4, epochs=2)
    assert run(tmp_path, code, with_dev_shm("size=4k")) == "read all\n"


FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    loader = Headrace(d.Tensors(20, 114, 9000), batch_size=None, num_workers=2, multiprocessing_context={method!r})
    kept = list(loader)
    assert all(bool((t == n + k).all()) for n, batch in enumerate(kept) for k, t in enumerate(batch))
    print(len(kept), sum(map(len, kept)))
"""


@only_headrace
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_114_tensors_per_batch_are_kept_with_64_descriptors(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, FEW_DESCRIPTORS.format(method=method)) == "20 2280\n"


# ---- what the system refuses ----

REPORTED = """
{imports}
if __name__ == "__main__":
    iterator = iter(Headrace(d.Images(40, side=256), 4, num_workers=2, multiprocessing_context={method!r}))
    kept = list(iterator)
    assert all(bool((image[1] == 4 * n + 1).all()) for n, (image, _) in enumerate(kept))
    print(iterator.report()["memory"])
"""


@only_headrace
def test_the_report_names_the_memory(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, with_method(REPORTED, "fork")) == "memfd\n"


@needs_failpoints
@pytest.mark.parametrize("method", METHODS)
def test_memfd_refused_falls_back_to_an_unlinked_file_in_dev_shm(tmp_path: pathlib.Path, method: str) -> None:
    def files() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith("headrace-")}

    before = files()
    assert run(tmp_path, with_method(REPORTED, method), HEADRACE_FAIL="memfd_create:EPERM") == "shm\n"
    assert until(lambda: files() <= before)


@needs_failpoints
@needs_unshare
def test_tmpdir_is_used_if_memfd_and_dev_shm_are_refused(tmp_path: pathlib.Path) -> None:
    """memfd_create is refused and /dev/shm is read-only."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {"HEADRACE_FAIL": "memfd_create:EPERM", "TMPDIR": str(folder)}
    assert run(tmp_path, with_method(REPORTED, "fork"), with_dev_shm("ro"), **environment) == "tmp\n"
    assert os.listdir(folder) == []


REFUSED = """
import warnings
import datasets as d
from loaders import Headrace
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loader = Headrace(d.Images(8, side=8), 4, num_workers=1, multiprocessing_context="fork")
    for _ in range(2):
        print([labels.tolist() for _, labels in loader])
print([str(warning.message) for warning in caught if "headrace" in str(warning.message)])
"""


@needs_failpoints
@pytest.mark.parametrize("refused", ["memfd_create:EPERM,shm_open:EPERM,tmp_open:EPERM", "eventfd:EPERM"])
def test_sandbox_that_refuses_needed_calls_gets_torch_loader(tmp_path: pathlib.Path, refused: str) -> None:
    lines = run(tmp_path, REFUSED, HEADRACE_FAIL=refused).splitlines()
    assert lines[0] == lines[1] == "[[0, 1, 2, 3], [4, 5, 6, 7]]"
    (warning,) = ast.literal_eval(lines[2])
    assert warning.startswith("headrace: using torch's DataLoader instead of headrace's: arena: ")
    assert warning.endswith("Operation not permitted (headrace help disabled)")


KILLED = """
import os, signal, time
{imports}
if __name__ == "__main__":
    loader = Headrace(d.Dying(40, 20, "SIGKILL"), num_workers=1, multiprocessing_context={method!r})
    got = []
    before = time.monotonic()
    try:
        for batch in loader:
            got.append(batch.item())
            before = time.monotonic()
    except RuntimeError as error:
        assert time.monotonic() - before < 5
        print(str(error).splitlines()[0])
    assert got == list(range(len(got))) and len(got) <= 20
"""


@needs_failpoints
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_killed_worker_is_noticed_without_pidfd(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, with_method(REPORTED, method), HEADRACE_FAIL="pidfd_open:EPERM") == "memfd\n"
    output = run(tmp_path, with_method(KILLED, method), HEADRACE_FAIL="pidfd_open:EPERM")
    assert output.startswith("DataLoader worker (pid")


ORPHANED = """
import os
{imports}
if __name__ == "__main__":
    iterator = iter(Headrace(d.Images(100), num_workers=2, multiprocessing_context={method!r}))
    print(len(list(zip(range(50), iterator))), flush=True)
    os.kill(os.getpid(), 9)
"""


@needs_failpoints
@pytest.mark.parametrize("method", METHODS)
def test_workers_end_with_trainer_if_pipes_signal_every_close(tmp_path: pathlib.Path, method: str) -> None:
    """Some kernels signal a pipe at every close of an end; the waiting workers still end with their trainer."""
    with Script(tmp_path, with_method(ORPHANED, method), HEADRACE_FAIL="async:ENOSYS") as script:
        assert script.finish() == -signal.SIGKILL
        assert script.stdout == "50\n"
        assert until(lambda: script.left() == [], 60)


FORK_REFUSED = """
import gc, os
import datasets as d
from loaders import Headrace
from process_table import children
before = len(os.listdir("/proc/self/fd"))
loader = Headrace(d.Squares(4), num_workers=2, multiprocessing_context="fork")
try:
    iter(loader)
    print("started")
except (OSError, RuntimeError) as error:
    print(type(error).__name__, str(error))
gc.collect()
assert len(os.listdir("/proc/self/fd")) == before
assert children(os.getpid()) == set()
"""


@needs_failpoints
def test_fork_refused_says_which_limit_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, FORK_REFUSED, HEADRACE_FAIL="fork:EAGAIN")
    assert any(word in output for word in ("ulimit -u", "RLIMIT_NPROC", "pids.max", "process limit")), output
    assert "num_workers" in output, output


# ---- limits ----


@only_headrace
def test_batch_above_the_limit_names_both_sizes_and_the_option() -> None:
    loader = forked(Headrace, d.Images(16, side=1024), batch_size=2, arena_limit=1 << 20)
    with pytest.raises(MemoryError) as caught:
        list(loader)
    message = str(caught.value)
    assert "arena_limit" in message and "batch_size" in message, message
    assert "8.0 MiB" in message or str(8 * MB) in message, message
    assert "1.0 MiB" in message or str(MB) in message, message


@only_headrace
@pytest.mark.parametrize("limit", [-1, 0, 1, (64 << 10) - 1, 2**62, "1 GB", 1.5, [1]], ids=repr)
def test_an_absurd_limit_is_refused_at_construction(limit: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="arena_limit"):
        forked(Headrace, d.Squares(4), arena_limit=limit)


@only_headrace
@pytest.mark.parametrize("workers", [1, 2])
def test_the_smallest_limit_that_is_taken_works(workers: int) -> None:
    loader = forked(Headrace, d.Squares(40), batch_size=4, num_workers=workers, arena_limit=64 << 10)
    assert [index for batch, _ in loader for index in batch.tolist()] == list(range(40))


def limit_of(iterator: Any) -> Any:
    return iterator.report()["limit_bytes"]


@only_headrace
def test_a_limit_that_is_set_later_is_that_of_the_next_iteration() -> None:
    loader = forked(Headrace, d.Squares(4), arena_limit=8 * MB)
    assert limit_of(iter(loader)) == 8 * MB
    loader.arena_limit = 16 * MB
    assert limit_of(iter(loader)) == 16 * MB
    with pytest.raises(ValueError, match="arena_limit"):
        loader.arena_limit = 1
    assert loader.arena_limit == 16 * MB


@only_headrace
def test_a_limit_is_not_changed_under_persistent_workers() -> None:
    loader = forked(Headrace, d.Squares(4), persistent_workers=True)
    loader.arena_limit = 8 * MB
    iterator = iter(loader)
    with pytest.raises(ValueError, match="persistent"):
        loader.arena_limit = 16 * MB
    assert loader.arena_limit == limit_of(iterator) == 8 * MB


@only_headrace
def test_the_limit_is_kept_under_its_own_name() -> None:
    loader = forked(Headrace, d.Squares(4), arena_limit=64 * MB)
    assert loader.arena_limit == 64 * MB
    assert Headrace(d.Squares(4), arena_limit=64 * MB).num_workers == 0


@only_headrace
@pytest.mark.parametrize("workers", [1, 2])
def test_limit_for_one_batch_but_not_all_prefetched_ones_works(workers: int) -> None:
    options = {"num_workers": workers, "prefetch_factor": 4, "arena_limit": 6 * MB}
    seen = 0
    for number, (image, _) in enumerate(forked(Headrace, d.Images(40, side=1024), batch_size=1, **options)):
        assert bool((image == number).all())
        seen += 1
    assert seen == 40


# ---- where the engine is off or cannot run ----

OFF = """
import json, sys, warnings
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch.utils.data
    from headrace.torch import DataLoader
    import datasets as d
    batches = []
    for _ in range(2):
        options = dict(num_workers=1, multiprocessing_context="fork", arena_limit=1 << 30)
        loader = DataLoader(d.Squares(5), batch_size=2, **options)
        iterator = iter(loader)
        batches.append([index.tolist() for index, _ in iterator])
    loader.set_epoch(3)
    assert isinstance(loader.report(), dict)
print(json.dumps(dict(
    batches=batches,
    torchs=issubclass(DataLoader, torch.utils.data.DataLoader),
    iterator=type(iterator).__name__,
    warned=[str(w.message) for w in caught if "headrace" in str(w.message).lower()],
)))
"""

BLOCKED = """
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "headrace._core":
            raise ImportError("libsomething.so.6: cannot open shared object file")
sys.meta_path.insert(0, Blocker())
"""


def assert_torchs(output: str, reason: str) -> None:
    found = json.loads(output)
    assert found["batches"] == [[[0, 1], [2, 3], [4]]] * 2
    assert found["torchs"] and found["iterator"] == "_MultiProcessingDataLoaderIter"
    assert len(found["warned"]) == 1 and reason in found["warned"][0], found["warned"]


@only_headrace
def test_headrace_disable_gives_torchs_loader_and_one_warning(tmp_path: pathlib.Path) -> None:
    assert_torchs(run(tmp_path, OFF.format(before=""), HEADRACE_DISABLE="1"), "HEADRACE_DISABLE")


@only_headrace
@pytest.mark.parametrize("value", ["0", ""])
def test_headrace_disable_of_nothing_disables_nothing(tmp_path: pathlib.Path, value: str) -> None:
    found = json.loads(run(tmp_path, OFF.format(before=""), HEADRACE_DISABLE=value))
    assert found["iterator"] != "_MultiProcessingDataLoaderIter" and found["warned"] == []


CHECKED = """
import inspect, warnings
warnings.simplefilter("ignore")
from headrace.torch import DataLoader, install
print(str(inspect.signature(DataLoader)))
for limit in ("1 GB", 1):
    for use in (lambda: DataLoader([1], arena_limit=limit), lambda: install(arena_limit=limit)):
        try:
            use()
        except (TypeError, ValueError) as error:
            print(type(error).__name__, "arena_limit" in str(error))
"""


@only_headrace
def test_options_are_checked_where_the_engine_is_off_too(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, CHECKED, HEADRACE_DISABLE="1").splitlines()
    assert output == [
        str(inspect.signature(Headrace)),
        "TypeError True",
        "TypeError True",
        "ValueError True",
        "ValueError True",
    ]


@only_headrace
def test_unloadable_extension_gives_torch_loader_and_warning(tmp_path: pathlib.Path) -> None:
    assert_torchs(run(tmp_path, OFF.format(before=BLOCKED)), "libsomething.so.6")


@only_headrace
def test_a_missing_extension_gives_torchs_loader_and_one_warning(tmp_path: pathlib.Path) -> None:
    assert_torchs(run(tmp_path, OFF.format(before='sys.modules["headrace._core"] = None')), "_core")


# ---- workers that die ----


@pytest.mark.parametrize("death", ["SIGKILL", "SIGSEGV", "exit code 3", "exit code 0", "SystemExit"])
@pytest.mark.parametrize("method", METHODS)
@LOADERS
def test_a_worker_that_dies_is_noticed_within_seconds(kind: Any, method: str, death: str) -> None:
    if method != "fork" and (death not in ("SIGKILL", "exit code 3") or (method == "spawn" and death != "SIGKILL")):
        pytest.skip("the other deaths are tested with fork")
    # plain lists: torch loses the tensors of a dead worker's last batches, and then raises whatever that gives
    options = {"num_workers": 1, "multiprocessing_context": method, "collate_fn": d.identity}
    iterator = iter(kind(d.Dying(200, 30, death), **options))
    for index in range(20):
        assert next(iterator) == [index]
    pids = [worker.pid for worker in iterator._workers]
    before = time.monotonic()
    with pytest.raises(RuntimeError, match=DEATH) as caught:
        for index, batch in enumerate(iterator, 20):
            assert batch == [index] and index < 30
    assert time.monotonic() - before < (3 if ENGINE and kind is Headrace else 15)
    assert str(pids[0]) in str(caught.value)
    del iterator, caught
    assert until(lambda: not any(map(alive, pids)))


@only_headrace
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_published_before_the_death_are_delivered(persistent: bool) -> None:
    iterator = iter(forked(Headrace, d.Dying(20, 6, "SIGKILL"), batch_size=2, persistent_workers=persistent))
    assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match=DEATH):
        next(iterator)


@only_headrace
def test_death_of_one_of_two_workers_is_noticed() -> None:
    """The death is noticed while the other worker goes on."""
    iterator = iter(forked(Headrace, d.Dying(40, 11, "exit code 3"), batch_size=None, num_workers=2))
    got = []
    with pytest.raises(RuntimeError, match=DEATH):
        for item in iterator:
            got.append(item)
    assert got == list(range(len(got))) and len(got) <= 11


@LOADERS
def test_iterator_after_a_death_ends_and_a_new_epoch_works(kind: Any) -> None:
    loader = forked(kind, d.Dying(8, 5, "SIGKILL"), batch_size=None, collate_fn=d.identity)
    for _ in range(2):
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match=DEATH):
            list(iterator)
        del iterator


# ---- batches that cannot travel ----


@only_headrace
@pytest.mark.parametrize(
    "collate, names",
    [
        (d.collate_to_lambda, ("lambda", "function")),
        (d.collate_to_lock, ("lock",)),
        (d.collate_to_generator, ("generator",)),
        (d.collate_to_non_leaf, ("requires_grad", "non-leaf")),
    ],
)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_batch_that_cannot_be_pickled_raises_in_the_trainer(
    collate: Any, names: tuple[str, ...], method: str
) -> None:
    options = {"collate_fn": collate, "num_workers": 1, "multiprocessing_context": method}
    iterator = iter(Headrace([0, 2, 4, 1, 6, 8], 2, **options))
    assert next(iterator) == [0, 2]
    with pytest.raises(Exception, match="|".join(names)) as caught:
        next(iterator)
    assert not isinstance(caught.value, StopIteration)
    assert next(iterator) == [6, 8]
    with pytest.raises(StopIteration):
        next(iterator)


@only_headrace
def test_unimportable_exception_type_raises_with_its_name() -> None:
    class Local(Exception):
        pass

    class Raises(d.Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 1:
                raise Local("from a local class")
            return index

    iterator = iter(forked(Headrace, Raises(3), batch_size=None))
    assert next(iterator) == 0
    with pytest.raises(Exception, match="from a local class") as caught:
        next(iterator)
    assert "Local" in str(caught.value) or type(caught.value) is Local
    assert next(iterator) == 2


DEEP = """
import datasets as d
from loaders import Headrace
options = dict(batch_size=None, collate_fn=d.identity, num_workers=1, multiprocessing_context="fork")
iterator = iter(Headrace(d.Deep({depth}), **options))
assert next(iterator) == d.nested(3)
try:
    found, depth = next(iterator), 0
    while found != ["core"] if len(found) == 1 and found[0] == "core" else True:
        found, depth = found[0], depth + 1
    assert depth == {depth}, depth
    print("arrived")
except Exception as error:
    print(type(error).__name__, str(error)[-300:])
"""


@only_headrace
@pytest.mark.parametrize("depth", [500, 2000, 100_000])
def test_a_deeply_nested_batch_arrives_or_raises(tmp_path: pathlib.Path, depth: int) -> None:
    output = run(tmp_path, DEEP.format(depth=depth), timeout_s=60)
    assert output == "arrived\n" or "recursion" in output.lower() or "deep" in output.lower(), output


def test_a_batch_that_contains_itself_arrives_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(d.ZOO, "self", d.self_referential)
    options = {"batch_size": None, "collate_fn": d.identity}
    found = assert_same(lambda kind: forked(kind, d.Zoo(["self", "none"]), **options))
    assert "cycle" in repr(found.events)


@only_headrace
def test_of_a_slice_of_a_gigabyte_only_the_slice_travels() -> None:
    before = shared_bytes([os.getpid()])
    iterator = iter(forked(Headrace, d.Slices(1 << 30, 40), batch_size=None, collate_fn=d.identity))
    kept = [next(iterator) for _ in range(20)]
    (worker,) = iterator._workers
    assert shared_bytes([os.getpid(), worker.pid]) - before < 64 * MB
    assert all(one.shape == (1000,) and one.untyped_storage().nbytes() < MB for one in kept)


@only_headrace
def test_far_apart_slices_of_one_storage_arrive_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> list[torch.Tensor]:
        base = torch.arange(3_000_000)
        return [base[:50], base[-50:], base[::100_000]]

    monkeypatch.setitem(d.ZOO, "ends", ends)
    ((first, last, spread),) = list(forked(Headrace, d.Zoo(["ends"]), batch_size=None, collate_fn=d.identity))
    expected = ends()
    assert all(torch.equal(a, b) for a, b in zip((first, last, spread), expected, strict=True))
    spread[0] = -1
    assert first[0] == -1


# ---- datasets and samplers that misbehave ----


@pytest.mark.parametrize("claimed", [0, 3, 9, -1, 2.5, "six", None, True, 2**70], ids=repr)
@pytest.mark.parametrize("shuffle", [False, True])
def test_dataset_with_wrong_length_behaves_as_with_torch(claimed: Any, shuffle: bool) -> None:
    if claimed == 2**70 and shuffle:
        pytest.skip("torch would draw a permutation of that length")
    options = {"batch_size": 2, "shuffle": shuffle}
    assert_same(lambda kind: forked(kind, d.Lies(6, claimed), **options), limit=12)


@pytest.mark.parametrize("good", [0, 1, 4, 5, 11])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_breaks_half_way_does_as_with_torch(good: int, persistent: bool) -> None:
    options = {"batch_size": 2, "num_workers": 2, "persistent_workers": persistent}
    found = assert_same(lambda kind: forked(kind, d.Squares(20), sampler=d.BrokenSampler(good), **options))
    assert "the sampler broke" in repr(failures(found))


def test_indices_that_are_not_integers_do_as_with_torch() -> None:
    words = {"a": 1, "b": 2.5, ("c", 1): torch.ones(2), None: "none", 2.5: b"x", frozenset({1}): 3}
    options = {"batch_size": None, "collate_fn": d.identity}
    assert_same(lambda kind: forked(kind, words, sampler=list(words), **options))
    assert_same(lambda kind: forked(kind, words, sampler=["a", "missing", "b"], **options))


@only_headrace
@pytest.mark.parametrize(
    "name, options",
    [
        ("num_workers", {"num_workers": "2"}),
        ("num_workers", {"num_workers": "2", "unknown": 1}),
        ("batch_size", {"batch_size": "4"}),
        ("timeout", {"timeout": "3", "num_workers": 1}),
        ("prefetch_factor", {"prefetch_factor": "2", "num_workers": 1}),
    ],
)
def test_string_instead_of_number_raises_as_torch_with_its_name(name: str, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        Torch(range(3), **options)  # type: ignore[arg-type]
    with pytest.raises(theirs.type) as ours:
        Headrace(range(3), **options)
    message = "\n".join([str(ours.value), *getattr(ours.value, "__notes__", [])])
    words = ', or "auto"' if name == "num_workers" else ""
    note = f"headrace: {name} is a string, {options[name]!r}; give a number (argparse converts with type=int){words}"
    assert message == f"{theirs.value}\n{note}"


@only_headrace
def test_indices_that_cannot_be_pickled_raise_in_the_trainer() -> None:
    loader = forked(Headrace, d.Echo(), sampler=[1, lambda: 2, 3], batch_size=None)
    with pytest.raises(Exception, match=r"lambda|pickle"):
        list(loader)


@pytest.mark.parametrize("method", ["fork"])
def test_dataset_of_numpy_arrays_and_lists_works(method: str) -> None:
    for dataset in ([1, 2, 3], np.arange(12).reshape(4, 3), "letters", range(7), torch.arange(5)):
        options = {"batch_size": 2, "multiprocessing_context": method}
        assert_same(lambda kind, dataset=dataset, options=options: forked(kind, dataset, **options))


SMALL_FILES = """
import resource, sys
from loaders import {kind}
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))
    try:
        print(*[len(batch) for batch in {kind}(range(8), 4, num_workers=2, multiprocessing_context="fork")])
    except OSError as error:
        print(error)
"""


@only_headrace
def test_file_size_limit_is_respected(tmp_path: pathlib.Path) -> None:
    for size in (2 << 30, 16 << 20, 2 << 20):
        assert run(tmp_path, SMALL_FILES.format(kind="Headrace", bytes=size)) == "4 4\n"
    assert "raise the limit on file sizes (ulimit -f)" in run(tmp_path, SMALL_FILES.format(kind="Headrace", bytes=4096))


WITHOUT_STANDARD = """
import os, pathlib
import numpy as np
from headrace import Loader

class Prints:
    "As code in C that prints, whatever the numbers 0, 1 and 2 are."
    def __len__(self):
        return 16
    def __getitem__(self, index):
        for fd in 0, 1, 2:
            try:
                os.write(fd, b"x" * 500)
            except OSError:
                pass
        return np.full(20_000, index, np.uint32)

if __name__ == "__main__":
    for fd in 0, 1, 2:
        os.close(fd)
    batches = iter(Loader(Prints(), 2, num_workers=2, multiprocessing_context={method!r}))
    paths = [pathlib.Path(f"/proc/self/fd/{{fd}}") for fd in (0, 1, 2)]
    names = [str(path.readlink()) for path in paths if path.is_symlink()]
    ours = [name for name in names if any(kind in name for kind in ("memfd", "eventfd", "pidfd"))]
    seen = [batch[:, 500].tolist() for batch in batches]
    pathlib.Path("seen").write_text(f"{{ours}} {{seen}}")
"""


@only_headrace
@pytest.mark.parametrize("method", METHODS)
def test_descriptors_of_closed_stdin_and_stdout_are_not_reused(tmp_path: pathlib.Path, method: str) -> None:
    """A process without stdin and stdout: no file of headrace gets their numbers."""
    assert run(tmp_path, WITHOUT_STANDARD.format(method=method)) == ""
    assert (tmp_path / "seen").read_text() == f"[] {[[i, i + 1] for i in range(0, 16, 2)]}"
