# SPDX-License-Identifier: Apache-2.0
"""Runs a script of scripts/ twice, in new processes: to save in the middle of an epoch, and to resume. The tests of
this folder compare what the two have seen."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import pathlib
from typing import Any

import pytest
from processes import Script

SCRIPTS = pathlib.Path(__file__).parent / "resumes"
COUNT, BATCH, EPOCHS = 50, 4, 3
DEADLINE_S = 500  # a run takes up to 40 s where its framework is imported for the first time

Facts = dict[str, Any]


def steps_of(world_size: int = 1) -> int:
    """Returns the steps of an epoch on each rank, as scripts/common.py does."""
    return math.ceil(math.ceil(COUNT / world_size) / BATCH)


def saved_at(world_size: int = 1) -> int:
    return steps_of(world_size) + steps_of(world_size) // 2


def _run(name: str, folder: pathlib.Path, run: str) -> None:
    path = os.pathsep.join([str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {
        "HEADRACE_RUN": run,
        "PYTHONPATH": path,  # not lib/, whose datasets.py would be taken for the package datasets
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "HEADRACE_DISABLE": str(int(run == "disabled")),
    }
    with Script(folder, (SCRIPTS / f"resume_{name}.py").read_text(), **env) as script:
        status = script.finish(DEADLINE_S)
        assert status == 0, f"{run}: exit code {status}\n{script.stdout}\n{script.stderr}"
        assert script.left() == []


def facts_of(name: str, folder: pathlib.Path, *others: str) -> Facts:
    """Runs a script to save, to resume, and other runs. Returns its reports by their names, such as "save.torch_0"."""
    for run in ("save", "resume", *others):
        _run(name, folder, run)
    return {path.name.removesuffix(".json"): json.loads(path.read_text()) for path in folder.glob("*.json")}


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make test-frameworks installs it")


def after_save(facts: Facts, case: str, steps: int) -> list[Any]:
    """Returns what the run that was never stopped saw after it had saved."""
    return facts[f"save.{case}"]["seen"][steps:]  # type: ignore[no-any-return]


def resumed(facts: Facts, case: str) -> list[Any]:
    return facts[f"resume.{case}"]["seen"]  # type: ignore[no-any-return]


def indices(seen: list[Any], epoch: int) -> list[int]:
    return [index for one, *parts in seen if one == epoch for part in parts for index in part]
