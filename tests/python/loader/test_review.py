# SPDX-License-Identifier: Apache-2.0
"""Tests of the faults that a review of the code found."""

from __future__ import annotations

import collections
import inspect
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import datasets as d
import headrace
import numpy as np
import pytest
import torch
from loaders import ENGINE, METHODS, Headrace, Torch, only_headrace
from processes import Script, run, until


class Calls:
    """A dataset whose samples are the results of a function."""

    def __init__(self, make: Any, count: int = 4) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def unbatched(dataset: Any, **options: Any) -> Any:
    fixed = {"batch_size": None, "collate_fn": d.identity, "num_workers": 1, "multiprocessing_context": "fork"}
    return Headrace(dataset, **{**fixed, **options})


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_elements_of_an_array_keep_their_type(dtype: str) -> None:
    (array,) = unbatched(Calls(lambda _: np.arange(3, dtype=dtype), 1))
    assert type(array[0]) is np.dtype(dtype).type


@pytest.mark.parametrize("dtype", [torch.int4, torch.uint4, torch.uint1])
def test_a_dtype_below_one_byte_stays_itself(dtype: torch.dtype) -> None:
    (tensor,) = unbatched(Calls(lambda _: torch.zeros(16, dtype=torch.uint8).view(dtype), 1))
    assert tensor.dtype is dtype


class Late:
    """A sampler whose store does not answer."""

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise TimeoutError("the store did not answer")

    def __len__(self) -> int:
        return 5


def test_a_timeout_of_the_sampler_is_the_samplers() -> None:
    with pytest.raises(TimeoutError, match="the store did not answer"):
        list(Headrace(d.Squares(9), sampler=Late(), num_workers=1, multiprocessing_context="fork"))


@only_headrace
def test_redefined_named_tuple_class_is_the_new_one() -> None:
    def one() -> tuple[Any, type]:
        point = collections.namedtuple("point", ["a", "b"])
        globals()["point"] = point
        (got,) = unbatched(Calls(lambda i: point(i, i), 1))
        return got, point

    try:
        for _ in range(2):
            got, point = one()
            assert type(got) is point
    finally:
        globals().pop("point", None)


class NoDatabase:
    def __reduce__(self) -> Any:
        raise ConnectionError("no database today")


def test_oserror_while_pickling_the_dataset_is_raised_unchanged() -> None:
    with pytest.raises(ConnectionError) as caught:
        list(Headrace([NoDatabase()], num_workers=1, multiprocessing_context="spawn"))
    assert str(caught.value) == "no database today"


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("x",)


@only_headrace
def test_undecodable_batches_do_not_end_the_epoch_early() -> None:
    """A batch that cannot be decoded raises; the batches after it arrive."""
    iterator = iter(unbatched(Calls(lambda i: Unreadable() if i < 2 else i, 8)))
    got = []
    for _ in range(2):
        with pytest.raises(ValueError):
            next(iterator)
    got.extend(iterator)
    assert got == [2, 3, 4, 5, 6, 7]


@pytest.mark.timeout(30)
def test_timeout_ends_a_second_epochs_wait_for_a_stuck_worker() -> None:
    event = multiprocessing.get_context("fork").Event()
    loader = unbatched(d.Gate(4, 1, event), persistent_workers=True, timeout=1)
    iterator = iter(loader)
    assert until(lambda: iterator.report()["per_worker"][0]["batches"] == 1, 20)  # what its start takes is no wait
    assert next(iterator) == 0
    timer = threading.Timer(8, event.set)  # ends the test in any case
    timer.start()
    try:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            iter(loader)
    finally:
        event.set()
        timer.cancel()


DAEMON = """
import multiprocessing, threading
import datasets as d
from loaders import Headrace
context = multiprocessing.get_context("fork")
def work():
    for _ in Headrace(d.Gate(9, 2, context.Event()), num_workers=1, multiprocessing_context="fork"):
        begun.set()
begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait(30)
print("end")
"""


def test_waiting_daemon_thread_lets_interpreter_exit_silently(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, DAEMON) == "end\n"


COLLATE_MAP = """
from torch.utils.data._utils.collate import default_collate_fn_map
default_collate_fn_map[int] = lambda batch, *, collate_fn_map=None: "the user's"
from loaders import Headrace
print(*Headrace([1, 2], batch_size=2, num_workers=1, multiprocessing_context="fork"))
"""


def test_collate_map_changed_before_the_import_is_used(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, COLLATE_MAP) == "the user's\n"


SHARED_FILE = """
from loaders import Headrace
file = open(__file__, "rb", buffering=0)
class Positions:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        before = file.tell()
        file.seek(7)
        return before
if __name__ == "__main__":
    loader = Headrace(Positions(), num_workers=1, multiprocessing_context="forkserver")
    print([batch.item() for _ in range(2) for batch in loader])
"""


def test_a_file_that_the_main_module_opens_is_each_workers_own(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, SHARED_FILE) == "[0, 0]\n"


AT_TOP_LEVEL = """
import headrace
from loaders import Headrace
loaders = [kind(range(4), 2, num_workers=1, multiprocessing_context={method!r}) for kind in (Headrace, headrace.Loader)]
if __name__ == "__main__":
    print([batch.tolist() for loader in loaders for batch in loader])
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_loader_outside_the_main_guard_works(tmp_path: pathlib.Path, method: str) -> None:
    """The main module makes the loader outside `if __name__ == "__main__"`."""
    assert run(tmp_path, AT_TOP_LEVEL.format(method=method)) == f"{[[0, 1], [2, 3]] * 2}\n"


BIG = """
import sys
import torch
import datasets as d
from loaders import Headrace
from processes import private_bytes
class Tensors:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return [{index}, torch.zeros(5_000_000)]  # a set: not a plain tree
options = dict(batch_size=None, collate_fn=d.identity, num_workers=1, multiprocessing_context="fork")
iterator = iter(Headrace(Tensors(), **options))
(worker,) = iterator._workers
most = 0
for batch in iterator:
    most = max(most, private_bytes(worker.pid))
print(most < private_bytes() + 200_000_000)
"""


def test_worker_keeps_no_tensor_of_a_pickled_batch(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BIG) == "True\n"


STARVED = """
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    loader = Headrace(d.Images(64, side=1024), 1, num_workers=2, prefetch_factor=4, arena_limit=6 << 20, {method})
    for _, (image, _) in zip(range(2), loader):
        assert image.nbytes >= 1 << 20
    print("end")
"""


def test_a_break_while_workers_wait_for_memory_is_silent(tmp_path: pathlib.Path) -> None:
    code = STARVED.format(method="multiprocessing_context='fork'").replace("import datasets", SILENT)
    assert run(tmp_path, code) == "end\n"


SILENT = """import warnings
warnings.filterwarnings("ignore", "headrace: batches are copied")
import datasets"""


WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None
try:
    import headrace.torch
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_the_import_says_what_to_do(tmp_path: pathlib.Path) -> None:
    output = run(tmp_path, WITHOUT_TORCH)
    assert (
        output.startswith("headrace.torch needs torch")
        and "pip install torch" in output
        and "headrace.Loader" in output
    )


def long_epoch(kind: Any, profiled: bool) -> list[tuple[str, int, str]]:
    """Returns the places that the warnings of an epoch that is longer than __len__ name."""
    loader = kind(d.SizedCount(4, 2), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert len(loader) == 2
    with warnings.catch_warnings(record=True) as caught, torch.profiler.profile() if profiled else nullcontext():
        warnings.simplefilter("always")
        assert len(list(zip(loader, range(4), strict=True))) == 4
    return [(w.filename, w.lineno, str(w.message)) for w in caught if "IterableDataset" in str(w.message)]


@pytest.mark.parametrize("profiled", [False, True])
def test_wrong_length_warning_names_the_user_line_as_with_torch(profiled: bool) -> None:
    found = long_epoch(Headrace, profiled)
    assert [file for file, _, _ in found] == [__file__] * 2
    assert found == long_epoch(Torch, profiled)


@only_headrace
@pytest.mark.parametrize("profiled", [False, True])
def test_a_warning_of_copies_names_the_users_line(profiled: bool) -> None:
    loader = Headrace(d.Images(8, side=1024), num_workers=1, multiprocessing_context="fork", arena_limit=6 << 20)
    with torch.profiler.profile() if profiled else nullcontext():
        with pytest.warns(UserWarning, match="batches are copied") as caught:
            assert len(list(loader)) == 8
    assert [warning.filename for warning in caught if "batches are copied" in str(warning.message)] == [__file__]


@only_headrace
@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_warnings_as_errors_lose_no_batch(kind: Any) -> None:
    dataset = [np.full(1 << 20, i, np.uint8) for i in range(12)]
    loader = kind(dataset, num_workers=1, multiprocessing_context="fork", arena_limit=6 << 20)
    iterator, kept, warned = iter(loader), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while len(kept) < 12:
            try:
                kept.append(next(iterator))
            except UserWarning as warning:
                assert "batches are copied" in str(warning)
                warned += 1
    assert [int(batch[0, 0]) for batch in kept] == list(range(12))
    assert warned == 1
    assert next(iterator, "the end") == next(iterator, "the end") == "the end"


@only_headrace
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("sample", [torch.ones(3), (torch.ones(3), 1)], ids=["alone", "in a tuple"])
def test_loader_without_torch_collates_no_tensors(workers: int, sample: Any) -> None:
    list(Headrace([1, 2], num_workers=1, multiprocessing_context="fork"))  # registers the functions for tensors
    with pytest.raises(TypeError, match=r"found torch\.Tensor; give the loader a collate_fn"):
        list(headrace.Loader([sample] * 2, 2, num_workers=workers, multiprocessing_context="fork"))


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


@pytest.mark.parametrize("options", [{"num_workers": 2.0}, {"num_workers": 1, "prefetch_factor": 1.5}], ids=repr)
@pytest.mark.filterwarnings("error")
def test_an_option_of_a_wrong_type_does_not_warn_of_pickling(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        iter(Headrace(d.Squares(4), **options))


WITH_EVENT = """
import multiprocessing, threading, warnings
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    context = multiprocessing.get_context({method!r})
    gate = d.Gate(4, 1, context.Event())
    for options in ({{"dataset": [threading.Lock()]}}, {{"collate_fn": lambda batch: batch}},
                    {{"worker_init_fn": threading.Lock().acquire}},
                    {{"dataset": d.Gate(4, 1, multiprocessing.get_context("fork").Event())}}):
        try:
            iter(Headrace(**{{"dataset": gate, **options}}, num_workers=1, multiprocessing_context=context))
        except Exception as error:
            print(*error.__notes__, sep="\\n")
"""


@only_headrace
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take no notes before Python 3.11")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_argument_that_cannot_be_pickled_is_named(tmp_path: pathlib.Path, method: str) -> None:
    lines = [line for line in run(tmp_path, WITH_EVENT.format(method=method)).splitlines() if "cannot be sent" in line]
    names = ["dataset", "collate_fn", "worker_init_fn", "dataset"]
    assert [line.partition(" cannot be sent")[0] for line in lines] == [f"headrace: {name}" for name in names]


@only_headrace
def test_the_signature_has_torchs_names_and_headraces() -> None:
    ours, theirs = inspect.signature(Headrace), inspect.signature(Torch)
    own = ["arena_limit", "max_restarts", "rng", "seed", "on_bad_sample", "retries"]
    own += [
        "stall_after",
        "on_stall",
        "shutdown_timeout",
        "on_changed",
        "held_back",
        "snapshot_every_n_steps",
        "compare_ranks",
        "steps_per_epoch",
        "threads",
        "cache",
        "freeze",
        "repair",
    ]
    assert list(ours.parameters) == [*theirs.parameters, *own]
    assert inspect.signature(Headrace.__init__).parameters.keys() == {"self", *ours.parameters}
    assert ours.parameters["arena_limit"].kind is inspect.Parameter.KEYWORD_ONLY

    class Sub(Headrace):  # type: ignore[type-arg]
        def __init__(self, path: str) -> None:
            super().__init__(path)

    assert list(inspect.signature(Sub).parameters) == ["path"]


INTERRUPTED = """
import multiprocessing, multiprocessing.process
import datasets as d
from loaders import Headrace
if __name__ == "__main__":
    start = multiprocessing.process.BaseProcess.start
    def start_and_tell(process):
        start(process)
        print("started", flush=True)
    multiprocessing.process.BaseProcess.start = start_and_tell
    context = multiprocessing.get_context({method!r})
    for _ in Headrace(d.Gate(9, 0, context.Event()), num_workers=1, multiprocessing_context=context):
        pass
"""


@only_headrace
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_while_workers_start_is_the_trainers_alone(tmp_path: pathlib.Path, method: str) -> None:
    with Script(tmp_path, INTERRUPTED.format(method=method)) as script:
        assert script.line() == "started"
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.finish() == -signal.SIGINT, script.stderr
        assert re.findall("^KeyboardInterrupt", script.stderr, re.MULTILINE) == ["KeyboardInterrupt"]
        # The command line of a spawned worker, and a forked worker's name; what dataclasses make is in "<string>", too.
        assert 'File "<string>", line 1, in <module>' not in script.stderr and "Process-" not in script.stderr
        assert script.left() == []


@only_headrace
def test_no_python_runs_as_a_loader_is_dropped() -> None:
    """`for batch in DataLoader(...)` drops it at once; a Ctrl-C that is due as a callback begins would be lost."""
    loader = Headrace(d.Squares(4), num_workers=1)
    iterator = iter(loader)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del loader
    finally:
        sys.setprofile(None)
    assert called == [] and len(list(iterator)) == 4


@only_headrace
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_interrupted_worker_is_called_that(method: str) -> None:
    context = multiprocessing.get_context(method)
    reached = context.Event()
    gate = d.Gate(9, 0, context.Event(), reached)
    iterator = iter(Headrace(gate, num_workers=1, multiprocessing_context=context))
    assert reached.wait(60)
    os.kill(iterator._workers[0].pid, signal.SIGINT)
    with pytest.raises(RuntimeError, match=r"exit code 130. It was interrupted \(by Ctrl-C, or SIGINT\)"):
        next(iterator)


BOOTSTRAPPED = """
import os, signal
from multiprocessing import util
from headrace import Loader
class Anything:
    pass
anything = Anything()
if __name__ != "__main__":  # in a worker: a registered function runs while multiprocessing prepares the process
    util.register_after_fork(anything, lambda _: os.kill(os.getpid(), signal.SIGINT))
else:
    try:
        list(Loader([1], num_workers=1, multiprocessing_context="forkserver", max_restarts=0))
    except RuntimeError:
        print("ended")
"""


@only_headrace
def test_ctrl_c_before_a_worker_has_begun_ends_it_in_silence(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BOOTSTRAPPED) == "ended\n"


SLOW_IMPORT = """
import threading, time
from loaders import Headrace
if __name__ != "__main__":
    threading.Event().wait()
else:
    iterator = iter(Headrace([1, 2], num_workers=2, multiprocessing_context="spawn"))
    before = time.monotonic()
    del iterator
    print(time.monotonic() - before < 4)
"""


@only_headrace
def test_workers_that_still_import_are_not_waited_for(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, SLOW_IMPORT) == "True\n"


BLOCKED = """
import signal
from loaders import Headrace
class Mask:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
if __name__ == "__main__":
    for how in (signal.SIG_UNBLOCK, signal.SIG_BLOCK):
        signal.pthread_sigmask(how, {{signal.SIGINT}})
        loader = Headrace(Mask(), batch_size=None, num_workers=1, multiprocessing_context={method!r})
        print(*loader, Mask()[0])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_has_sigint_blocked_if_the_trainer_has(tmp_path: pathlib.Path, method: str) -> None:
    assert run(tmp_path, BLOCKED.format(method=method)) == "False False\nTrue True\n"


HANDLED = """
import os, signal
import headrace
from loaders import Headrace
from processes import is_still, until
class Waits:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        assert until(lambda: os.path.exists("listens") and is_still(os.getppid()), 60)
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.pause()
if __name__ == "__main__":
    loader = {kind}(Waits(), num_workers=1, multiprocessing_context="fork", shutdown_timeout=0.2)
    iterator = iter(loader)
    signal.signal(signal.SIGUSR1, lambda number, frame: iterator.{close}())
    open("listens", "w").close()
    try:
        next(iterator)
    except RuntimeError as error:
        print(error)
"""


@only_headrace
@pytest.mark.parametrize(("kind", "close"), [("Headrace", "_shutdown_workers"), ("headrace.Loader", "close")])
def test_signal_handler_may_close_a_waiting_loader(tmp_path: pathlib.Path, kind: str, close: str) -> None:
    """The handler closes the loader while the main thread waits for its next batch."""
    assert "closed" in run(tmp_path, HANDLED.format(kind=kind, close=close))


@only_headrace
@pytest.mark.parametrize(("option", "text"), [("num_workers", "1 to 1024"), ("prefetch_factor", "1 to 32768")])
@pytest.mark.parametrize("number", [2**32, 2**32 + 1, 2**70])
def test_counts_beyond_32_bits_are_refused(option: str, text: str, number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of so many workers
        loader = Headrace([1, 2], **{"num_workers": 1, "multiprocessing_context": "fork", option: number})
        with pytest.raises(ValueError, match=text):
            iter(loader)


class Finishes:
    """A worker that is told to end needs a while; its exit code says whether it was let."""

    def __init__(self, busy: Any) -> None:
        self.busy = busy

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index:
            self.busy.set()
            threading.Event().wait(0.5)
        return index


@only_headrace
@pytest.mark.parametrize("timeout", [1e10, 1e300])
def test_a_shutdown_timeout_beyond_all_clocks_is_no_short_one(timeout: float) -> None:
    busy = multiprocessing.get_context("fork").Event()
    iterator: Any = iter(unbatched(Finishes(busy), shutdown_timeout=timeout))
    next(iterator)
    assert busy.wait(60)
    (worker,) = iterator._workers
    del iterator
    assert worker.exitcode == 0


class Slow:
    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        assert self.gate.wait(60)
        return index


def test_timeout_that_is_not_a_number_is_no_timeout() -> None:
    gate = multiprocessing.get_context("fork").Event()
    iterator = iter(unbatched(Slow(gate), timeout=float("nan")))
    used_s = time.thread_time()
    threading.Timer(1.0, gate.set).start()
    assert next(iterator) == 0
    assert time.thread_time() - used_s < 0.3  # the thread slept


@only_headrace
@pytest.mark.parametrize(("seed", "error"), [("x", TypeError), (True, TypeError), (-1, ValueError)])
def test_install_checks_the_seed(seed: Any, error: type[Exception]) -> None:
    from headrace.torch import installed

    with pytest.raises(error, match="seed should"), installed(seed=seed):
        pass


@pytest.mark.parametrize("name", [b"no\xff", *(b"a" * i + ("€" * 60 + "/").encode() * 12 for i in range(3))])
def test_path_that_is_no_utf8_or_too_long_is_in_the_message(tmp_path: pathlib.Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with pytest.raises(FileNotFoundError, match="cannot open"):
        headrace.open(os.fsdecode(path))


def test_numpy_loader_accepts_iterable_datasets_of_torch() -> None:
    loader = headrace.Loader(d.Count(3), None, num_workers=1, multiprocessing_context="fork")
    assert [number for number, _ in loader] == [0, 1, 2]


@only_headrace
def test_workers_end_whatever_the_last_report_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator: Any = iter(Headrace([1, 2, 3, 4], num_workers=1, multiprocessing_context="fork"))
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr("headrace._base.growth.looks", lambda *_: [].pop())
        with pytest.raises(IndexError):
            iterator._shutdown_workers()
    (worker,) = iterator._workers
    assert not worker.is_alive()


def test_loaders_that_are_compared_have_epochs_of_their_own() -> None:
    class Equal(Headrace):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            return True

    loaders = [Equal([1, 2, 3], num_workers=1, multiprocessing_context="fork") for _ in range(2)]
    assert [[batch.item() for batch in loader] for loader in loaders] == [[1, 2, 3]] * 2
    if ENGINE:
        loaders[0].set_epoch(5)
        next(iter(loaders[1]))
        assert [loader.report()["batches"] for loader in loaders] == [3, 1]


KEPT_AT_EXIT = """
import sys
sys.main_module = sys.modules["__main__"]  # like dill: the globals of the script outlive the modules of headrace
import headrace
from loaders import Headrace
kept = [kind(range(4), 2, num_workers=1, persistent_workers=True) for kind in (Headrace, headrace.Loader)]
if __name__ == "__main__":
    print([len(list(loader)) for loader in kept])
"""


@only_headrace
def test_iterators_that_outlive_modules_end_in_silence(tmp_path: pathlib.Path) -> None:
    with Script(tmp_path, KEPT_AT_EXIT) as script:
        assert script.finish() == 0
        assert (script.stdout, script.stderr) == ("[2, 2]\n", "")


class OwnNames(Headrace):
    """A subclass whose names are headrace's too."""

    @property
    def seed(self) -> str:  # type: ignore[override]
        return "its own"

    def freeze(self) -> str:  # type: ignore[override]
        return "its own"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


def test_subclass_may_reuse_names_of_headrace() -> None:
    """A subclass may have methods and properties with names that headrace's loader uses."""
    loader = OwnNames(d.Squares(4), num_workers=1, multiprocessing_context="fork")
    assert len(list(loader)) == 4
    assert (loader.seed, loader.freeze()) == ("its own", "its own")


@only_headrace
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name, value", [("rng", np.random.default_rng(0)), ("seed", "abc"), ("repair", print)])
def test_subclass_attribute_with_invalid_option_value_is_named(num_workers: int, name: str, value: Any) -> None:
    loader = Headrace(d.Squares(4), num_workers=num_workers, multiprocessing_context="fork" if num_workers else None)
    setattr(loader, name, value)
    if name == "seed" and num_workers == 0:
        assert len(list(loader)) == 4  # pin_memory has no effect there
        return
    with pytest.raises((TypeError, ValueError), match=f"{name} should be") as caught:
        iter(loader)
    if sys.version_info >= (3, 11):
        assert any("rename it" in note for note in caught.value.__notes__)


def test_warnings_of_torchs_come_from_torchs_module() -> None:
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("ignore", module="torch")
        list(Headrace(d.Squares(4), pin_memory=True, **options))  # type: ignore[arg-type]
        iter(Headrace(d.Squares(4), **{**options, "num_workers": 64}))  # type: ignore[arg-type]
    assert [str(one.message) for one in caught if issubclass(one.category, UserWarning)] == []


@pytest.mark.parametrize("collate_fn", [None, d.identity])
@pytest.mark.parametrize(
    "large", ["x" * (1 << 15), "\u00e9" * (1 << 15), b"x" * (1 << 15)], ids=lambda one: type(one).__name__
)
def test_a_large_text_that_a_batch_holds_twice_arrives_as_one(large: Any, collate_fn: Any) -> None:
    loader = Headrace([large] * 4, 4, num_workers=1, multiprocessing_context="fork", collate_fn=collate_fn)
    (batch,) = loader
    assert list(batch) == [large] * 4
    assert all(one is batch[0] for one in batch)


# ---- what making a loader settles, and where it is made ----

SETTLES = """
import multiprocessing, headrace
if __name__ == "__main__":
    loader = headrace.Loader(range(4), num_workers=1, multiprocessing_context="forkserver")
    multiprocessing.set_start_method("spawn")
    print(len(list(loader)))
"""

MANY_ARGUMENTS = """
import sys, headrace
from headrace._loader.forkserver import client
sys.argv += [f"data/{number:08}.jpg" for number in range(10_000)]
if __name__ == "__main__":
    loader = headrace.Loader(range(4), num_workers=1, multiprocessing_context="forkserver")
    assert client._current
    print(len(list(loader)))
"""

WITHOUT_FOLDER = """
import os, threading, headrace
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
for options in {"sampler": [threading.Lock()]}, {"collate_fn": lambda samples: threading.Lock()}:
    try:
        list(headrace.Loader(range(4), num_workers=1, multiprocessing_context="fork", **options))
    except TypeError as error:
        print("cannot pickle '_thread.lock' object" in str(error))
"""


@pytest.mark.parametrize(
    "script, expected",
    [(SETTLES, "4\n"), (MANY_ARGUMENTS, "4\n"), (WITHOUT_FOLDER, "True\nTrue\n")],
    ids=["start method", "arguments", "folder"],
)
def test_a_script_does_what_it_may_with_torch(script: str, expected: str, tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, script) == expected
