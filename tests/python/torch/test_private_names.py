# SPDX-License-Identifier: Apache-2.0
"""A torch that lacks one of the private names that headrace uses: torch's loader and one warning, or headrace with
less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data  # noqa: F401 # the names are looked for in it
from headrace._tensors import torch_names
from headrace._tensors.torch_names import ENGINE, NAMES, OPTIONAL, STATE
from loaders import only_headrace
from processes import run

pytestmark = [only_headrace]

LIB = Path(__file__).parents[1] / "lib"
IN_FALLBACK, IN_ENGINE = "headrace.torch._loader.fallback", "headrace.torch._loader.loader"
ASKED_BY_C = {"torch.storage.TypedStorage._untyped_storage"}  # torch's own C code asks for them: it fails without
SCRIPT = """
import json, multiprocessing, sys, warnings
import torch.utils.data
import torch.distributed.distributed_c10d
sys.path.insert(0, {lib!r})
import renamed
from torch.utils.data import Dataset, IterableDataset
multiprocessing.set_start_method("fork")  # there is no main guard

class Items(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.tensor([index, int(torch.randint(1000, ()))])

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(12)

def batches(loader):
    return [batch.tolist() for batch in loader]

def all_batches(cls):
    torch.manual_seed(3)
    return [
        batches(cls(Items(), 4, shuffle=True)),
        batches(cls(Items(), 4, shuffle=True, num_workers=1)),
        batches(cls(Stream(), 4)),
    ]

def case():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from headrace.torch import DataLoader
        found = all_batches(DataLoader)
    loader = DataLoader(Items(), 4, shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(0)
    try:
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        left = len(list(loader))
    except ValueError as error:
        left = str(error)
    return dict(
        module=DataLoader.__module__, warned=[str(one.message) for one in caught], same=found == torchs,
        samples=sorted(sample[0] for batch in found[1] for sample in batch), left=left,
    )

torchs = renamed.run_each([""], lambda: all_batches(torch.utils.data.DataLoader))[""]
print(json.dumps(renamed.run_each({paths!r}, case)))
"""


def _run(tmp_path: Path, paths: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(tmp_path, SCRIPT.format(lib=str(LIB), paths=paths)))
    return found


def _paths(*needs: str) -> list[str]:
    return [one.path for one in NAMES if one.need in needs and one.path not in ASKED_BY_C and torch_names.has(one.path)]


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def test_torch_of_this_environment_has_the_names() -> None:
    assert torch_names.why_not() is None
    here = _release(torch_names.version())
    assert _release(torch_names.FLOOR) <= here <= _release(torch_names.NEWEST)
    assert [path for path in torch_names.missing(OPTIONAL) if _release(torch_names.BY_PATH[path].since) <= here] == []


def test_paths_in_the_table_are_each_there_once() -> None:
    assert len(torch_names.BY_PATH) == len(NAMES)
    assert {one.need for one in NAMES} == {ENGINE, STATE, OPTIONAL}
    assert all(one.since and one.lost for one in NAMES)


def test_storage_without_an_untyped_one_is_taken_as_it_is() -> None:
    storage = object()
    assert torch_names.untyped(storage) is storage


def _check_fallback(path: str, found: Any) -> None:
    assert isinstance(found, dict), f"{path}: {found}"
    (warning,) = found["warned"]
    assert found["module"] == IN_FALLBACK
    assert path in warning and torch_names.version() in warning
    assert f"torch {torch_names.FLOOR} to {torch_names.NEWEST}" in warning and "HEADRACE_DISABLE=1" in warning
    assert found["same"] and found["samples"] == list(range(12))


@pytest.mark.parametrize("need", [ENGINE, STATE])
def test_required_name_missing_gives_torchs_loader(tmp_path: Path, need: str) -> None:
    """The state goes on where torch's iterators have the names for it. Two classes may have the same name."""
    for_state = {path.rpartition(".")[2] for path in _paths(STATE)}
    for path, found in _run(tmp_path, _paths(need)).items():
        _check_fallback(path, found)
        if path.rpartition(".")[2] in for_state:
            assert "no state_dict" in found["warned"][0]
            assert "the state of a loader needs" in found["left"] and "install one of these" in found["left"]
        else:
            assert ("state_dict" in found["warned"][0], found["left"]) == (False, 2), path


def test_optional_name_missing_leaves_the_engine(tmp_path: Path) -> None:
    paths = _paths(OPTIONAL)
    assert len(paths) > 10
    for path, found in _run(tmp_path, ["", *paths]).items():
        assert isinstance(found, dict), f"{path}: {found}"
        assert found == {
            "module": IN_ENGINE, "warned": [], "same": True, "samples": list(range(12)), "left": 2
        }, path  # fmt: skip
