# SPDX-License-Identifier: Apache-2.0
"""The table of headrace's own options: arguments, attributes, docstrings and docs/options.md follow from it."""

from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys
import warnings
from typing import Any

import datasets as d
import headrace
import headrace.torch
import numpy as np
import pytest
import torch
import torch.utils.data
from headrace import _core, _options
from headrace._options import checks
from loaders import Headrace, Torch, only_headrace

pytestmark = only_headrace

ROOT = pathlib.Path(__file__).parents[3]
BOTH = pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader], ids=["torch", "numpy"])
OTHER_DEFAULTS = {headrace.Loader: {"max_restarts": 3}}


@BOTH
def test_own_options_are_keywords_with_types_of_table(kind: Any) -> None:
    shown = inspect.signature(kind.__init__).parameters
    typed = inspect.get_annotations(_options.Options)
    assert [name for name in shown if name in _options.TABLE] == list(_options.TABLE) == list(typed)
    for name, default in (_options.DEFAULTS | OTHER_DEFAULTS.get(kind, {})).items():
        one = shown[name]
        assert (one.kind, one.default, one.annotation) == (one.KEYWORD_ONLY, default, typed[name])


def test_signature_of_torch_loader_begins_with_torchs_arguments() -> None:
    theirs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(headrace.torch.DataLoader).parameters
    assert list(ours) == [*theirs, *_options.TABLE]


@BOTH
def test_options_are_attributes(kind: Any) -> None:
    loader = kind([1, 2], **({} if kind is headrace.Loader else {"num_workers": 0}))
    expected = _options.DEFAULTS | OTHER_DEFAULTS.get(kind, {})
    given = {name: getattr(loader, name) for name in expected if name != "seed"}
    assert given == {name: value for name, value in expected.items() if name != "seed"}
    assert {name: getattr(kind, name) for name in expected} == _options.DEFAULTS


@BOTH
def test_docstring_has_paragraph_for_each_option(kind: Any) -> None:
    lines = inspect.getdoc(kind).splitlines()
    assert "{options}" not in inspect.getdoc(kind)
    for name in _options.TABLE:
        assert any(line.startswith(f"    {name}: ") for line in lines)
    assert max(map(len, lines)) <= 120


def test_documentation_of_options_is_up_to_date() -> None:
    tool = ROOT / "tools" / "write_options.py"
    made = subprocess.run([sys.executable, tool, "-"], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "options.md").read_text() == made, f"run {tool.relative_to(ROOT)}"


@pytest.mark.parametrize("name", _options.TABLE)
def test_unknown_and_bad_options_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}s is not one of headrace's own options"):
        _options.check_own({f"{name}s": None})
    with pytest.raises((TypeError, ValueError), match=name):
        _options.check_own({name: object()})
    _options.check_own({name: _options.DEFAULTS[name]})


def test_limits_are_those_of_the_extension() -> None:
    """The options are checked without the extension, too."""
    ours = checks._LEAST_CACHE, checks._MOST_THREADS, checks._MIN_LIMIT
    assert ours == (_core.SAMPLES_LEAST_BYTES, _core.IMAGE_MOST_THREADS, _core.COMMIT_STEP)


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
        "sample_threads",
        "cache",
        "freeze",
        "repair",
        "device",
        "device_prefetch",
        "record",
    ]
    assert list(ours.parameters) == [*theirs.parameters, *own]
    assert inspect.signature(Headrace.__init__).parameters.keys() == {"self", *ours.parameters}
    assert ours.parameters["arena_limit"].kind is inspect.Parameter.KEYWORD_ONLY

    class Sub(Headrace):  # type: ignore[type-arg]
        def __init__(self, path: str) -> None:
            super().__init__(path)

    assert list(inspect.signature(Sub).parameters) == ["path"]


@only_headrace
@pytest.mark.parametrize(("option", "text"), [("num_workers", "1 to 1024"), ("prefetch_factor", "1 to 32768")])
@pytest.mark.parametrize("number", [2**32, 2**32 + 1, 2**70])
def test_counts_beyond_32_bits_are_refused(option: str, text: str, number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of so many workers
        loader = Headrace([1, 2], **{"num_workers": 1, "multiprocessing_context": "fork", option: number})
        with pytest.raises(ValueError, match=text):
            iter(loader)


@only_headrace
@pytest.mark.parametrize(("seed", "error"), [("x", TypeError), (True, TypeError), (-1, ValueError)])
def test_install_checks_the_seed(seed: Any, error: type[Exception]) -> None:
    from headrace.torch import installed

    with pytest.raises(error, match="seed should"), installed(seed=seed):
        pass


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
        assert len(list(loader)) == 4  # no sample has random numbers of its own there
        return
    with pytest.raises((TypeError, ValueError), match=f"{name} should be") as caught:
        iter(loader)
    if sys.version_info >= (3, 11):
        assert any("rename it" in note for note in caught.value.__notes__)
