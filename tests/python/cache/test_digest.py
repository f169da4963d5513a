# SPDX-License-Identifier: Apache-2.0
"""The digest of a function that builds: what changes it, and what does not."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from headrace._cache import digest, parts

HELPER = """
SCALE = {scale}
class Model:
    def run(self, x):
        return x * {factor}
def helper(x):
    return Model().run(x) * SCALE
def build():
    return helper(2)
"""


def seen(function: Any, has_version: bool = False) -> dict[str, str]:
    return digest.seen_by(function, has_version).seen


@pytest.fixture
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**values: Any) -> Any:
        sys.modules.pop("users_module", None)
        (tmp_path / "users_module.py").write_text(HELPER.format(**{"scale": 1, "factor": 1, **values}))
        importlib.invalidate_caches()
        import linecache

        linecache.clearcache()
        return importlib.import_module("users_module")

    yield write
    sys.modules.pop("users_module", None)


def test_digest_covers_functions_constants_and_classes(module: Any) -> None:
    first = seen(module().build)
    assert first == seen(module().build)
    assert set(first) == {"build", "helper", "Model", "SCALE"}
    assert seen(module(scale=2).build)["SCALE"] != first["SCALE"]
    assert seen(module(factor=2).build)["Model"] != first["Model"]


def test_digest_covers_closures_defaults_and_partials() -> None:
    def make(value: Any, other: Any = 1) -> Any:
        def build(default: Any = other) -> Any:
            return value, default

        return build

    assert seen(make(1)) == seen(make(1)) != seen(make(2))
    assert seen(make(1, 5)) != seen(make(1, 6))
    assert seen(make(np.zeros(3))) == seen(make(np.zeros(3))) != seen(make(np.ones(3)))
    assert seen(functools.partial(make, 1)) != seen(functools.partial(make, 2))


def test_digest_covers_instances() -> None:
    class Loader:
        def __init__(self, path: str) -> None:
            self.path = path

        def load(self) -> str:
            return self.path

    assert seen(Loader("a").load) == seen(Loader("a").load)
    assert any("self" in name for name in seen(Loader("a").load))


def test_large_values_need_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 1000)
    large = np.zeros(1000)
    with pytest.raises(ValueError, match=r"large is larger than 0 MiB.*give version="):
        seen(lambda: large)
    assert seen(lambda: large, has_version=True)


def test_libraries_are_not_read() -> None:
    found = set(seen(lambda: np.asarray(pathlib.Path)))
    own = "test_libraries_are_not_read.<locals>.<lambda>"
    assert found == {own, "the version of numpy", "the version of python"}


def test_code_that_names_code_at_any_depth_has_a_digest() -> None:
    space: dict[str, Any] = {}
    lines = ["def f0(): return 1"] + [f"def f{n}(): return f{n - 1}()" for n in range(1, 2000)]
    exec("\n".join(lines), space)
    assert "f1990" in digest.seen_by(space["f1999"], False).seen


def test_digest_is_the_same_with_any_order_of_hashes(tmp_path: pathlib.Path) -> None:
    """Code may have sets as constants, be a lambda, or be typed in, which means without a source text."""
    (tmp_path / "users.py").write_text(
        "def build(x): return x in {'a', 'b', 'c', 'd'}\n"
        "keep = lambda x: x in {'a', 'b', 'c', 'd'}\n"
        "class Data:\n"
        "    def __init__(self): self.names, self.keep = {'a', 'b', 'c', 'd'}, keep\n"
    )
    code = (
        "from headrace._cache import digest; import users\n"
        'space = {}; exec(\'def typed(x): return x in {1.5, "a", "b", "c"}\', space)\n'
        "print(digest.seen_by(users.build, False).seen, digest.seen_by(users.keep, False).seen,"
        " digest.seen_by(space['typed'], False).seen, digest.seen_in(users.Data()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1


def test_values_of_a_closure_keep_their_places() -> None:
    def make(one: Any, other: Any) -> Any:
        return lambda: (one, other)

    def seen(function: Any) -> Any:
        return digest.seen_in(types.SimpleNamespace(function=[function]))

    assert seen(make(None, 3)) != seen(make(3, None))
    assert seen(make(None, 3)) == seen(make(None, 3))
