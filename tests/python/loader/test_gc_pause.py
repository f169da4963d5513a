# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector is paused while a worker imports, and then runs as the script has set it up."""

from __future__ import annotations

import ast
import pathlib
from typing import Any

import pytest
from headrace._loader.start import gc_pause
from processes import Script

pytestmark = pytest.mark.cold("a warm server has changed what the garbage collector visits")
METHODS = ("fork", "spawn", "forkserver")

SCRIPT = """
import gc, multiprocessing
{setup}
AT_IMPORT = gc.get_threshold()
CYCLE = []
CYCLE.append(CYCLE)

class Reports:
    def __init__(self, cycles):
        self.cycles = cycles

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.at_arrival = gc.get_threshold()

    def __len__(self):
        return 1

    def __getitem__(self, index):
        is_kept = not any(found is CYCLE for found in gc.get_objects())
        at_arrival = getattr(self, "at_arrival", None)
        name = multiprocessing.current_process().name
        return AT_IMPORT, at_arrival, gc.get_threshold(), gc.isenabled(), is_kept, name

if __name__ == "__main__":
    from headrace import Loader
    before = gc.get_threshold(), gc.get_freeze_count()
    iterator = iter(Loader(Reports([]), None, num_workers=1, multiprocessing_context={method!r}))
    (process,) = multiprocessing.active_children()
    names = type(process.name) is str, process.name
    print([before, next(iterator), (gc.get_threshold(), gc.get_freeze_count()), names])
"""


def run(folder: pathlib.Path, method: str, setup: str) -> Any:
    with Script(folder, SCRIPT.format(method=method, setup=setup)) as script:
        assert script.finish(60) == 0, script.stderr
        return ast.literal_eval(script.stdout)


def is_paused(thresholds: tuple[int, ...]) -> bool:
    return thresholds[0] >= gc_pause.PAUSE


@pytest.mark.parametrize("method", METHODS)
def test_gc_is_paused_until_dataset_arrives(tmp_path: pathlib.Path, method: str) -> None:
    before, reported, after, (is_plain, name) = run(tmp_path, method, "")
    at_import, at_arrival, at_work, is_enabled, is_kept, name_there = reported
    assert before == after  # the trainer is not affected
    assert at_work == before[0] and is_enabled
    assert name_there == name and is_plain
    if method == "fork":
        assert (at_import, at_arrival, is_kept) == (before[0], None, False)
    else:
        assert is_paused(at_import) and is_paused(at_arrival) and is_kept


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "setup, threshold, is_enabled",
    [
        ("gc.set_threshold(12345, 6, 7)", 12345, True),
        ("gc.set_threshold(5_000_000)", 5_000_000, True),
        ("gc.set_threshold(0)", 0, True),
        ("gc.disable()", None, False),
    ],
)
def test_gc_settings_of_script_are_kept(
    tmp_path: pathlib.Path, method: str, setup: str, threshold: int | None, is_enabled: bool
) -> None:
    before, (_, _, at_work, was_enabled, *_), after, _ = run(tmp_path, method, setup)
    assert before == after and threshold in (None, before[0][0])
    assert (at_work, was_enabled) == (before[0], is_enabled)
