# SPDX-License-Identifier: Apache-2.0
"""The table of headrace's own options: arguments, attributes, docstrings and docs/options.md follow from it."""

from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys
from typing import Any

import headrace
import headrace.torch
import pytest
import torch.utils.data
from headrace import _core, _options
from loaders import only_headrace

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
    assert (_options._LEAST_CACHE, _options._MOST_THREADS) == (_core.SAMPLES_LEAST_BYTES, _core.IMAGE_MOST_THREADS)
