# SPDX-License-Identifier: Apache-2.0
"""Ray Train on a cluster of two nodes, which are both this machine. Ray starts the ranks itself; `headrace exec` is the
parent of the script."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

import pytest
from processes import alive, until
from ranks_of_loaders import HEADRACE, assert_ranks_agree, clean, what_ranks_saw

pytest.importorskip("ray", reason="Ray is not installed: make test-schedulers does it")
pytestmark = pytest.mark.timeout(600)

# Ray copies functions by value, so that a worker finds them without the file.
DRIVER = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

folder, fails = sys.argv[1], sys.argv[2] == "fails"

def train(config):
    import torch, torch.distributed as dist
    import headrace
    from headrace._ranks.where import find
    from headrace.torch import DataLoader, DistributedSampler, per_rank
    place, total, disagree = find(), torch.ones(1), ""
    dist.all_reduce(total)
    samples = [int(i) for batch in DataLoader(range(48), 4, sampler=per_rank(range(48), seed=1)) for i in batch]
    try:
        for batch in DataLoader(range(48), 4, sampler=DistributedSampler(range(48), seed=place.rank)):
            pass
    except headrace.RanksDisagree as error:
        disagree = str(error)
    dist.barrier()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    seen = {
        "rank": place.rank, "world_size": place.world_size, "local": [place.local_rank, place.local_world_size],
        "source": place.source, "total": int(total), "samples": samples, "disagree": disagree, "pid": os.getpid(),
        "variables": [os.environ.get(name) for name in names],
    }
    with open(os.path.join(config["folder"], f"seen.{place.rank}"), "w") as file:
        json.dump(seen, file)
    if config["fails"] and place.rank == 1:
        raise ValueError("of rank 1")

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()), flush=True)
trainer = TorchTrainer(
    train,
    train_loop_config={"folder": folder, "fails": fails},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"),
    run_config=RunConfig(name="test", storage_path=os.path.join(folder, "results")),
)
trainer.fit()
ray.shutdown()
cluster.shutdown()
"""


def run_driver(folder: pathlib.Path, how: str) -> subprocess.CompletedProcess[str]:
    script = folder / "driver.py"
    script.write_text(DRIVER)
    environment = {name: value for name, value in clean().items() if not name.startswith("MASTER_")}
    environment |= {"RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [HEADRACE, "exec", sys.executable, str(script), str(folder), how]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:  # sockets have short paths
        environment["RAY_TMPDIR"] = short
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=folder)


def test_ranks_of_ray_train_find_their_place_and_agree(tmp_path: pathlib.Path) -> None:
    done = run_driver(tmp_path, "works")
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert "nodes 2" in done.stdout
    seen = what_ranks_saw(tmp_path, 2)
    assert {rank["source"] for rank in seen} == {"torch.distributed's default group"}
    assert_ranks_agree(seen)
    assert [rank["local"] for rank in seen] == [[int(rank["variables"][2]), int(rank["variables"][3])] for rank in seen]


def test_failed_training_leaves_no_process_of_ray(tmp_path: pathlib.Path) -> None:
    done = run_driver(tmp_path, "fails")
    assert done.returncode == 1, (done.stdout[-3000:], done.stderr[-3000:])
    assert "headrace: the command ended with exit code 1, after " in done.stderr
    assert "processes that the command had started were killed" in done.stderr
    pids = [rank["pid"] for rank in what_ranks_saw(tmp_path, 2)]
    assert until(lambda: not any(map(alive, pids)), 20), pids
