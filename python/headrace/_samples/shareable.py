# SPDX-License-Identifier: Apache-2.0
"""Checks that several threads may call a dataset at the same time (`sample_threads`), before the first sample.

What worker_init_fn or a sample opens later is not seen.
"""

from __future__ import annotations

import sys
from typing import Any

from headrace._base import code, exception_text, growth, lookup, shared_files
from headrace._base.help_key import help_on
from headrace._options import Settings
from headrace._samples import prepared
from headrace._samples.own_generators import Search

_LOOKING = frozenset({"getattr", "vars", "__dict__", "attrgetter"})  # what may find an attribute without its name


def check(dataset: Any, settings: Settings) -> None:
    """Raises ValueError if threads cannot make the samples of a dataset at the same time, and says why."""
    if settings.sample_threads == 1:
        return
    option = f"headrace: sample_threads={settings.sample_threads}"
    seen = prepared.shown(dataset)
    if (owner := _owner_of_getitems(seen)) is not None:
        raise ValueError(
            f"{option} needs the dataset's __getitem__, but {owner} has a __getitems__, which makes a whole batch. "
            "Give the loader a dataset that takes the samples one by one:\n"
            "    class OneByOne(torch.utils.data.Dataset):\n"
            "        def __init__(self, dataset): self.dataset = dataset\n"
            "        def __len__(self): return len(self.dataset)\n"
            "        def __getitem__(self, index): return self.dataset[index]\n " + help_on("sample-threads")
        )
    if generators := [path for path in Search({"dataset": seen}).stateful if _may_be_drawn_from(seen, path)]:
        raise ValueError(
            f"{option}: threads would share random number generators, so which sample has which numbers would depend "
            f"on the time that each takes: {', '.join(generators)}. Take the numbers of a sample from "
            'headrace.sample_generator("numpy"), "torch" or "random"; or draw in collate_fn' + help_on("sample-threads")
        )
    if found := shared_files.find_for_threads({"dataset": seen}):
        raise ValueError(
            f"{option}: threads would share {shared_files.in_words(found)}. Two threads that read there at the same "
            f"time get each other's data. {_advice(found[0])} " + help_on("sample-threads")
        )


def explain(error: Exception, sample_threads: int) -> None:
    """Adds what to do to an error of SQLite: a sample has opened the database that another thread uses."""
    if lookup.static_module(type(error)) == "sqlite3" and "same thread" in str(error):
        lines = "\n    ".join(shared_files.lines_per_thread(shared_files.SharedFile("", "", "sqlite3.connect(...)")))
        exception_text.add_text(
            error,
            f"headrace: sample_threads={sample_threads}: several threads make samples, and one of them has opened the "
            f"database. Have one for each thread:\n    {lines}\n " + help_on("sample-threads"),
        )


def _may_be_drawn_from(dataset: Any, path: str) -> bool:
    """Returns False for a generator in an attribute of the dataset itself that only its __init__ names."""
    owner, _, name = path.rpartition(".")
    if owner != "dataset" or not name.isidentifier():
        return True
    functions = [one for one in growth.functions_of(dataset) if one.__name__ not in ("__init__", "__new__")]
    named = {one for function in functions for one in code.names(function.__code__)}
    return name in named or not named.isdisjoint(_LOOKING) or growth.is_opaque(type(dataset))


def _advice(one: shared_files.SharedFile) -> str:
    if one.opening == "...":
        return "Make what a sample needs from its index, or have one for each thread, in a threading.local()"
    return "Have one for each thread:\n    " + "\n    ".join(shared_files.lines_per_thread(one)) + "\n"


def _owner_of_getitems(dataset: Any) -> str | None:
    """Returns the name of the class whose __getitems__ a fetcher would call, or None if the samples can be taken one by
    one: torch's Subset only passes its call on."""
    if isinstance(dataset, prepared.PreparedDataset) or _top(type(dataset)) == "headrace":
        return None
    found = getattr(dataset, "__getitems__", None)  # as torch's fetcher asks
    if not found:
        return None
    getitem = lookup.static(type(dataset), "__getitem__")
    if _is_of_subset(getattr(found, "__func__", None), "__getitems__") and _is_of_subset(getitem, "__getitem__"):
        return _owner_of_getitems(dataset.dataset)
    return type(dataset).__name__


def _is_of_subset(function: Any, name: str) -> bool:  # shortcut: subset-in-threads
    """Returns True for the method of torch's class, and not for another one that a program has put in its place, or
    that a subclass has: torch's __getitems__ would not call its __getitem__."""
    subset = lookup.own_class("torch.utils.data.dataset", "Subset")
    code, module = getattr(function, "__code__", None), sys.modules.get("torch.utils.data.dataset")
    if subset is None or module is None or code is None:
        return False
    return function is lookup.static(subset, name) and code.co_filename == module.__file__


def _top(cls: type) -> str:
    return lookup.static_module(cls).partition(".")[0]
