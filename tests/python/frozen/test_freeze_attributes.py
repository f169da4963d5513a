# SPDX-License-Identifier: Apache-2.0
"""freeze_attributes, and freeze=True of the loaders."""

from __future__ import annotations

import functools
import io
import itertools
import logging
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import headrace
import numpy as np
import pytest
from headrace.frozen._attributes import THRESHOLD_BYTES, freeze_more
from headrace.frozen._sizes import estimate_bytes

COUNT = 30_000


def many_paths(mark: str = "a") -> list[str]:
    return [f"/data/{mark}/train/images/{number:08}.jpg" for number in range(COUNT)]


class Paths:
    def __init__(self) -> None:
        self.paths = many_paths()
        self.small = [1, 2, 3]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        return self.paths[index]


class Slotted:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = many_paths("slots")


class Holder:
    """A dataset of datasets, with a vocabulary of its own."""

    def __init__(self) -> None:
        self.parts = [Paths(), Paths()]
        self.slotted = Slotted()
        self.splits = {"train": many_paths("train"), "val": many_paths("val")}

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: int) -> str:
        return self.parts[index // COUNT][index % COUNT]


def is_frozen(value: Any) -> bool:
    return type(value).__module__.startswith("headrace")


def test_a_large_list_becomes_a_view_and_a_small_one_stays() -> None:
    data = Paths()
    before = list(data.paths)
    report = headrace.freeze_attributes(data)
    assert is_frozen(data.paths)
    assert data.small == [1, 2, 3] and type(data.small) is list
    assert data.paths == before
    assert data[7] == before[7]
    assert [one.path for one in report.frozen] == ["dataset.paths"]
    assert report.frozen[0].items == COUNT
    assert report.saved_bytes > report.frozen_bytes > 1_000_000


def test_nested_datasets_stay_and_their_content_is_frozen() -> None:
    data = Holder()
    report = headrace.freeze_attributes(data)
    assert type(data.parts) is list and type(data.parts[0]) is Paths
    assert is_frozen(data.parts[0].paths) and is_frozen(data.parts[1].paths)
    assert is_frozen(data.slotted.items)
    assert is_frozen(data.splits)
    assert data.splits["val"][1] == "/data/val/train/images/00000001.jpg"
    found = sorted(one.path for one in report.frozen)
    assert found == ["dataset.parts[0].paths", "dataset.parts[1].paths", "dataset.slotted.items", "dataset.splits"]


def test_one_list_held_twice_is_in_the_frozen_data_once() -> None:
    data, alone = Paths(), Paths()
    data.again = data.paths  # type: ignore[attr-defined]
    report = headrace.freeze_attributes(data)
    assert len(report.frozen) == 1
    assert is_frozen(data.again)  # type: ignore[attr-defined]
    assert report.frozen_bytes < 1.1 * headrace.freeze_attributes(alone).frozen_bytes


def test_unfreezable_object_stays_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    data = Paths()
    data.locks = [{"path": path, "lock": threading.Lock()} for path in data.paths[:10_000]]  # type: ignore[attr-defined]
    with caplog.at_level(logging.INFO, logger="headrace"):
        report = headrace.freeze_attributes(data)
    assert is_frozen(data.paths)
    assert type(data.locks) is list  # type: ignore[attr-defined]
    ((path, reason),) = report.skipped
    assert path == "dataset.locks"
    assert "[0]['lock']" in reason
    assert "not frozen: dataset.locks" in caplog.text


def test_content_of_an_unfreezable_container_is_frozen() -> None:
    data = Paths()
    data.state = {"lock": threading.Lock(), "deep": [many_paths("b"), threading.Lock()], "index": many_paths("c")}  # type: ignore[attr-defined]
    report = headrace.freeze_attributes(data)
    state: Any = data.state  # type: ignore[attr-defined]
    assert is_frozen(state["index"]) and is_frozen(state["deep"][0]) and not is_frozen(state["deep"])
    assert state["index"] == many_paths("c") and state["deep"][0] == many_paths("b")
    found = sorted(one.path for one in report.frozen)
    assert found == ["dataset.paths", "dataset.state['deep'][0]", "dataset.state['index']"]
    assert report.skipped == ()  # what is left of it is small


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


def test_a_key_that_cannot_be_printed_is_no_obstacle() -> None:
    data = Paths()
    data.state = {Unprintable(): many_paths("b"), "lock": threading.Lock()}  # type: ignore[attr-defined]
    paths = [one.path for one in headrace.freeze_attributes(data).frozen]
    assert sorted(paths) == ["dataset.paths", "dataset.state[<a Unprintable>]"]


class Transform:
    """Counts its calls, and holds a large table."""

    def __init__(self) -> None:
        self.table = many_paths("table")
        self.calls = 0

    def __call__(self, at: int) -> str:
        self.calls += 1
        return self.table[at]


def test_a_list_of_transforms_stays_and_what_they_hold_is_frozen() -> None:
    data = Paths()
    data.transforms = [Transform(), Transform()]  # type: ignore[attr-defined]
    headrace.freeze_attributes(data)
    transforms: Any = data.transforms  # type: ignore[attr-defined]
    assert type(transforms) is list and is_frozen(transforms[0].table)
    assert transforms[0](1) == transforms[0](1) and transforms[0].calls == 2


class IterableRecord:
    """A record that can be unpacked."""

    def __init__(self, at: int) -> None:
        self.x, self.y = f"x of {at}", f"y of {at}"

    def __iter__(self) -> Iterator[str]:
        return iter((self.x, self.y))


def test_records_that_can_be_iterated_are_frozen() -> None:
    data = Paths()
    data.boxes = [IterableRecord(at) for at in range(20_000)]  # type: ignore[attr-defined]
    headrace.freeze_attributes(data)
    boxes: Any = data.boxes  # type: ignore[attr-defined]
    assert is_frozen(boxes)
    assert tuple(boxes[7]) == ("x of 7", "y of 7")


def test_dataset_that_is_a_large_list_itself_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    report = headrace.freeze_attributes(many_paths())
    assert report.frozen == () and [path for path, _ in report.skipped] == ["dataset"]
    assert "a list itself" in caplog.text and "headrace.freeze(dataset)" in caplog.text
    assert headrace.freeze_attributes([Paths(), Paths()]).skipped == ()


class Proxy:
    """A placeholder for an object that does not exist yet."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


def test_dataset_may_hold_objects_that_raise_when_examined() -> None:
    data = Paths()
    data.proxy = Proxy()  # type: ignore[attr-defined]
    assert [one.path for one in headrace.freeze_attributes(data).frozen] == ["dataset.paths"]


class Sample:
    def __init__(self, owner: Any) -> None:
        self.owner = owner


def test_small_objects_that_refer_to_the_dataset_are_not_large() -> None:
    data = Paths()
    data.paths = []
    data.samples = [Sample(data) for _ in range(300)]  # type: ignore[attr-defined]
    # A manager of its own, because the usual one knows the loggers of all modules that were imported.
    manager = logging.Manager(logging.RootLogger(logging.WARNING))
    data.log = manager.getLogger("one of a few that know each other")  # type: ignore[attr-defined]
    assert headrace.freeze_attributes(data) == headrace.frozen.FreezeReport()


def test_the_size_of_deeply_nested_lists_is_estimated_at_once() -> None:
    value: Any = 1.5
    for _ in range(5):
        value = [value] * 300  # 2e12 items, if they are counted one by one
    begin = time.monotonic()
    assert estimate_bytes(value) > 1e12
    assert time.monotonic() - begin < 30
    assert 0.5 < estimate_bytes([[float(i + j) for i in range(100)] for j in range(1000)]) / 3_300_000 < 2


def test_a_dataset_without_large_containers_is_left_alone() -> None:
    data = Counter({"a": 1})
    assert headrace.freeze_attributes(data).frozen == ()
    assert "nothing was frozen" in str(headrace.freeze_attributes(object()))


def objects(count: int = 30_000) -> Any:
    return np.array([{"path": f"images/{at}.jpg"} for at in range(count)], dtype=object)


def test_tables_of_python_objects_are_named_with_what_to_do() -> None:
    data: Any = Paths()
    data.items, data.grid = objects(), {"x": objects().reshape(300, 100)}
    data.texts = {"names": np.array([f"name {at}" for at in range(50_000)], dtype=object)}
    data.numbers, data.few = np.zeros(1_000_000), objects(3)
    report = headrace.freeze_attributes(data)
    assert [one.path for one in report.frozen] == ["dataset.paths"]
    names = ["grid", "grid['x']", "items", "texts", "texts['names']"]
    assert sorted(path for path, _ in report.skipped) == [f"dataset.{name}" for name in names]
    reasons = dict(report.skipped)
    assert (
        "an array of Python objects; dataset.items = headrace.freeze(dataset.items.tolist())"
        in reasons["dataset.items"]
    )
    assert "whose view would be a list" in reasons["dataset.texts"]
    assert type(data.items) is np.ndarray
    assert data.grid["x"].shape == (300, 100)
    assert headrace.freeze_attributes(headrace.Loader(range(3))).skipped == ()


def frame(count: int) -> Any:
    """A DataFrame as pandas has it: its classes, with what headrace asks them for."""
    dtype = type("Dtype", (), {"kind": "O"})()
    base = {"__module__": "pandas.core.frame", "dtype": dtype, "size": count}
    column = type("Series", (), {**base, "array": [f"images/{at}.jpg" for at in range(count)]})()
    attributes = {"dtypes": [dtype], "columns": ["path"], "__getitem__": lambda self, name: column}
    return type("DataFrame", (), {**base, **attributes})()


def test_data_frames_of_python_objects_are_named() -> None:
    data: Any = Paths()
    data.frame, data.column, data.small = frame(50_000), frame(50_000)["path"], frame(10)
    reasons = dict(headrace.freeze_attributes(data).skipped)
    assert 'dataset.frame = headrace.freeze(dataset.frame.to_dict("records"))' in reasons["dataset.frame"]
    assert "dataset.column = headrace.freeze(dataset.column.tolist())" in reasons["dataset.column"]
    assert "dataset.small" not in reasons


def pick(texts: Any, at: int, more: Any = ()) -> str:
    return str((more or texts)[at])


class Data:
    pass


class Picks:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, at: int) -> str:
        return str(self.function(at))


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: functools.partial(pick, many_paths()), "function.args[0]"),
        (lambda: functools.partial(pick, [], more=many_paths()), "function.keywords['more']"),
        (lambda: functools.partial(pick, [{"path": one} for one in many_paths()]), "function.args[0]"),
        (lambda: functools.lru_cache(None)(functools.partial(pick, many_paths())), "function.__wrapped__.args[0]"),
    ],
)
def test_arguments_of_a_partial_are_frozen(make: Any, path: str) -> None:
    data = Picks(make())
    expected, function = data[7], data.function
    report = headrace.freeze_attributes(data)
    assert [one.path for one in report.frozen] == [f"dataset.{path}"]
    assert report.skipped == () and data.function is function and data[8] != expected == data[7]
    assert headrace.freeze_attributes(data) == headrace.frozen.FreezeReport()


def test_namespaces_are_frozen() -> None:
    data: Any = Data()
    data.config = types.SimpleNamespace(texts=many_paths(), batch=4)
    assert [one.path for one in headrace.freeze_attributes(data).frozen] == ["dataset.config.texts"]
    assert is_frozen(data.config.texts) and data.config.batch == 4


def test_containers_that_cannot_be_replaced_are_named() -> None:
    data: Any = Data()
    data.proxy, data.pairs = types.MappingProxyType(dict.fromkeys(many_paths(), 1)), (Paths(), many_paths())
    data.arguments, data.once = functools.partial(max, *many_paths()), iter(many_paths())
    data.slice, data.small = slice(many_paths()), functools.partial(pick, ["a"], more=[])
    refused: set[int] = set()
    reports = [freeze_more(data, THRESHOLD_BYTES, refused) for _ in range(2)]
    assert [one.path for one in reports[0].frozen] == ["dataset.pairs[0].paths"]
    reasons = dict(reports[0].skipped)
    places = {"arguments", "once", "pairs[1]", "proxy", "slice.stop"}
    assert reasons.keys() == {f"dataset.{place}" for place in places}
    assert "a mappingproxy, which holds a dict of 30,000 items; put headrace.freeze" in reasons["dataset.proxy"]
    assert "a list of 30,000 items in a place that cannot be set" in reasons["dataset.slice.stop"]
    assert reports[1] == headrace.frozen.FreezeReport()


class Named(NamedTuple):
    texts: Any
    count: int = 0


class Texts(list):  # type: ignore[type-arg]
    pass


class Config(dict):  # type: ignore[type-arg]
    pass


def closure_over(value: Any) -> Any:
    return lambda at: value[at]


TEXTS, MORE = many_paths(), many_paths("more")


def with_default(at: int, texts: Any = TEXTS, *, more: Any = MORE) -> Any:
    return (more or texts)[at]


OF_MODULE = many_paths("module")


def reads_module(at: int) -> Any:
    return OF_MODULE[at]


HERE = __name__
LAMBDA = f"{HERE}.closure_over.<locals>.<lambda>: value"
IN_CODE = "a list of 30,000 items that code of the dataset uses by a variable; put headrace.freeze of it there"
FIRST = "put headrace.freeze of it there when the object is made"
OF_OWN_CLASS = "a {0} of 30,000 items, and a view would not be a {0}; keep them in a list or dict of it"
VARIABLES: dict[str, tuple[Any, str]] = {
    "closure": (lambda: closure_over(many_paths()), LAMBDA),
    "closure over a dataset": (lambda: closure_over(Paths()), f"{LAMBDA}.paths"),
    "closure in a closure": (lambda: closure_over(closure_over(many_paths())), LAMBDA),
    "closure in a partial": (lambda: functools.partial(closure_over(many_paths()), 3), LAMBDA),
    "attribute of a function": (lambda: with_attribute(), f"{HERE}.with_attribute.<locals>.function.texts"),
    "global variable": (lambda: reads_module, f"{HERE}.OF_MODULE"),
}
HELD = {
    "cycle": lambda: itertools.cycle(many_paths()),
    "zip": lambda: zip(range(9), many_paths(), strict=False),
    "map": lambda: map(len, many_paths()),
    "list_iterator": lambda: iter(many_paths()),
    "chain": lambda: itertools.chain(itertools.islice(many_paths(), 9)),
    "generator": lambda: (one for one in many_paths()),
    "builtin_function_or_method": lambda: many_paths().__getitem__,
}
NAMED: dict[str, tuple[Any, str, str]] = {
    **{kind: (make, path, IN_CODE) for kind, (make, path) in VARIABLES.items()},
    **{
        kind: (make, "dataset.part", f"a {kind}, which holds a list of 30,000 items; {FIRST}")
        for kind, make in HELD.items()
    },
    "tuple": (
        lambda: Named(many_paths()),
        "dataset.part[0]",
        f"a list of 30,000 items in a place that cannot be set; {FIRST}",
    ),
    "list": (lambda: Texts(many_paths()), "dataset.part", OF_OWN_CLASS.format("Texts")),
    "dict": (lambda: Config(dict.fromkeys(many_paths(), 1)), "dataset.part", OF_OWN_CLASS.format("Config")),
}


def with_attribute() -> Any:
    def function(at: int) -> Any:
        return function.texts[at]  # type: ignore[attr-defined]

    function.texts = many_paths()  # type: ignore[attr-defined]
    return function


@pytest.mark.parametrize("kind", NAMED)
def test_container_that_stays_is_named_once(kind: str) -> None:
    make, path, what = NAMED[kind]
    data: Any = Data()
    data.part = make()
    refused: set[int] = set()
    report = freeze_more(data, THRESHOLD_BYTES, refused)
    assert report.frozen == () and report.skipped == ((path, what),)
    assert freeze_more(data, THRESHOLD_BYTES, refused).skipped == ()


def test_defaults_of_parameters_are_named() -> None:
    data: Any = Data()
    data.pick = with_default
    skipped = headrace.freeze_attributes(data).skipped
    assert dict(skipped) == {f"{HERE}.with_default: texts": IN_CODE, f"{HERE}.with_default: more": IN_CODE}


class Closed:
    """A method has a variable of a function."""

    @staticmethod
    def make(texts: Any) -> Any:
        class Inner:
            def __getitem__(self, at: int) -> Any:
                return texts[at]

        return Inner()


def test_variables_of_methods_are_named() -> None:
    texts = many_paths()
    data = Closed.make(texts)
    ((path, what),) = headrace.freeze_attributes(data).skipped
    assert (path, what) == (f"{HERE}.Closed.make.<locals>.Inner.__getitem__: texts", IN_CODE)
    assert type(texts) is list and data[7] == texts[7]


def test_entries_of_own_containers_are_frozen() -> None:
    """The containers stay, because of their classes, and so do small ones."""
    data: Any = Data()
    data.config, data.parts = Config(train=many_paths(), val=many_paths("val")), Texts([many_paths("a"), ["b"]])
    data.bound, data.few, data.pair = Paths().__getitem__, Texts(["a"]), Named([1], 2)
    data.config.note = many_paths("note")
    report = headrace.freeze_attributes(data)
    places = {"config['train']", "config['val']", "config.note", "parts[0]", "bound.__self__.paths"}
    assert {one.path for one in report.frozen} == {f"dataset.{place}" for place in places}
    assert report.skipped == ()
    assert (
        type(data.config) is Config
        and is_frozen(data.config["train"])
        and data.config["val"][3] == many_paths("val")[3]
    )
    assert type(data.parts) is Texts and is_frozen(data.parts[0]) and data.parts[1] == ["b"]
    assert type(data.few) is Texts and data.pair == Named([1], 2) and data.bound(3) == many_paths()[3]


def test_attribute_that_code_uses_too_is_frozen_and_named() -> None:
    """The variable keeps the list in memory."""
    data: Any = Data()
    data.paths = many_paths()
    data.pick = closure_over(data.paths)
    report = headrace.freeze_attributes(data)
    assert [one.path for one in report.frozen] == ["dataset.paths"] and is_frozen(data.paths)
    assert report.skipped == ((f"{HERE}.closure_over.<locals>.<lambda>: value", IN_CODE),)


def test_dataset_that_is_a_list_of_its_own_class_is_named() -> None:
    ((path, what),) = headrace.freeze_attributes(Texts(many_paths())).skipped
    assert (path, what) == ("dataset", "a Texts itself, with no attribute to replace; keep its items in an attribute")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_with_freeze_read_the_frozen_data(method: str) -> None:
    data = Paths()
    loader = headrace.Loader(data, batch_size=1000, num_workers=2, multiprocessing_context=method, freeze=True)
    assert [path for batch in loader for path in batch] == many_paths()
    assert is_frozen(data.paths)


def test_torchs_loader_has_the_option() -> None:
    pytest.importorskip("torch")
    from headrace.torch import DataLoader

    data = Paths()
    loader = DataLoader(data, batch_size=1000, num_workers=1, multiprocessing_context="fork", freeze=True)  # type: ignore[arg-type,var-annotated]
    assert loader.freeze is True
    assert [path for batch in loader for path in batch] == many_paths()
    assert is_frozen(data.paths)


# ---- what users' classes do ----


class Opened(list):  # type: ignore[type-arg]
    """Paths, whose files are opened when they are asked for."""

    def __getitem__(self, index: Any) -> Any:
        raise FileNotFoundError(list.__getitem__(self, index))


class Sizeless:
    def __sizeof__(self) -> int:
        raise RuntimeError("no size")


class Asks(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise OSError("not now")

    __len__ = items  # type: ignore[assignment]


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Ruled(metaclass=Meta):
    pass


class BadName(str):
    def __repr__(self) -> str:
        raise RuntimeError("no name")


@pytest.mark.parametrize(
    "item",
    [Opened(["a"] * 1000), Sizeless(), Asks(a=1), Ruled(), {BadName("k"): lambda: 0}],
    ids=lambda item: type(item).__name__,
)
@pytest.mark.parametrize("count", [10, COUNT])
def test_items_may_raise_while_they_are_examined(item: Any, count: int, caplog: pytest.LogCaptureFixture) -> None:
    data = Paths()
    data.others = [item] * count  # type: ignore[attr-defined]
    headrace.freeze_attributes(data)
    assert is_frozen(data.paths)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_defaultdict_that_makes_entries_stays_one(is_nested: bool) -> None:
    data = Paths()
    words = defaultdict(int, {str(number): number for number in range(COUNT)})
    data.words = {"en": words} if is_nested else words  # type: ignore[attr-defined]
    report = headrace.freeze_attributes(data)
    assert is_frozen(data.paths) and words["unknown"] == 0
    assert (data.words["en"] if is_nested else data.words) is words  # type: ignore[attr-defined]
    path, reason = report.skipped[0]  # the container first, and then what it holds
    assert path == "dataset.words" and reason.startswith("dataset.words has a defaultdict that makes missing entries")
    words.default_factory = None
    assert [one.path for one in headrace.freeze_attributes(data).frozen] == ["dataset.words"]


class Private:
    __slots__ = ("__paths",)

    def __init__(self) -> None:
        self.__paths = many_paths()

    def paths(self) -> Any:
        return self.__paths


def test_slots_with_private_names_are_found() -> None:
    data = Private()
    headrace.freeze_attributes(data)
    assert is_frozen(data.paths()) and data.paths()[1].endswith("00000001.jpg")


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_unfreezable_attribute_is_reported_once(package: str, caplog: pytest.LogCaptureFixture) -> None:
    kind: Any = headrace.Loader if package == "numpy" else pytest.importorskip("headrace.torch").DataLoader
    data = Paths()
    data.locks = [threading.Lock() for _ in range(COUNT)]  # type: ignore[attr-defined]
    loader = kind(data, 1000, num_workers=1, multiprocessing_context="fork", freeze=True)
    for _ in range(3):
        assert len(list(loader)) == COUNT // 1000
    logged = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(logged) == 1 and "not frozen: dataset.locks: " in logged[0].getMessage()


# ---- where stderr is no terminal, nor even a file ----


class ToLogger:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def test_replacement_of_stderr_need_not_be_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (ToLogger(), closed, None):
        monkeypatch.setattr("sys.stderr", stream)
        for progress in (None, True):
            assert headrace.freeze([1, 2], progress=progress) == [1, 2]
