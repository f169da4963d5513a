# SPDX-License-Identifier: Apache-2.0
"""Each public name of the Python package is explained on exactly one page of the reference."""

from __future__ import annotations

import collections
import importlib.util
import pathlib
import re
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/reference/python").glob("*.md"))
PACKAGES = ["headrace", "headrace.torch", "headrace.doctor", "headrace.frozen", "headrace.images", "headrace.sources"]
_ENTRY = re.compile(r"^\.\. auto(?:class|function|exception):: (\S+)$", re.MULTILINE)
# The same objects as in headrace.frozen, which is where they are explained.
ALSO_FROZEN = {"FrozenError", "freeze", "freeze_attributes", "open", "thaw"}
TEXTS = {"headrace.__version__"}


def list_entries() -> collections.Counter[str]:
    return collections.Counter(name for page in PAGES for name in _ENTRY.findall(page.read_text()))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_on_one_page(package: str) -> None:
    if package == "headrace.images":
        pytest.importorskip("PIL", reason="make build/images.stamp installs Pillow")
    module, entries = importlib.import_module(package), list_entries()
    for name in module.__all__:
        value, full = getattr(module, name), f"{package}.{name}"
        if isinstance(value, types.ModuleType) or full in TEXTS:
            continue
        if full == "headrace.cache":  # an object; its methods are explained
            full = "headrace.cache.__call__"
        if package == "headrace" and name in ALSO_FROZEN:
            full = f"headrace.frozen.{name}"
        assert entries[full] == 1, f"{full} is on {entries[full]} pages of docs/reference/python"


def test_methods_of_cache_are_on_one_page() -> None:
    import headrace

    methods = [name for name in vars(type(headrace.cache)) if not name.startswith("_")]
    assert {name: list_entries()[f"headrace.cache.{name}"] for name in methods} == dict.fromkeys(methods, 1)


def test_each_public_name_has_docstring() -> None:
    for name in list_entries():
        if name.startswith("headrace.images.") and importlib.util.find_spec("PIL") is None:
            continue
        value = _find(name)
        assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def _find(name: str) -> object:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"there is no {name}")
