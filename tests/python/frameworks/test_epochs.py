# SPDX-License-Identifier: Apache-2.0
"""headrace under the frameworks that make their loaders themselves: accelerate, Lightning, transformers.

Each is tried once, by a script in epochs/; the tests look at what it reports.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
from processes import Script

SCRIPTS = pathlib.Path(__file__).parent / "epochs"
INDICES = list(range(24))
SMALL = 1 << 26

pytestmark = pytest.mark.timeout(600)  # a script takes up to 20 s where its framework is imported for the first time

Facts = dict[str, Any]


def facts_of(package: str, folder: pathlib.Path) -> Facts:
    """Returns the reports of the script of a package, by their names."""
    path = os.pathsep.join([str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    code = (SCRIPTS / f"with_{package}.py").read_text()
    with Script(folder, code, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="", **env) as script:
        status = script.finish(500)
        assert status == 0, f"exit code {status}\n{script.stdout}\n{script.stderr}"
        assert script.left() == []
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("accelerate", tmp_path_factory.mktemp("accelerate"))


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("lightning", tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of("transformers", tmp_path_factory.mktemp("transformers"))


def indices(batches: list[Any]) -> list[int]:
    return [index for _, labels in batches for index in labels]


# ---- accelerate ----


def test_loader_rebuilt_by_accelerate_gives_the_same_batches(accelerate: Facts) -> None:
    facts = accelerate["alone"]
    assert facts["rebuilt"]
    assert facts["engines"] == [["torch"], ["headrace"], ["headrace"]]
    assert facts["ours"] == facts["theirs"]
    assert sorted(indices(facts["theirs"])) == INDICES
    assert facts["rest"] == facts["theirs"][2:]


def test_two_processes_of_accelerate_get_disjoint_halves(accelerate: Facts) -> None:
    ranks = [accelerate["rank0"], accelerate["rank1"]]
    assert [rank["engines"] for rank in ranks] == [["headrace"], ["headrace"]]
    assert [rank["total"] for rank in ranks] == [[12, 12], [12, 12]]
    assert sorted(ranks[0]["seen"] + ranks[1]["seen"]) == INDICES


def test_accelerate_imported_after_install_is_changed_too(accelerate: Facts) -> None:
    assert accelerate["late"] == {
        "changed": "headrace.torch._frameworks.accelerate",
        "restored": "accelerate.data_loader",
    }


def test_accelerate_removing_the_engine_warns_once_at_its_line(accelerate: Facts) -> None:
    """The warning comes once, and names the line where accelerate takes the engine away."""
    facts = accelerate["warned"]
    assert facts["engines"] == ["torch", "torch"]
    [(text, file)] = facts["first"]
    assert "accelerate's prepare() replaces this loader" in text
    assert "headrace.torch.install()" in text
    assert file == "script.py"
    assert facts["second"] == []


def test_accelerate_dropping_the_limit_warns_once(accelerate: Facts) -> None:
    """The warning comes once; a limit that install() sets replaces the dropped one."""
    facts = accelerate["warned"]
    [[(text, file)], second] = facts["limit_lost"]
    assert "accelerate's prepare() replaces this loader" in text
    assert "headrace.torch.install(arena_limit=..., max_restarts=..., rng=..., seed=..., " in text
    assert file == "script.py"
    assert second == []
    assert facts["limits"] == [SMALL]


def test_accelerate_that_removes_no_option_does_not_warn(accelerate: Facts) -> None:
    facts = accelerate["warned"]
    assert facts["none"] == {"installed": [], "limit given": [], "in process": [], "torch's": []}
    assert facts["left_alone"]


def test_accelerate_does_not_make_a_loader_with_steps_again(accelerate: Facts) -> None:
    assert "without steps_per_epoch=5; do not give it to prepare()" in accelerate["warned"]["refused"]


def test_sampler_that_accelerate_deals_again_raises(accelerate: Facts) -> None:
    """accelerate deals the batches of any loader. With torch's sampler 8 of 24 samples are never seen, without an
    error; headrace's samplers raise, and headrace's loader with any of them."""
    ranks = [accelerate["dealt0"], accelerate["dealt1"]]
    kinds = {"torch's": "DistributedSampler", "ours": "DistributedSampler", "per_rank": "PerRank"}
    kinds["per_rank of batches"] = "PerRank"
    assert len({index for rank in ranks for index in rank["torch's"][0]}) == 16
    for name, kind in kinds.items():
        for rank in ranks:
            text = f"headrace: {kind} gives each rank its part, and accelerate's prepare() deals this part to its 2"
            for raised in rank[name][name == "torch's" : 2]:
                assert raised.startswith(text)


@pytest.mark.parametrize("name", ["torch's", "ours", "per_rank", "per_rank of batches", "whole order"])
def test_installed_accelerate_leaves_sampler_of_one_rank(accelerate: Facts, name: str) -> None:
    ranks = [accelerate["dealt0"], accelerate["dealt1"]]
    assert sorted(index for rank in ranks for index in rank[name][2]) == INDICES


def test_plan_under_accelerate_gives_its_batches(accelerate: Facts) -> None:
    """accelerate deals the batches of a plan to its processes, so the plan gives it those of all ranks."""
    ranks = [accelerate["planned0"], accelerate["planned1"]]
    for rank in ranks:
        expected = [index for batch in rank["expected"] for index in batch]
        assert [*rank["whole"], rank["installed"]] == [expected] * 3
        assert rank["prepared length"] == rank["length"]
        for text in rank["divided"]:
            assert "accelerate's prepare() divides each batch of this plan among its 2 processes" in text
    assert sorted(rank["whole"][0][i] for rank in ranks for i in range(len(rank["whole"][0]))) == INDICES


def test_loaders_that_are_not_prepared_deal_by_themselves(accelerate: Facts) -> None:
    ranks = [accelerate["dealt0"], accelerate["dealt1"]]
    for number in range(3):
        assert sorted(index for rank in ranks for index in rank["whole order"][number]) == INDICES
    for name in ("torch's", "ours", "per_rank", "per_rank of batches"):
        assert sorted(index for rank in ranks for index in rank[name][3]) == INDICES


# ---- Lightning ----


@pytest.mark.parametrize("how", ["ours", "installed"])
def test_lightning_gives_the_same_results_as_with_torch(lightning: Facts, how: str) -> None:
    theirs, facts = lightning["torchs"], lightning[how]
    assert theirs["engines"] == ["torch"] * 4
    assert facts["engines"] == ["headrace"] * 4
    for what in ("seen", "weights", "loss"):
        assert facts[what] == theirs[what]
    assert sorted(theirs["seen"]["train"]) == theirs["seen"]["predict"] == INDICES


def test_all_options_of_headraces_own_are_tried(lightning: Facts) -> None:
    assert sorted(lightning["options"]["tried"]) == sorted(lightning["options"]["own"])


def test_loader_rebuilt_by_lightning_keeps_its_options(lightning: Facts) -> None:
    assert lightning["ours"]["options"] == lightning["options"]["tried"]
    assert lightning["ours"]["limits"] == [SMALL] * 4


@pytest.mark.parametrize("made", ["given", "hooks"])
def test_loaders_rebuilt_for_two_devices_keep_engine_and_options(lightning: Facts, made: str) -> None:
    """Lightning rebuilds the loaders with distributed samplers."""
    ranks = [lightning["rank0"][made], lightning["rank1"][made]]
    loader = {
        "kind": "headrace.torch._loader.loader.DataLoader",
        "sampler": "DistributedSampler",
        "batch_size": 4,
        "num_workers": 1,
        **lightning["options"]["tried"],
    }
    for rank in ranks:
        assert rank["loaders"] == [loader] * 3  # to fit: two; to validate
        assert rank["engines"] == ["headrace"] * 6  # on two ranks, steps_per_epoch is two passes
        assert rank["limits"] == [SMALL] * 6
    for stage, passes in ("train", 2), ("val", 4):
        halves = [rank["seen"][stage] for rank in ranks]
        assert [len(half) for half in halves] == [12 * passes] * 2
        assert sorted(halves[0] + halves[1]) == sorted(INDICES * passes)


def test_lightning_leaves_per_rank_alone_and_sets_its_epoch(lightning: Facts) -> None:
    ranks = [lightning["dealt0"], lightning["dealt1"]]
    for rank in ranks:
        assert rank["loaders"] == [["PerRank", True]] * 2  # as sampler, to train and to validate
    for stage in "train", "val":
        halves = [rank["seen"][stage] for rank in ranks]
        assert sorted(halves[0] + halves[1]) == sorted(INDICES * 2)
    first, second = (sorted(half[:12]) for half in (ranks[0]["seen"]["train"], ranks[0]["seen"]["train"][12:]))
    assert first != second  # another part in the second epoch


def test_sampler_made_before_lightning_knows_ranks_raises(lightning: Facts) -> None:
    """Lightning tells its second process the number of ranks and its local rank only, and the first one nothing."""
    assert "(with Lightning: in the hook that makes the loader)" in lightning["dealt0"]["early"]
    assert "WORLD_SIZE is '2', but RANK is not set" in lightning["dealt1"]["early"]


def test_lightning_leaves_per_rank_of_batches_alone(lightning: Facts) -> None:
    """The loader shows it as its sampler too, so Lightning does not want to add another one."""
    halves = [lightning[f"dealt{rank}"]["batches"]["train"] for rank in range(2)]
    assert sorted(halves[0] + halves[1]) == sorted(INDICES * 2)
    assert sorted(halves[0][:12]) != sorted(halves[0][12:])


def test_lightning_leaves_a_plan_alone_and_sets_its_epoch(lightning: Facts) -> None:
    halves = [lightning[f"dealt{rank}"]["planned"]["train"] for rank in range(2)]
    assert sorted(halves[0] + halves[1]) == sorted(INDICES * 2)
    assert sorted(halves[0][:12]) != sorted(halves[0][12:])


# ---- transformers ----


def test_transformers_trainer_has_the_same_losses_to_the_bit(transformers: Facts) -> None:
    theirs, ours = transformers["torchs"], transformers["ours"]
    assert theirs.pop("engines") == ["torch", "torch"]  # train, evaluate
    assert ours.pop("engines") == ["headrace", "headrace"]
    assert theirs["steps"] == 10
    assert len(theirs["losses"]) == 10 + 4
    assert len(set(theirs["losses"])) > 10
    assert ours == theirs
