# SPDX-License-Identifier: Apache-2.0
"""Ranks show each other how long their loops wait: headrace.torch.stats(loader, max_over_ranks=True)."""

from __future__ import annotations

import json
import pathlib

from rank_scripts import run_ranks

WAITS = """
import json, time
import torch
from headrace.torch import DataLoader, DistributedSampler, stats

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        time.sleep(0.005 if RANK == 1 else 0)
        return torch.zeros(4)

torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(SHARED / "store"), WORLD_SIZE),
                                     rank=RANK, world_size=WORLD_SIZE)
data = Slow()
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), num_workers=0)
for batch in loader:
    time.sleep(0.01)
    torch.distributed.barrier()
found = stats(loader, max_over_ranks=True)
print(json.dumps(found), flush=True)
meet("end")
os._exit(0)
"""


def test_slowest_rank_is_named_on_all(tmp_path: pathlib.Path) -> None:
    first, second = (json.loads(text.splitlines()[-1]) for text in run_ranks(tmp_path, 2, WAITS))
    assert second["wait"] > 0.25 > first["wait"]
    assert (first["job_rank"], second["job_rank"]) == (1, 1)
    assert abs(first["job_wait"] - second["wait"]) < 0.15
