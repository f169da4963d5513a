# SPDX-License-Identifier: Apache-2.0
"""States where headrace's engine does not run: they are those of the engine, and the other way round."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.torch import DataLoader
from loaders import only_headrace
from processes import run
from resumed import MAKERS

pytestmark = [only_headrace, pytest.mark.warm]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ["HEADRACE_DISABLE"] = "{disabled}"
sys.path.insert(0, {lib!r})
import torch
from resumed import MAKERS, Counting, plain, run, stop
found = {{}}
for kind in {kinds!r}:
    torch.manual_seed(5)
    whole = run(MAKERS[kind](num_workers={workers}), epochs=2)
    torch.manual_seed(5)
    state, numbers = stop(MAKERS[kind](num_workers={workers}), len(whole[0]) + 2)
    found[kind] = whole, state, numbers.tolist()
    if {loads}:
        states = json.load(open({path!r}))
        for whole, state, numbers in [found[kind], states[kind]]:
            loader = MAKERS[kind](num_workers={other})
            torch.set_rng_state(torch.tensor(numbers, dtype=torch.uint8))
            loader.load_state_dict(state)
            assert run(loader, 1, 2) == [whole[1][2:]], kind
json.dump(found, open({path!r}, "w"))
print(type(MAKERS["shuffle"]()).__module__)
"""


def _script(disabled: bool, path: Any, workers: int, loads: bool, kinds: list[str]) -> str:
    lib = __file__.replace("torch/test_resume_fallback.py", "lib")
    other = 2 - workers
    return SCRIPT.format(
        disabled=int(disabled),
        lib=lib,
        kinds=kinds,
        workers=workers,
        other=other,
        loads=loads,
        path=str(path),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_states_go_to_the_fallback_and_back(tmp_path: Any, workers: int) -> None:
    kinds = [kind for kind in MAKERS if workers == 0 or kind in ("shuffle", "distributed", "own generator", "per_rank")]
    path = tmp_path / "states.json"
    for number, disabled in enumerate((False, True, False)):
        out = run(tmp_path, _script(disabled, path, workers, number > 0, kinds))
        assert out.strip() == ("headrace.torch._fallback" if disabled else DataLoader.__module__)
