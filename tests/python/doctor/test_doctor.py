# SPDX-License-Identifier: Apache-2.0
"""headrace.doctor.check names exactly what multiprocessing would stop at."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import threading
import time
import types
from multiprocessing import context, reduction
from typing import Any

import numpy as np
import pytest
import unpicklable
from drawn import draws
from headrace import doctor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


class NoProcess:
    DupFd = int

    @staticmethod
    def duplicate_for_child(fd: int) -> int:
        return fd


needs_torch = pytest.mark.skipif(unpicklable.torch is None, reason="torch is not installed")


def pickles(value: Any) -> bool:
    """Pickles an object as multiprocessing pickles an argument of a process."""
    context.set_spawning_popen(NoProcess)  # type: ignore[arg-type]
    try:
        reduction.ForkingPickler(io.BytesIO()).dump(value)
        return True
    except Exception:
        return False
    finally:
        context.set_spawning_popen(None)


def errors(report: doctor.Report) -> list[str]:
    return [one.path for one in report.findings if one.severity == "error"]


@pytest.mark.parametrize("what", unpicklable.BAD)
def test_unpicklable_object_is_named(what: str) -> None:
    make, paths = unpicklable.BAD[what]
    made = make()
    report = doctor.check(made)
    assert errors(report) == paths
    assert not report.ok and report.exit_code == 2
    assert all(one.reason and one.fix and one.type for one in report.findings)
    assert not pickles(made)


@pytest.mark.parametrize("what", unpicklable.BAD)
def test_a_path_is_an_expression_for_the_object(what: str) -> None:
    make, _ = unpicklable.BAD[what]
    obj = make()
    for one in doctor.check(obj).findings:
        if "list(" not in one.path:
            found = eval(one.path, {"obj": obj})
            assert not pickles(found)


@pytest.mark.parametrize("what", unpicklable.GOOD)
def test_picklable_object_is_not_reported(what: str) -> None:
    made = unpicklable.GOOD[what]()
    assert doctor.check(made).findings == ()
    assert doctor.check([unpicklable.WithAttributes(x=made)]).findings == ()
    assert pickles(made)


# ---- messages ----


HERE = "test_doctor.py"


class Sets:
    def __init__(self) -> None:
        self.lock = threading.Lock()  # line of "set"
        self.views = {"a": {"b": {}.keys()}}  # line of "views"


def line_of(comment: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if f'# line of "{comment}"' in line)


class Makes:
    @staticmethod
    def load() -> Any:
        return lambda: 0  # line of "lambda"


def test_line_that_set_or_defined_an_object_is_reported() -> None:
    first, second = doctor.check(Sets()).findings
    assert first.where.startswith("set in ") and first.where.endswith(f"{HERE}:{line_of('set')}")
    assert second.where.endswith(f"{HERE}:{line_of('views')}")
    (third,) = doctor.check([Makes.load()], name="x").findings
    assert third.path == "x[0]" and third.type == "function <lambda>"
    assert third.where.endswith(f"{HERE}:{line_of('lambda')}, in Makes.load")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("environment", "the environment of this process"),
        ("weak proxy", "a weak reference refers to an object of this process only"),
        ("ctypes buffer", "an address in the memory of this process"),
        ("reduce with an iterator that raises", "pickling it raises ZeroDivisionError: "),
    ],
)
def test_the_reason_is_in_plain_words(what: str, reason: str) -> None:
    (found,) = doctor.check(unpicklable.BAD[what][0]()).findings
    assert found.reason.startswith(reason)


def test_line_where_a_hook_raises_is_reported() -> None:
    (found,) = doctor.check(unpicklable.Raises()).findings
    assert "ValueError: no state today" in found.reason and "unpicklable.py:" in found.where


def test_the_same_cause_is_reported_once_and_counted() -> None:
    class Item:
        pass

    dataset = unpicklable.WithAttributes(
        items=[unpicklable.WithAttributes(lock=threading.Lock(), number=number) for number in range(10_000)]
    )
    report = doctor.check(dataset, name="dataset")
    (found,) = report.findings
    assert (found.path, found.more) == ("dataset.items[0].lock", 9_999)
    text = str(report)
    assert "10,000 objects are in the way" in text and "and 9,999 more like dataset.items[0].lock" in text


def test_the_report_is_text_and_json() -> None:
    report = doctor.check(unpicklable.WithAttributes(f=lambda: 0, k={}.keys()), "forkserver", name="dataset")
    assert "dataset cannot be sent to worker processes (start method: forkserver). 2 objects are in the way" in str(
        report
    )
    data = json.loads(report.to_json())
    assert data["ok"] is False and [one["path"] for one in data["findings"]] == ["dataset.f", "dataset.k"]
    assert {"path", "type", "reason", "where", "fix", "severity"} <= data["findings"][0].keys()
    assert max(map(len, str(report).splitlines())) <= 120


def test_size_is_reported_by_attribute() -> None:
    made = unpicklable.WithAttributes(
        words=["x" * 60 + str(number) for number in range(700_000)],
        few=[1],
        inner=unpicklable.WithAttributes(a=bytes(5 << 20)),
    )
    report = doctor.check(made)
    assert report.ok
    assert report.bytes == pytest.approx(len(reduction.ForkingPickler.dumps(made)), rel=0.01)
    sizes = {one.path: one.bytes for one in report.sizes}
    assert sizes["obj.inner.a"] == pytest.approx(5 << 20, rel=0.01) and sizes["obj.words"] > 40 << 20
    assert "headrace.freeze" in str(report) and "obj.words" in str(report)


@needs_torch
def test_tensors_are_shared_and_left_as_they_are() -> None:
    tensor = unpicklable.torch.zeros(1 << 20)
    report = doctor.check([tensor, tensor[1:], unpicklable.torch.ones(3)])
    assert report.ok and not tensor.is_shared()
    assert report.bytes < 1 << 10 and (4 << 20) <= report.shared_bytes < (4 << 20) + 100


def test_an_array_over_a_file_is_a_warning_with_its_size(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "a", dtype="u1", mode="w+", shape=(3 << 20,))
    report = doctor.check(unpicklable.WithAttributes(x=[mapped]))
    (found,) = report.findings
    assert report.ok and report.exit_code == 1
    assert (found.path, found.severity) == ("obj.x[0]", "warning") and "3.0 MiB" in found.reason


def test_the_object_is_not_changed() -> None:
    box = unpicklable.WithAttributes(x=[1], t=np.zeros(3), lock=threading.Lock(), trap=unpicklable.Trap())
    before = dict(vars(box))
    doctor.check(box)
    doctor.check(box, "fork")
    assert vars(box).keys() == before.keys() and all(vars(box)[key] is before[key] for key in before)


def test_fork_pickles_no_object() -> None:
    report = doctor.check(unpicklable.WithAttributes(lock=threading.Lock(), f=lambda: 0), "fork")
    assert report.findings == () and report.ok


def test_a_wrong_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method should be one of"):
        doctor.check(1, "thread")


@needs_torch
def test_a_loader_is_checked_part_by_part() -> None:
    loader = unpicklable.torch.utils.data.DataLoader([1, lambda: 0], collate_fn=lambda batch: batch)  # type: ignore[list-item]
    assert errors(doctor.check(loader, name="loader")) == ["loader.dataset[1]", "loader.collate_fn"]


def test_object_in_a_batch_that_only_passes_at_a_start_is_named() -> None:
    from headrace._pickles.check import check_batch

    lock = unpicklable.GOOD["lock of multiprocessing's"]()
    assert doctor.check([lock]).ok
    assert errors(check_batch({"x": lock})) == ["batch['x']"]
    assert check_batch({"x": [1], "y": [np.zeros(2)]}).ok


# ---- against the pickler itself ----


_LEAVES: dict[str, Any] = {
    "1": lambda: 1,
    "text": lambda: "x",
    "lock": threading.Lock,
    "lambda": lambda: lambda: 0,
    "keys": lambda: {}.keys(),
    "class": lambda: unpicklable.WithAttributes,
    "drops": unpicklable.Drops,
    "raises": unpicklable.Raises,
    "array": lambda: np.zeros(2),
    "objects": lambda: np.array([1, None], dtype=object),
    "local": lambda: unpicklable.local_class()(),
}


def _wrap(children: Any) -> Any:
    return st.one_of(
        st.lists(children, max_size=3),
        st.tuples(children, children),
        st.dictionaries(st.sampled_from("ab"), children, max_size=2),
        st.builds(lambda x: unpicklable.WithAttributes(x=x), children),
        st.builds(unpicklable.Slotted, children),
        st.builds(unpicklable.Data, children),
        st.builds(unpicklable.ReducesToAttribute, children),
        st.builds(unpicklable.Point, children, children),
        st.builds(lambda x: unpicklable.ListOf([x]), children),
        st.builds(lambda x: unpicklable.DictOf(k=x), children),
        st.builds(lambda x: unpicklable.functools.partial(unpicklable.plain, x), children),
        st.builds(unpicklable.Registered, children),
        st.builds(unpicklable.Says, children),
    )


_OBJECTS = st.recursive(st.sampled_from(sorted(_LEAVES)).map(lambda name: _LEAVES[name]()), _wrap, max_leaves=8)


@settings(max_examples=draws(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(_OBJECTS)
def test_check_agrees_with_multiprocessing_on_any_object(made: Any) -> None:
    report = doctor.check(made)
    assert report.ok == pickles(made)
    for one in report.findings:
        if "list(" not in one.path:
            assert not pickles(eval(one.path, {"obj": made}))


# ---- what does not come back ----


def test_object_that_does_not_unpickle_is_named() -> None:
    made = unpicklable.WithAttributes(fine=[1], error=[unpicklable.Unloadable(1, 2)], other=unpicklable.BreaksOnLoad())
    assert errors(doctor.check(made)) == ["obj.error[0]"]
    report = doctor.check(made, load=True)
    assert errors(report) == ["obj.error[0]", "obj.other"]
    first, second = report.findings
    assert "TypeError" in first.reason and "super().__init__" in first.fix
    assert "cannot be made again" in second.reason and "unpicklable.py:" in second.where


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_object_that_unpickles_is_not_reported(method: str) -> None:
    names = ("lock of multiprocessing's", "pipe", "arrays", "slots", "cycle")
    made = [unpicklable.GOOD[name]() for name in names]
    assert doctor.check(made, method, load=True).findings == ()


@needs_torch
def test_tensors_are_loaded_again_without_being_shared() -> None:
    tensor = unpicklable.torch.ones(3)
    assert doctor.check([tensor, unpicklable.GOOD["tensor subclass"]()], load=True).findings == ()
    assert not tensor.is_shared()


# ---- time ----


def seconds(*calls: Any) -> list[float]:
    """The least of each, which take turns. Of this thread: what else the machine does is no matter."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(5):
        for call, of_call in zip(calls, times, strict=True):
            gc.collect()
            start = time.thread_time()
            call()
            of_call.append(time.thread_time() - start)
    return [min(of_call) for of_call in times]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [str(number) for number in range(300_000)],
        lambda: [unpicklable.Data(number) for number in range(60_000)],
        lambda: [unpicklable.SlottedData(number) for number in range(30_000)],
        lambda: [np.zeros(3) for _ in range(30_000)],
        lambda: {number: [number, str(number)] for number in range(100_000)},
    ],
    ids=["texts", "instances", "slots", "arrays", "containers"],
)
def test_check_takes_at_most_twice_as_long_as_pickling(make: Any) -> None:
    made = make()

    def is_quick() -> bool:
        ours, pickles = seconds(lambda: doctor.check(made), lambda: reduction.ForkingPickler.dumps(made))
        return ours < 2 * pickles

    assert any(is_quick() for _ in range(3))


def test_unpicklable_object_among_scalars_is_found_at_once() -> None:
    made = [str(number) for number in range(1_000_000)] + [threading.Lock()]
    assert seconds(lambda: doctor.check(made))[0] < 0.2
    assert errors(doctor.check(made)) == ["obj[1000000]"]


def test_one_of_many_instances_is_found_before_pickling_ends() -> None:
    fine = [unpicklable.Data(number) for number in range(100_000)]
    ours, pickles = seconds(
        lambda: doctor.check([*fine, threading.Lock()]), lambda: reduction.ForkingPickler.dumps(fine)
    )
    assert ours < 2 * pickles


@pytest.mark.parametrize(
    "make",
    [
        lambda number: unpicklable.ReducesToAttribute(number),
        lambda number: unpicklable.States(number),
        lambda number: unpicklable.Registered(None),
        lambda number: unpicklable.Point(number, str(number)),
        lambda number: unpicklable.ListOf([number]),
        lambda number: unpicklable.DictOf(a=number),
        lambda number: unpicklable.functools.partial(unpicklable.plain, number),
        lambda number: unpicklable.Color.RED,
    ],
    ids=["reduce", "getstate", "copyreg", "named tuple", "list", "dict", "partial", "enum"],
)
def test_one_of_many_reductions_is_found_in_a_few_pickling_times(make: Any) -> None:
    made = [*map(make, range(50_000)), threading.Lock()]
    assert errors(doctor.check(made)) == ["obj[50000]"]
    ours, pickles = seconds(lambda: doctor.check(made), lambda: reduction.ForkingPickler.dumps(made[:-1]))
    assert ours < 4 * max(0.02, pickles)  # 20 to 50 times, where each is looked at by Python


def test_object_freed_by_a_reduction_is_not_mistaken_for_another() -> None:
    made = [unpicklable.Renames() for _ in range(1000)]  # each makes a lock, and the next may get its address
    (found,) = doctor.check(made).findings
    assert (found.path, found.more) == ("obj[0].__getstate__()['made']", 999)


# ---- packages that are not always there ----


def test_handles_of_h5py_are_named(tmp_path: Any) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        report = doctor.check(unpicklable.WithAttributes(file=file, rows=[file.create_dataset("a", data=[1])]))
    assert errors(report) == ["obj.file", "obj.rows[0]"]
    assert all("HDF5" in one.reason for one in report.findings)


def test_handles_of_lmdb_are_named(tmp_path: Any) -> None:
    lmdb = pytest.importorskip("lmdb", reason="lmdb is not installed")
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        report = doctor.check(unpicklable.WithAttributes(environment=environment, transaction=transaction))
    assert errors(report) == ["obj.environment", "obj.transaction"]
    assert all("database" in one.reason for one in report.findings)


# ---- what a forked process cannot use ----


class Stream:
    __module__ = "torch.cuda.streams"


@needs_torch
def test_objects_of_cuda_are_in_the_way_of_fork_only() -> None:
    class OnCuda(unpicklable.torch.Tensor):  # type: ignore[misc, name-defined]
        """Imitates as much of a CUDA tensor as can be had without one."""

        device = types.SimpleNamespace(type="cuda")  # type: ignore[assignment]

    tensor = unpicklable.torch.zeros(3).as_subclass(OnCuda)
    made = unpicklable.WithAttributes(a=[tensor, unpicklable.torch.zeros(3)], d=unpicklable.DictOf(s=Stream()))
    report = doctor.check(made, "fork")
    assert errors(report) == ["obj.a[0]", "obj.d['s']"]
    assert all("forked" in one.reason for one in report.findings)


# ---- the main module ----

MAIN = """
from headrace import doctor

def top(x):
    return x

if __name__ == "__main__":
    def guarded(x):
        return x

    class Guarded:
        pass

    for report in (doctor.check({"top": top, "f": guarded, "o": [Guarded()]}), doctor.check(guarded, "fork")):
        print([one.path for one in report.findings], [one.where.rpartition(":")[2] for one in report.findings])
        print(*(one.reason for one in report.findings), sep="\\n")
"""


def output_lines(*command: str, stdin: str = "") -> list[str]:
    done = subprocess.run([sys.executable, *command], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_names_below_the_main_guard_do_not_exist_in_a_worker(tmp_path: Any) -> None:
    (tmp_path / "script.py").write_text(MAIN)
    lines = output_lines(str(tmp_path / "script.py"))
    assert lines[0] == "[\"obj['f']\", \"obj['o'][0]\"] ['8', '11']"
    assert all('is defined under `if __name__ == "__main__":`' in line for line in lines[1:3])
    assert lines[3] == "[] []"


CANNOT_BE_UNPICKLED = """
class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(text)
"""
BOTH = """
import sys
from headrace import doctor
import refused

class Dataset:
    def __init__(self):
        self.own, self.imported = Refused(1, "no"), refused.Refused(1, "no")

if __name__ == "__main__":
    report = doctor.check(Dataset(), sys.argv[1], "dataset", load=len(sys.argv) > 2)
    for one in report.findings:
        print(one.path, one.reason, one.where, one.fix, sep="; ")
"""
CAN_BE_UNPICKLED = """
import functools, subprocess

class Plain(Exception):
    pass

class Passes(Exception):
    def __init__(self, code, text="none", *more, key=None):
        super().__init__(code, text, *more)

class Reduces(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return Reduces, (self.code, *self.args)

class ReducesByFunction(Exception):
    def __init__(self, code, text):
        super().__init__(text)

    def __reduce__(self):
        return make, (self.args[0],)

def make(text):
    return ReducesByFunction(1, text)

class SetsArgs(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.args = (code, text)

class OfOs(OSError):
    def __init__(self, number, text, filename=None):
        super().__init__(number, text, filename)

def filled_in(init):
    return functools.wraps(init)(lambda self, *args: init(self, *(args if len(args) == 2 else (1, *args))))

class Decorated(Exception):
    @filled_in
    def __init__(self, code, text):
        super().__init__(text)

class NewTakesOne(Exception):
    def __new__(cls, text):
        return super().__new__(Plain, text)

    def __init__(self, code, text):
        pass
"""
HARMLESS = """
import sys
from headrace import doctor

if __name__ == "__main__":
    made = [Plain(), Plain(1, 2), Passes(1), Passes(1, "a", 3, key=4), Reduces(1, "a"), ReducesByFunction(1, "a"),
            SetsArgs(1, "a"), OfOs(2, "no", "file"), OfOs(2, "no"), Decorated(1, "a"), NewTakesOne("a"), KeyError("a"),
            subprocess.CalledProcessError(1, "a"), UnicodeDecodeError("utf-8", b"", 0, 1, "no")]
    print(len(doctor.check(made, sys.argv[1]).findings), len(doctor.check(made, sys.argv[1], load=True).findings))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("load", [[], ["load"]], ids=["not loaded", "loaded"])
def test_exception_that_does_not_unpickle_is_found(method: str, load: list[str], tmp_path: Any) -> None:
    """The class may be in the main script or in a module."""
    (tmp_path / "refused.py").write_text(CANNOT_BE_UNPICKLED)
    (tmp_path / "script.py").write_text(CANNOT_BE_UNPICKLED + BOTH)
    found = [line.split("; ") for line in output_lines(str(tmp_path / "script.py"), method, *load)]
    assert [(path, where) for path, _, where, _ in found] == [
        ("dataset.own", f"defined in {tmp_path}/script.py:3, in Refused"),
        ("dataset.imported", f"defined in {tmp_path}/refused.py:3, in Refused"),
    ]
    for _, reason, _, fix in found:
        assert "can be pickled, but not unpickled: unpickling calls Refused(*args)" in reason and "'text'" in reason
        assert fix == "pass all arguments of __init__ to super().__init__, or give it a __reduce__"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_exceptions_that_unpickle_are_not_reported(method: str, tmp_path: Any) -> None:
    (tmp_path / "script.py").write_text(CAN_BE_UNPICKLED + HARMLESS)
    assert output_lines(str(tmp_path / "script.py"), method) == ["0 0"]


def test_exception_behind_many_objects_is_found() -> None:
    made = [*([unpicklable.WithAttributes(x=1)] * 3), *(unpicklable.WithAttributes(x=number) for number in range(5000))]
    assert errors(doctor.check([*made, unpicklable.Unloadable(1, 2)])) == ["obj[5003]"]


@pytest.mark.parametrize("how", ["-", "-c"])
def test_a_worker_cannot_import_what_is_no_file(how: str) -> None:
    lines = output_lines("-c", MAIN) if how == "-c" else output_lines("-", stdin=MAIN)
    assert lines[0].startswith("[\"obj['top']\", \"obj['f']\", \"obj['o'][0]\"]")
    assert all("which a worker cannot import" in line for line in lines[1:4])


def test_a_few_objects_with_the_same_cause_are_all_reported() -> None:
    made = {name: threading.Lock() for name in "abc"}
    assert errors(doctor.check(made)) == ["obj['a']", "obj['b']", "obj['c']"]


def test_hook_of_the_user_is_named_before_the_class_below_it() -> None:
    class Worker(threading.Thread):
        def __getstate__(self) -> Any:
            raise ValueError("not today")

    unpicklable.Worker = Worker  # type: ignore[attr-defined]
    Worker.__qualname__, Worker.__module__ = "Worker", "unpicklable"
    (found,) = doctor.check(Worker()).findings
    assert "its __getstate__ raises ValueError: not today" in found.reason
