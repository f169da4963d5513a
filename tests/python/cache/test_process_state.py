# SPDX-License-Identifier: Apache-2.0
"""Stamps of builders that use the state of their process: the command line, the working directory, generators that all
code shares, and attributes that pickle leaves out."""

from __future__ import annotations

import argparse
import builtins
import copyreg
import dataclasses
import enum
import glob
import os
import pathlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import shuffle
from sys import argv
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from headrace._base import warn
from headrace._cache import digest, unfollowed

pytestmark = pytest.mark.usefixtures("root")

Build = Callable[[], Any]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(warn, "say", found.append)
    monkeypatch.setattr(unfollowed, "_told", set())
    return found


def seen(build: Build) -> dict[str, str]:
    return digest.seen_by(build, False).seen


# ---- generators ----


def by_import() -> Any:
    import numpy.random as draw

    return draw.permutation(3)


def with_seed() -> Any:
    np.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)
    return np.random.rand(3), random.random(), torch.rand(3)


def with_generators() -> Any:
    generator = torch.Generator().manual_seed(0)
    return np.random.default_rng(0).random(), random.Random(0).random(), torch.randperm(3, generator=generator)


def seeds_by_function() -> Any:
    def seed() -> None:
        np.random.seed(3)

    seed()
    return np.random.rand(3)


DRAWS: dict[str, tuple[Build, str]] = {
    "numpy": (lambda: np.random.permutation(3), "numpy.random"),
    "numpy sample": (lambda: np.random.sample(3), "numpy.random"),
    "numpy as a value": (lambda: [np.random][0].rand(), "numpy.random"),
    "numpy imported inside": (by_import, "numpy.random"),
    "method of numpy": (np.random.rand, "numpy.random"),
    "random": (lambda: random.random(), "random"),
    "random by name": (lambda: shuffle([1]), "random"),
    "torch": (lambda: torch.randperm(3), "torch"),
    "torch split": (lambda: torch.utils.data.random_split([1, 2], [1, 1]), "torch"),
    "seeded inside": (with_seed, ""),
    "seeded by a function": (seeds_by_function, ""),
    "generators": (with_generators, ""),
    "classes": (lambda: isinstance(3, (np.random.Generator, random.Random, torch.Generator)), ""),
    "state": (lambda: (random.getstate(), np.random.get_state()), ""),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_from_a_global_generator_are_said(name: str, said: list[str]) -> None:
    build, module = DRAWS[name]
    states = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        states.append(seen(build))
    assert states[0] == states[1]
    assert [module] * bool(module) == [line.partition("state of ")[2].partition("'s global")[0] for line in said]


def test_draws_of_a_dataset_are_left_to_its_checks(said: list[str]) -> None:
    class Data:
        def __getitem__(self, index: int) -> Any:
            return np.random.rand(3)

    digest.seen_in(Data())
    assert said == []


# ---- command line ----


def parse() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int)
    return parser.parse_args().size


def argv_inside() -> Any:
    from sys import argv as given

    return given[1]


@pytest.mark.parametrize("build", [parse, argv_inside, lambda: sys.argv[2], lambda: argv[2]])
def test_command_line_counts_if_it_is_read(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in "3", "3", "5":
        monkeypatch.setattr(sys, "argv", ["train.py", "--size", size])
        monkeypatch.setitem(globals(), "argv", sys.argv)
        found.append((seen(build), seen(lambda: sys.byteorder)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0] and found[0][1] == found[2][1]


def test_builder_that_parses_arguments_is_built_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for size in 3, 5:
        monkeypatch.setattr(sys, "argv", ["train.py", "--size", str(size)])
        assert headrace.cache("size", lambda: [parse()])[0] == size
    assert "because the command line has changed" in capfd.readouterr().err


# ---- working directory ----


@pytest.fixture
def folders(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Yields two folders, each as the working directory."""
    found = []
    for name in "one", "other":
        (tmp_path / name).mkdir()
        (tmp_path / name / "plain").write_text(name)
        found.append(tmp_path / name)

    def enter() -> Iterator[pathlib.Path]:
        for folder in found:
            monkeypatch.chdir(folder)
            yield folder

    return enter()


def cwd_inside() -> Any:
    from os import getcwd as here

    return here()


IN_FOLDER: list[Build] = [
    lambda: open("plain").read(),  # noqa: SIM115
    lambda: Path("plain").read_text(),
    lambda: os.listdir("."),
    lambda: os.listdir(),
    lambda: os.getcwd(),
    lambda: Path.cwd(),
    lambda: pathlib.Path().iterdir(),
    lambda: pathlib.Path(".").glob("*"),
    lambda: os.path.abspath("new"),
    lambda: glob.glob("*"),
    lambda: list(os.walk(".")),
    cwd_inside,
]
ROOT = "/"
ELSEWHERE: list[Build] = [
    lambda: os.listdir(ROOT),
    lambda: os.listdir("/"),
    lambda: glob.glob(os.path.join(ROOT, "*.txt")),
    lambda: os.path.dirname(os.path.abspath(__file__)),
    lambda: Path(ROOT).glob("*"),
    lambda: "a.b".split("."),
]


@pytest.mark.parametrize("number", range(len(IN_FOLDER)))
def test_working_directory_counts_if_it_is_used(number: int, folders: Iterator[pathlib.Path]) -> None:
    one, other = [seen(IN_FOLDER[number]) for _ in folders]
    assert one != other


@pytest.mark.parametrize("number", range(len(ELSEWHERE)))
def test_functions_of_paths_count_no_working_directory(number: int, folders: Iterator[pathlib.Path]) -> None:
    one, other = [seen(ELSEWHERE[number]) for _ in folders]
    assert one == other


# ---- values ----


class Text(str):
    note: Any


class Number(int):
    note: Any


class OwnPath(type(pathlib.Path())):  # type: ignore[misc]
    note: Any


class Client:
    def __init__(self, bucket: Any, more: Any = None) -> None:
        self.bucket, self.more = bucket, more


class WithoutBucket(Client):
    def __getstate__(self) -> Any:
        return {"more": self.more}


class Rebuilt(Client):
    def __reduce__(self) -> Any:
        return type(self), (self.bucket,)


class Registered(Client):
    pass


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("bucket",)
    bucket: str

    def __getstate__(self) -> Any:
        return [self.bucket]


def noted(cls: Any, note: Any) -> Any:
    value = cls(3)
    value.note = note
    return value


@pytest.mark.parametrize("cls", [Text, Number])
def test_attributes_of_subclasses_of_values_count(cls: Any, said: list[str]) -> None:
    def of(note: int) -> dict[str, str]:
        value = noted(cls, note)
        return seen(lambda: value)

    assert of(1) == of(1) != of(2)
    assert said == []


def test_attributes_that_pickle_leaves_out_are_said(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, Registered, lambda one: (Registered, (one.bucket,)))
    path = OwnPath("a")
    path.note = 1
    values = [WithoutBucket("a"), Rebuilt("a", "b"), Registered("a", "b"), path]
    seen(lambda: values)
    whole = [Client("a", "b"), Rebuilt("a"), WithoutBucket(threading.Lock()), Color.RED, Slotted("a"), Path("a")]
    seen(lambda: whole)
    left = "'bucket'", "'more'", "'more'", "'note'"
    assert [line.partition(" of an")[0].rpartition(" ")[2] for line in said] == list(left)
    assert all("which pickle leaves out, is not seen; give version=" in line for line in said)


def test_added_builtin_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in 1, 1, 2:
        monkeypatch.setattr(builtins, "added_by_test", value, raising=False)
        found.append(seen(lambda: added_by_test))  # type: ignore[name-defined] # noqa: F821
    assert found[0] == found[1] != found[2]
    assert seen(lambda: (NotImplemented, print, len, int, open)) == seen(
        lambda: (NotImplemented, print, len, int, open)
    )


def test_default_dtype_of_torch_counts() -> None:
    build = lambda: torch.zeros(1)  # noqa: E731
    before = seen(build)
    torch.set_default_dtype(torch.float64)
    try:
        assert seen(build) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen(build) == before


def test_subclasses_are_said(said: list[str]) -> None:
    seen(lambda: Client.__subclasses__())
    assert len(said) == 1 and "what __subclasses__() in" in said[0]
