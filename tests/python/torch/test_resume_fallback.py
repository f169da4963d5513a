# SPDX-License-Identifier: Apache-2.0
"""States where headrace's engine does not run: they are those of the engine, and the other way round."""

from __future__ import annotations

import json
import multiprocessing.context
import pathlib
from collections.abc import Callable
from typing import Any

import headrace.torch
import pytest
import torch.utils.data
from fallback_cases import SeededOrder, begin
from headrace.sampling._state import StateError
from headrace.torch import DataLoader
from headrace.torch._own import loaders as _loaders
from loaders import only_headrace
from processes import run
from resumed import MAKERS, Numbers, Stateless, plain
from torch.utils.data import IterDataPipe, MapDataPipe
from torch_features import says

pytestmark = [only_headrace]

SCRIPT = """
import json, multiprocessing, os, sys, warnings
multiprocessing.set_start_method("fork")  # there is no main guard
warnings.simplefilter("ignore")
os.environ["HEADRACE_DISABLE"] = "{disabled}"
sys.path.insert(0, {lib!r})
import torch
from resumed import MAKERS, Counting, plain, run, stop
found = {{}}
for kind in {kinds!r}:
    torch.manual_seed(5)
    whole = run(MAKERS[kind](num_workers={workers}), epochs=2)
    torch.manual_seed(5)
    state, numbers = stop(MAKERS[kind](num_workers={workers}), len(whole[0]) + 2)
    found[kind] = whole, state, numbers.tolist()
    if {loads}:
        states = json.load(open({path!r}))
        own = [found[kind]] if {disabled} else []  # those of the engine: test_resume.py
        for whole, state, numbers in [*own, states[kind]]:
            loader = MAKERS[kind](num_workers={other})
            torch.set_rng_state(torch.tensor(numbers, dtype=torch.uint8))
            loader.load_state_dict(state)
            assert run(loader, 1, 2) == [whole[1][2:]], kind
json.dump(found, open({path!r}, "w"))
print(type(MAKERS["shuffle"]()).__module__)
"""


def _script(disabled: bool, path: Any, workers: int, loads: bool, kinds: list[str]) -> str:
    lib = __file__.replace("torch/test_resume_fallback.py", "lib")
    other = 2 - workers
    return SCRIPT.format(
        disabled=int(disabled),
        lib=lib,
        kinds=kinds,
        workers=workers,
        other=other,
        loads=loads,
        path=str(path),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_states_go_to_the_fallback_and_back(tmp_path: Any, workers: int) -> None:
    kinds = [kind for kind in MAKERS if workers == 0 or kind in ("shuffle", "distributed", "own generator", "per_rank")]
    path = tmp_path / "states.json"
    for number, disabled in enumerate((False, True, False)):
        out = run(tmp_path, _script(disabled, path, workers, number > 0, kinds))
        assert out.strip() == ("headrace.torch._loader.fallback" if disabled else DataLoader.__module__)


# ---- torch's iterators, in a process with HEADRACE_DISABLE=1 ----

CASE = """
import multiprocessing, os, sys, warnings
multiprocessing.set_start_method("fork")  # there is no main guard
os.environ["HEADRACE_DISABLE"] = "1"
sys.path.insert(0, {lib!r})
sys.argv[1:] = {arguments!r}
warnings.simplefilter("ignore")
import torch
import fallback_cases
fallback_cases.main()
"""


def _case(folder: pathlib.Path, *arguments: str) -> Any:
    lib = str(pathlib.Path(__file__).parent.parent / "lib")
    return json.loads(run(folder, CASE.format(lib=lib, arguments=list(arguments))))


@pytest.mark.parametrize(
    ("case", "count", "last"),
    [
        ("indices_after_break", 6, [2, 0, 5]),
        ("samples_after_break", 3, [1, 11, 10]),
        ("worker_seeds_after_break", 2, [1, 10, 9]),
    ],
)
def test_the_state_after_break_is_right(tmp_path: pathlib.Path, case: str, count: int, last: list[int]) -> None:
    """With a state before the first batch, after the third, and in the next epoch after the second and the last one.
    Only the end of a sampler is known before the loop has ended."""
    assert _case(tmp_path, case) == [[[0, 0, None], [0, 3, 2], [1, 2, 1], last]] * count


def test_the_end_of_an_epoch_is_noticed(tmp_path: pathlib.Path) -> None:
    """A batch that is held back counts as delivered when the iterator has come to its end."""
    end, last = [1, 0, 3], {(True, 0): [1, 0, 3], (True, 1): [0, 3, 3], (False, 0): [0, 4, 3], (False, 1): [0, 3, 3]}
    expected = [[last[known, held], end, end, [1, 1 - held, 0]] for known in (True, False) for held in (0, 1)]
    assert _case(tmp_path, "ends") == [one for one in expected for _ in range(3)]


def test_out_of_order_each_sample_comes_once(tmp_path: pathlib.Path) -> None:
    """torch 2.6 gives a worker that is late more batches than its share."""
    late = [0, 2] if says("_workers_num_tasks") else [0, 2, 4]
    for holes, samples, (epoch, steps, _) in _case(tmp_path, "out_of_order"):
        assert holes == late and samples == list(range(40)) and (epoch, steps) == (1, 0)


def test_iterators_and_epochs_are_freed_at_once(tmp_path: pathlib.Path) -> None:
    assert _case(tmp_path, "kept_alive") == 0


def test_a_dataset_with_fewer_batches_is_refused(tmp_path: pathlib.Path) -> None:
    assert "is to go on after 3 batches, but the dataset gives only 2" in _case(tmp_path, "too_few")


def test_the_seeds_of_workers_go_to_the_fallback_and_back(tmp_path: pathlib.Path) -> None:
    loader: Any = DataLoader(SeededOrder(), 4, num_workers=2)
    iterator = iter(loader)
    whole = [plain(next(iterator)) for _ in range(3)]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    whole += [plain(batch) for batch in iterator]
    state, rest = _case(tmp_path, "continued_from", str(path))
    assert rest == whole[3:]
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="the 5 batches that were delivered before are made again"):
        assert [plain(batch) for batch in loader] == whole[5:]


# ---- torch's iterators, because the engine is refused when an epoch begins ----


class OtherProcess:
    """A process of another library's, which is not one of multiprocessing."""

    def __init__(self, **options: Any) -> None:
        self.__dict__["inner"] = multiprocessing.context.ForkProcess(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


class OtherContext(multiprocessing.context.ForkContext):
    Process = OtherProcess  # type: ignore[assignment]


def _assert_continues(make: Callable[[], Any]) -> None:
    loader = make()
    assert begin(loader, 5) == [[i, i + 1] for i in range(0, 10, 2)]
    state = loader.state_dict()
    assert type(iter(loader)).__module__ == "torch.utils.data.dataloader"
    loader = make()
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == [[i, i + 1] for i in range(10, 20, 2)]
    assert loader.state_dict() != state and loader.last.step == 9


@pytest.mark.filterwarnings("ignore:headrace")
@pytest.mark.parametrize("dataset", [Numbers(20), Stateless(20)], ids=["map", "iterable"])
def test_a_state_is_continued_in_another_context(dataset: Any) -> None:
    _assert_continues(lambda: DataLoader(dataset, 2, num_workers=1, multiprocessing_context=OtherContext()))


@pytest.mark.filterwarnings("ignore:headrace")
@pytest.mark.parametrize("dataset", [Numbers(20), Stateless(20)], ids=["map", "iterable"])
def test_a_state_is_continued_by_a_wrapped_iterator(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loaders, "is_wrapped", True)
    _assert_continues(lambda: DataLoader(dataset, 2))


@pytest.mark.filterwarnings("ignore:headrace. without headrace's engine, 3 batches are made again")
@pytest.mark.parametrize("dataset", [Numbers(20), Stateless(20)], ids=["map", "iterable"])
def test_an_iterator_that_cannot_be_counted_is_announced(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = _loaders.torchs_iterator
    monkeypatch.setattr(_loaders, "is_wrapped", True)
    monkeypatch.setattr(_loaders, "torchs_iterator", lambda loader: (batch for batch in torchs(loader)))
    loader: Any = DataLoader(dataset, 2)
    for _ in range(2):
        loader.skip(3)
        with pytest.warns(UserWarning, match="DataLoader return a generator, so the state of this loader does not"):
            assert [plain(batch) for batch in loader] == [[i, i + 1] for i in range(6, 20, 2)]


def test_torchs_own_loader_keeps_its_iterator_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loaders, "is_wrapped", True)
    loader = torch.utils.data.DataLoader(Numbers(20), 2)
    with headrace.torch.installed():
        iterator = iter(loader)
        assert "_next_data" not in vars(iterator) and iterator._index_sampler is loader._index_sampler  # type: ignore[attr-defined]


class Pipe(IterDataPipe):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(4))


class MapPipe(MapDataPipe):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("pipe", [Pipe, MapPipe])
def test_a_state_for_a_data_pipe_is_refused(pipe: Any) -> None:
    loader = DataLoader(pipe(), 2)
    with pytest.raises(StateError, match="DataPipes have a state of their own, so a loader of a "):
        loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="DataPipes have a state of their own"):
        loader.skip(1)
    assert len(list(loader)) == 2
