# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.state_dict, load_state_dict, skip and report, and what torch's loaders say after install()."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import pytest
import torch.utils.data
from loaders import METHODS, only_headrace
from processes import run

pytestmark = only_headrace
Torch = torch.utils.data.DataLoader
IN_PROCESS = "in process"
WAYS = pytest.mark.parametrize("method", [IN_PROCESS, *METHODS])


class Sub(Torch[Any]):
    """A library's loader, which passes on what it is given."""

    def __init__(self, *args: Any, own: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.own = own


class OwnIterator(Torch[Any]):
    def _get_iterator(self) -> Any:
        return iter([])


class OfFramework(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
    """An iterator that a framework makes itself."""


class Proxy:
    def __getattr__(self, name: str) -> Any:
        if name == "state_dict":
            return lambda: "of the proxy"
        raise AttributeError(name)


class Mixed(Torch[Any], Proxy):
    """torch's class comes first, and has no __getattr__."""


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with headrace.torch.installed():
        yield


def make(kind: Any, method: str, **options: Any) -> Any:
    started = {} if method == IN_PROCESS else {"num_workers": 1, "multiprocessing_context": method}
    generator = torch.Generator().manual_seed(5)
    return kind(list(range(23)), batch_size=3, shuffle=True, generator=generator, **started, **options)


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize(("kind", "method"), [(Sub, IN_PROCESS), *((Torch, one) for one in (IN_PROCESS, *METHODS))])
def test_torchs_loader_continues_as_headraces_own_does(kind: Any, method: str) -> None:
    found = []
    for one in (make(headrace.torch.DataLoader, method), make(kind, method)):
        whole, iterator = values(one), iter(one)
        begun = values(itertools.islice(iterator, 3))
        state = headrace.torch.state_dict(one)
        rest = values(iterator)
        assert len(rest) == 5
        other = make(kind, method)
        headrace.torch.load_state_dict(other, state)
        assert headrace.torch.state_dict(other) == state
        assert (values(other), values(other)) == (rest, values(one))
        found.append((whole, begun, state, rest))
    assert found[0] == found[1]


@WAYS
def test_skip_and_report(method: str) -> None:
    loader = make(Torch, method)
    with pytest.raises(RuntimeError, match="there is no report before"):
        headrace.torch.report(loader)
    headrace.torch.skip(loader, 6)
    assert len(values(loader)) == 2
    if method != IN_PROCESS:
        assert headrace.torch.report(loader)["batches"] == 2
    with pytest.raises(TypeError, match="steps"):
        headrace.torch.skip(loader, "2")  # type: ignore[arg-type]


def test_workers_that_persist_continue() -> None:
    loader = make(Torch, "fork", persistent_workers=True)
    iterator = iter(loader)
    first = values(itertools.islice(iterator, 3))
    state = headrace.torch.state_dict(loader)
    rest = values(iterator)
    headrace.torch.load_state_dict(loader, state)
    assert values(loader) == rest and len(first) == 3


def test_loaders_with_methods_are_asked_by_them() -> None:
    numpy = headrace.Loader(list(range(8)), batch_size=2)
    next(iter(numpy))
    assert headrace.torch.state_dict(numpy) == numpy.state_dict()
    assert headrace.torch.state_dict(Mixed(list(range(4)))) == "of the proxy"
    with pytest.raises(TypeError, match="a list is not a loader"):
        headrace.torch.state_dict([1])


def test_frameworks_find_no_methods() -> None:
    loader = make(Torch, IN_PROCESS)
    for name in ("state_dict", "load_state_dict", "skip", "report", "last", "steps_left", "set_epoch"):
        assert not hasattr(loader, name)
        assert getattr(loader, name, None) is None


class Broken(Torch):
    @property
    def last(self) -> Any:
        return self.no_such_part


def test_property_that_fails_says_why() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_part'$"):
        _ = make(Broken, IN_PROCESS).last


def test_missing_methods_are_explained() -> None:
    loader = make(Sub, IN_PROCESS)
    for name in ("state_dict", "load_state_dict", "skip", "report"):
        with pytest.raises(
            AttributeError, match=rf"'Sub' object has no attribute '{name}'; call headrace.torch.{name}\("
        ):
            getattr(loader, name)
    with pytest.raises(AttributeError, match=r"no attribute 'last'; it is one of headrace.torch.DataLoader"):
        _ = loader.last
    with pytest.raises(AttributeError, match=r"no attribute 'other'$") as error:
        _ = loader.other
    assert (error.value.name, error.value.obj) == ("other", loader)
    assert Sub(list(range(4)), own=2).own == 2


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


class Strict(Torch[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)


def test_options_given_to_torchs_loader_are_explained() -> None:
    for kind in (Torch, Sub):
        with pytest.raises(TypeError, match="unexpected keyword argument 'max_restarts'") as error:
            kind(range(4), max_restarts=3)  # type: ignore[call-arg]
        assert text_of(error.value).endswith(
            "max_restarts: for an option of headrace use headrace.torch.DataLoader, or set it for all loaders: "
            "headrace.torch.install(max_restarts=...)"
        )
        assert len(error.traceback) <= 5
    with pytest.raises(TypeError) as error:
        Torch(range(4), max_restarts=3, device="cpu")  # type: ignore[call-arg]
    assert text_of(error.value).endswith(
        "max_restarts, device: for an option of headrace use headrace.torch.DataLoader"
    )


def test_other_errors_of_torchs_loader_are_its_own() -> None:
    calls: list[Any] = [
        lambda: Torch(range(4), no_such=3),  # type: ignore[call-arg]
        lambda: Torch(),  # type: ignore[call-arg]
        lambda: Torch(range(4), generator=3, collate_fn=lambda: 0, num_workers="2"),  # type: ignore[arg-type]
        lambda: Torch(range(4), num_workers=-1),
        lambda: Strict(range(4), max_restarts=3),  # type: ignore[call-arg]
        lambda: headrace.torch.DataLoader(range(4), max_restarts="3"),  # type: ignore[arg-type]
        lambda: headrace.torch.DataLoader(range(4), no_such="3"),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as now:
            call()
        headrace.torch.uninstall()
        with pytest.raises((TypeError, ValueError)) as before:
            call()
        headrace.torch.install()
        assert type(now.value) is type(before.value) and text_of(now.value) == text_of(before.value)


TORCHS_INIT = vars(Torch)["__init__"]


def test_signature_of_torchs_loader_stays() -> None:
    """Frameworks read it. A __new__ would hide it, also after uninstall(), and that of classes that derive from it."""
    installed = vars(Torch)["__init__"]
    names = list(inspect.signature(TORCHS_INIT).parameters)[1:]
    for one in (Torch, functools.partial(Torch)):
        assert list(inspect.signature(one).parameters) == names
    assert inspect.getfullargspec(Torch.__init__) == inspect.getfullargspec(TORCHS_INIT)
    assert inspect.getsource(Torch.__init__) == inspect.getsource(TORCHS_INIT)
    assert list(inspect.signature(Sub).parameters) == ["args", "own", "options"]
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(installed, name) == getattr(TORCHS_INIT, name)
    assert "__new__" not in vars(Torch)


def test_init_of_torchs_loader_comes_back() -> None:
    with headrace.torch.installed():
        pass
    assert vars(Torch)["__init__"] is not TORCHS_INIT  # the fixture has installed it
    headrace.torch.install()
    headrace.torch.uninstall()
    assert vars(Torch)["__init__"] is TORCHS_INIT


def test_init_that_another_tool_has_replaced_stays() -> None:
    """Lightning replaces it for a while."""
    before = Torch.__init__
    calls = []

    def init(self: Any, *args: Any, **options: Any) -> None:
        calls.append(args)
        before(self, *args, **options)

    Torch.__init__ = init  # type: ignore[method-assign]
    try:
        headrace.torch.uninstall()
        assert values(Torch(range(4), 2)) == [[0, 1], [2, 3]] and len(calls) == 1  # type: ignore[arg-type]
        assert Torch.__init__ is init
    finally:
        Torch.__init__ = before  # type: ignore[method-assign]
    headrace.torch.install()
    headrace.torch.uninstall()
    assert vars(Torch)["__init__"] is TORCHS_INIT


def test_copies_and_pickles_of_torchs_loaders_work() -> None:
    loader = Torch(list(range(6)), batch_size=2)
    for one in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert values(one) == values(loader)


def test_batches_that_are_not_counted_have_no_state() -> None:
    with pytest.raises(RuntimeError, match=r"of this OwnIterator are not counted: headrace is not installed under it"):
        headrace.torch.state_dict(OwnIterator(list(range(4))))
    loader = make(Torch, "fork")
    assert len(values(OfFramework(loader))) == 8
    with pytest.raises(
        RuntimeError, match=r"not counted: its iterator is not headrace's; use headrace.torch.DataLoader"
    ):
        headrace.torch.state_dict(loader)
    next(iter(loader))
    assert headrace.torch.state_dict(loader)
    headrace.torch.uninstall()
    for call in (headrace.torch.state_dict, lambda one: headrace.torch.skip(one, 1)):
        with pytest.raises(RuntimeError, match=r"call headrace.torch.install\(\) before its first epoch, or use"):
            call(loader)


def test_uninstall_removes_what_was_added() -> None:
    headrace.torch.uninstall()
    assert "__getattr__" not in vars(Torch)
    with pytest.raises(AttributeError, match=r"no attribute 'state_dict'$"):
        make(Torch, IN_PROCESS).state_dict()


WITHOUT_ENGINE = """import warnings
warnings.simplefilter("ignore")
import headrace.torch as h
import torch.utils.data
h.install()
theirs, ours = torch.utils.data.DataLoader(range(4)), h.DataLoader(range(4))
print(h.report(theirs), h.report(ours), h.state_dict(ours) == ours.state_dict())
try:
    h.state_dict(theirs)
except RuntimeError as error:
    print(error)
"""


def test_functions_without_the_engine(tmp_path: pathlib.Path) -> None:
    first, second = run(tmp_path, WITHOUT_ENGINE, HEADRACE_DISABLE="1").splitlines()
    assert first == "{} {} True"
    assert "engine cannot run here (HEADRACE_DISABLE is set" in second and "headrace.torch.DataLoader" in second
