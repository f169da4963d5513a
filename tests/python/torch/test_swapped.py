# SPDX-License-Identifier: Apache-2.0
"""headrace's classes under torch's names, put there by hand: headrace itself still finds torch's own."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from loaders import only_headrace
from processes import environment, run

pytestmark = only_headrace

SWAP = """
torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = headrace.torch.DataLoader
torch.utils.data.DistributedSampler = headrace.torch.DistributedSampler
torch.utils.data.distributed.DistributedSampler = headrace.torch.DistributedSampler
"""
FIRST = "import headrace.torch\nimport torch\n" + SWAP
LATER = "import numpy, torch\nfrom torch.utils.data import DataLoader\nimport headrace.torch\n" + SWAP
SAME_AS_TORCH = pathlib.Path(__file__).with_name("test_same_as_torch.py")
FORKED = (
    "come_in_order or over_three_epochs or no_workers or custom_collate or exception or wrong_options or guarded or "
    "recognises or distributed_samplers or subclass or is_a_torch_loader or persistent or surroundings[fork]"
)
STARTED = "iterable_dataset_in_started_workers or context_object or default_start_method"


@pytest.mark.parametrize(("code", "chosen"), [(FIRST, STARTED), (LATER, FORKED)], ids=["first", "later"])
def test_swapped_class_does_what_torch_does(tmp_path: pathlib.Path, code: str, chosen: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(code)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SAME_AS_TORCH), "-k", chosen]
    done = subprocess.run(command, env=environment(PYTHONPATH=paths), capture_output=True, text=True, timeout=300)
    found = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and found, done.stdout + done.stderr
    assert int(found[1]) >= len(chosen.split(" or "))


USES = f"""
import torch
{FIRST}
torchs = headrace.torch.DataLoader.__mro__[3]
assert (torchs.__module__, torchs.__name__) == ("torch.utils.data.dataloader", "DataLoader"), torchs
theirs = torchs(range(4), num_workers=1, multiprocessing_context="fork")
with headrace.torch.installed():
    print(type(iter(theirs)).__module__)
print(type(iter(theirs)).__module__)

from headrace import _options
from headrace.torch._frameworks.accelerate import sampler_of_one_rank
dealing = headrace.torch.DistributedSampler.__mro__[1](range(4), num_replicas=2, rank=0)
ranks = headrace.torch.per_rank(range(4), num_replicas=2, rank=0)
plan = headrace.Plan([1] * 4, max_batch=2, world_size=2, rank=0)
plan = headrace.torch.DataLoader(range(4), batch_sampler=plan).sampler
print(_options.is_torchs_loader(theirs), sampler_of_one_rank(dealing) is dealing)
print(all(isinstance(one, torch.utils.data.DistributedSampler) for one in (ranks, plan)))
"""


def test_torchs_own_class_is_still_known_after_a_swap(tmp_path: pathlib.Path) -> None:
    engines = "headrace.torch._loader.workers\ntorch.utils.data.dataloader\n"
    assert run(tmp_path, USES) == engines + "True True\nTrue\n"


OTHER_TOOL = """
import torch.utils.data
torchs = torch.utils.data.DataLoader
class Tool(torchs):
    pass
torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = {}
import headrace.torch
print(torchs in headrace.torch.DataLoader.__mro__, Tool in headrace.torch.DataLoader.__mro__)
print(len(headrace.torch.DataLoader(range(4), num_workers=1, multiprocessing_context="fork")))
"""


def test_headrace_is_based_on_torchs_class_below_a_tools(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, OTHER_TOOL.format("Tool")) == "True False\n4\n"


def test_torchs_class_that_is_gone_is_named(tmp_path: pathlib.Path) -> None:
    script = OTHER_TOOL.format("lambda *args: None") + "\n"
    code = f"try:\n    exec({script!r})\nexcept ImportError as error:\n    print(error)\n"
    assert "torch's own DataLoader, but another tool" in run(tmp_path, "import torch\n" + code)
