# SPDX-License-Identifier: Apache-2.0
"""The two loaders that the tests compare.

`HEADRACE_TESTS_AGAINST=torch` puts torch's own loader in headrace's place: every test of sameness must pass then too,
which proves the test. Tests of what headrace does better are skipped there.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, TypeVar

import pytest
import torch.utils.data

# torch's own class, also in a process whose sitecustomize has put headrace's under its name.
Torch: Any = next(
    one for one in torch.utils.data.DataLoader.__mro__ if one.__module__ == torch.utils.data.dataloader.__name__
)

if os.environ.get("HEADRACE_TESTS_PIN") == "1":  # on a GPU: all loaders pin, unless a test says otherwise
    _shown = [one for one in inspect.signature(Torch.__init__).parameters.values() if one.default is not one.empty]
    Torch.__init__.__defaults__ = tuple(
        one.name == "pin_memory" or one.default for one in _shown if one.kind is one.POSITIONAL_OR_KEYWORD
    )

ENGINE = os.environ.get("HEADRACE_TESTS_AGAINST", "headrace") != "torch"

if ENGINE:
    from headrace.torch import DataLoader
else:
    T = TypeVar("T")

    class DataLoader(torch.utils.data.DataLoader[T]):  # type: ignore[no-redef]
        """torch's loader, which knows headrace's own options by name only."""

        def __init__(self, *args: Any, arena_limit: int | None = None, **options: Any) -> None:
            super().__init__(*args, **options)
            self.arena_limit = arena_limit


Headrace = DataLoader

only_headrace = pytest.mark.skipif(not ENGINE, reason="torch's loader does not do this")


def failpoints() -> bool:
    """Returns True if the installed headrace was built with failpoints (`HEADRACE_FAIL` works)."""
    if not ENGINE:
        return False
    from headrace import _core

    return bool(getattr(_core, "FAILPOINTS", False))


needs_failpoints = pytest.mark.skipif("not __import__('loaders').failpoints()", reason="a build without failpoints")

# one kind per run: what the tests ask of headrace they ask of torch with HEADRACE_TESTS_AGAINST=torch
LOADERS = pytest.mark.parametrize("kind", [Headrace], ids=["headrace" if ENGINE else "torch"])

METHODS = ("fork", "spawn", "forkserver")


def forked(kind: Any, dataset: Any, **options: Any) -> Any:
    options.setdefault("num_workers", 1)
    options.setdefault("multiprocessing_context", "fork")
    return kind(dataset, **options)


def _as_is(sample: Any) -> Any:
    return sample


def unbatched(kind: Any, dataset: Any, **options: Any) -> Any:
    """Returns a loader whose values are the samples themselves."""
    return forked(kind, dataset, **{"batch_size": None, "collate_fn": _as_is, **options})
