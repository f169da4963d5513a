# SPDX-License-Identifier: Apache-2.0
"""Workers that draw equal random numbers, because each has a copy of the dataset's generator."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from doctors import doctor
from headrace.doctor.run.generators import check_generators
from loaders import only_headrace

pytestmark = only_headrace


class Noise(torch.utils.data.Dataset[Any]):
    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.unused = random.Random(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.generator.random()


class Lazy(Noise):
    def __getitem__(self, index: int) -> Any:
        self.generator = self.generator or random.Random(0)
        return self.generator.random()


class Items(torch.utils.data.IterableDataset[Any]):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __iter__(self) -> Any:
        return (self.generator.random() for _ in range(8))


class Mixing:
    """A collate function that draws."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, samples: list[Any]) -> Any:
        return [self.rng.random(), *samples]


def seed_of_worker(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.generator = np.random.default_rng(info.seed)


def seed_of_own_worker(worker: int) -> None:
    info = headrace.get_worker_info()
    assert info is not None
    info.dataset.generator = np.random.default_rng(random.getrandbits(32))


def fixed_seed_of_worker(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.generator = np.random.default_rng(worker)


LOADERS = pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, headrace.torch.DataLoader, headrace.Loader])


def check(kind: Any, dataset: Any, **options: Any) -> list[Any]:
    return check_generators(kind(dataset, 2, multiprocessing_context="fork", num_workers=1, **options))


@LOADERS
def test_equal_random_numbers_in_workers_are_found(kind: Any) -> None:
    for dataset in (Noise(np.random.default_rng(0)), Noise(np.random.RandomState(0)), Lazy(None), Items()):
        (found,) = check(kind, dataset)
        assert (found.name, found.severity) == ("random numbers", "warning")
        assert "copy of dataset.generator, and all copies give the same" in found.consequence
        assert "Each epoch repeats them" in found.consequence
        name = "headrace.Loader" if kind is headrace.Loader else "headrace.torch.DataLoader"
        assert found.fix.startswith(f'rng="sample" in {name}: ')
    (found,) = check(kind, Noise(random.Random(0)), persistent_workers=True)
    assert "Each epoch" not in found.consequence
    (found,) = check(kind, range(8), collate_fn=Mixing())
    assert "collate_fn.rng" in found.consequence


@LOADERS
def test_random_numbers_that_differ_are_no_finding(kind: Any) -> None:
    assert check(kind, Noise(random)) == [], "the loader seeds it"
    assert check(kind, Noise(random.SystemRandom())) == []


def test_generators_that_worker_init_fn_seeds_are_no_finding() -> None:
    dataset = Noise(np.random.default_rng(0))
    assert check(torch.utils.data.DataLoader, dataset, worker_init_fn=seed_of_worker) == []
    assert check(headrace.torch.DataLoader, dataset, rng="sample") == []
    assert check(headrace.torch.DataLoader, dataset, worker_init_fn=fixed_seed_of_worker) == []
    assert check(headrace.Loader, dataset, rng="sample") == []
    assert check(headrace.Loader, dataset, worker_init_fn=seed_of_own_worker) == []


def test_seeds_that_the_doctor_advises_differ_in_each_epoch() -> None:
    (found,) = check(headrace.Loader, Noise(np.random.default_rng(0)))
    assert "worker_init_fn with random.getrandbits(32)" in found.fix
    dataset = Noise(np.random.default_rng(0))
    loader = headrace.Loader(dataset, 1, num_workers=2, worker_init_fn=seed_of_own_worker)
    numbers = [float(batch[0]) for _ in range(2) for batch in loader]
    assert len(set(numbers)) == len(numbers) == 2 * len(dataset)


def test_generators_that_cannot_be_seeded_by_sample_are_found() -> None:
    (found,) = check(headrace.torch.DataLoader, Noise(random.SystemRandom()), rng="sample")
    assert "dataset.generator (SystemRandom): it draws from the operating system" in found.consequence


SCRIPT = """
import numpy as np
from torch.utils.data import DataLoader

class Noise:
    rng = np.random.default_rng(0)
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.rng.random()

def make_loader():
    return DataLoader(Noise(), 2, num_workers=1, multiprocessing_context="fork")
"""


def test_doctor_finds_equal_random_numbers_of_torchs_loader(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    result = doctor("--run", "train:make_loader", "--batches", "4", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "warning  random numbers   equal in all workers" in result.stdout
    assert "train.Noise.rng" in result.stdout
