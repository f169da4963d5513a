# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --run: what it says of loaders that have something wrong with them, and of those that have not."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import random
import re
import types
from typing import Any

import headrace
import pytest
import torch
from doctors import doctor, findings
from headrace.doctor.observations import Observation
from headrace.doctor.run import examine
from headrace.doctor.run.measure import Run
from headrace.doctor.run.order import check_order
from headrace.doctor.run.padding import check_padding
from loaders import only_headrace
from torch.utils.data import DataLoader

pytestmark = [only_headrace, pytest.mark.timeout(600)]

LOADERS = """
import random, threading, time
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler
import headrace, headrace.torch

class Numbers(Dataset):
    def __init__(self, count=4000, length=None):
        self.count, self.length = count, length
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((self.length(index) if self.length else 4,), index + 1)

def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

def pad_in_dict(samples):
    ids = [torch.tensor(sample["ids"]) for sample in samples]
    return {"ids": pad(ids), "mask": pad([torch.ones_like(one) for one in ids])}

class Tokens(Numbers):
    def __getitem__(self, index):
        return {"ids": [index + 1] * (3 if index % 10 else 300), "text": "word " * 5}

def fine():
    return DataLoader(Numbers(), 32, shuffle=True, num_workers=1)

def fine_headrace():
    return headrace.torch.DataLoader(Numbers(), 32, shuffle=True, num_workers=1)

def fine_numpy():
    return headrace.Loader([[1, 2, 3]] * 4000, 32, shuffle=True, num_workers=1)

def without_workers():
    return DataLoader(Numbers(), 32, shuffle=True)

def persistent():
    return DataLoader(Numbers(), 32, num_workers=1, persistent_workers=True)

def spawned():
    return DataLoader(Numbers(), 32, num_workers=1, multiprocessing_context="spawn")

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4000))

def stream():
    return DataLoader(Stream(), 32, num_workers=1)

instance = fine()

def replacing():
    numbers = Numbers()
    return DataLoader(numbers, 32, sampler=RandomSampler(numbers, replacement=True), num_workers=1)

class Turns(Sampler):
    def __init__(self, indices, is_endless):
        self.indices, self.is_endless = indices, is_endless
    def __iter__(self):
        yield from self.indices
        while self.is_endless:
            yield from self.indices

def repeating():
    return DataLoader(Numbers(), 32, sampler=Turns([i // 2 for i in range(4000)], False), num_workers=1)

def endless():
    return DataLoader(Numbers(), 32, sampler=Turns(range(4000), True), num_workers=1)

def endlessly_repeating():
    return DataLoader(Numbers(), 32, sampler=Turns([i // 2 for i in range(4000)], True), num_workers=1)

def quick():
    return DataLoader(Numbers(), 400, num_workers=2)

class Sleepy(Numbers):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)

def sleepy_in_short_epochs():
    return DataLoader(Sleepy(200), 2, num_workers=1)

class OneSlow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.5 if index == 37 else 0.001)
        return super().__getitem__(index)

def one_slow():
    return DataLoader(OneSlow(), 2, num_workers=1)

def sleepy_without_workers():
    return DataLoader(Sleepy(), 2)

def distributed():
    numbers = Numbers(4001)
    return DataLoader(numbers, 32, sampler=DistributedSampler(numbers, num_replicas=3, rank=1), num_workers=1)

def distributed_in_batches():
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, shuffle=False)
    return DataLoader(Numbers(), batch_sampler=BatchSampler(sampler, 8, False), num_workers=1)

class OfRank(Sampler):
    def __init__(self, count, seed, strides):
        self.count, self.seed, self.strides = count, seed, strides
        self.rank, self.num_replicas, self.epoch, self.shuffle = 0, 4, 0, True
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return self.count
    def __iter__(self):
        order = list(range(self.count))
        (random if self.seed is None else random.Random(self.seed + self.epoch)).shuffle(order)
        yield from order[self.rank :: self.num_replicas] if self.strides else order

def all_ranks_alike():
    return DataLoader(Numbers(), 32, sampler=OfRank(4000, 1, False), num_workers=1)

def ranks_of_the_processes_own_seed():
    return DataLoader(Numbers(), 32, sampler=OfRank(4000, None, True), num_workers=1)

def padded():
    return DataLoader(Numbers(4000, lambda index: 400 if index % 16 == 0 else 5), 16, collate_fn=pad, num_workers=1)

def padded_in_dict():
    return DataLoader(Tokens(), 16, collate_fn=pad_in_dict, num_workers=1)

def padded_little():
    return DataLoader(Numbers(4000, lambda index: 90 + index % 10), 16, collate_fn=pad, num_workers=1)

class Borders(Numbers):
    def __getitem__(self, index):
        picture = torch.zeros(3, 32, 32)
        picture[:, :4, :4] = index
        return picture, index

def black_borders():
    return DataLoader(Borders(), 16, num_workers=1)

class Slow(Numbers):
    def __getitem__(self, index):
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        return super().__getitem__(index)

def slow_dataset():
    return DataLoader(Slow(), 32, num_workers=1)

class Waits(Numbers):
    def __getitem__(self, index):
        time.sleep(0.005)
        return index

def too_few_workers():
    return DataLoader(Waits(), 8, num_workers=1)

def with_threads():
    threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()
    return DataLoader(Numbers(), 32, num_workers=1, multiprocessing_context="fork")

def with_threads_spawned():
    with_threads()
    return spawned()

class Bad(Numbers):
    def __getitem__(self, index):
        raise ValueError("bad sample")

def bad():
    return DataLoader(Bad(), 32, num_workers=1)

def failing():
    raise OSError("no disk")

def no_loader():
    return 5
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "train.py").write_text(LOADERS)
    return tmp_path


def of(folder: pathlib.Path, name: str, batches: int = 50) -> dict[str, dict[str, Any]]:
    return findings("--run", f"train:{name}", "--batches", str(batches), folder=folder)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    """The loaders, here: for what the doctor finds without running them."""
    path = tmp_path_factory.mktemp("train") / "train_here.py"
    path.write_text(LOADERS)
    spec = importlib.util.spec_from_file_location("train_here", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def order_of(train: types.ModuleType, name: str) -> dict[str, Observation]:
    return {finding.name: finding for finding in check_order(getattr(train, name)())}


def padding_of(train: types.ModuleType, name: str) -> Observation:
    (finding,) = check_padding(getattr(train, name)())
    return finding


FINE = ["fine", "fine_headrace", "fine_numpy", "without_workers", "persistent", "spawned", "stream", "instance"]


@pytest.mark.parametrize("name", FINE)
def test_healthy_loader_gets_at_most_advice_on_its_workers(folder: pathlib.Path, name: str) -> None:
    result = doctor("--run", f"train:{name}", "--batches", "50", "--json", folder=folder)
    answer = json.loads(result.stdout)
    wrong = {one["name"]: one for one in answer["findings"] if one["severity"] in ("warning", "error")}
    assert wrong.keys() <= {"num_workers", "cores"}, wrong  # those depend on the machine
    assert {"growth", "time", "num_workers"} <= {one["name"] for one in answer["findings"]}
    assert all(one["batches_per_s"] > 0 for one in answer["runs"])
    assert [one["workers"] for one in answer["runs"]][:2] == [1, 0 if name == "without_workers" else 1]
    assert result.stderr == ""


def test_times_of_dataset_collate_and_transfer_are_separate(folder: pathlib.Path) -> None:
    time = of(folder, "slow_dataset", 10)["time"]
    assert "Make the dataset's __getitem__ faster first" in time["consequence"]
    share = int(time["consequence"].partition("The workers spent ")[2].partition("%")[0])
    assert share > 50


def test_the_number_of_workers_is_found_by_trying(folder: pathlib.Path) -> None:
    found = of(folder, "too_few_workers")["num_workers"]
    assert found["severity"] == "warning"
    assert found["value"] == "1"
    assert int(found["fix"].partition("=")[2]) > 1
    assert "tried one after the other: 1: " in found["consequence"]


def test_far_too_few_workers_are_noticed_in_short_epochs(
    train: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 8 workers need 0.25 s for the epoch, which is too short to compare them with 16."""
    monkeypatch.setattr(
        examine.measure, "run", lambda loader, workers, *limits: Run(workers, 100, 100, 2.0 / max(1, workers), 0.1, {})
    )
    found = examine._suggestion(train.sleepy_in_short_epochs(), 200)[1][0]
    assert (found.severity, found.fix) == ("warning", 'num_workers="auto"')
    assert "too short to find the best number" in found.consequence


def test_a_slow_sample_is_named(folder: pathlib.Path) -> None:
    assert of(folder, "one_slow")["slow sample"]["value"].startswith("37 took ")


@pytest.mark.parametrize("slow_sample", [(None, 1.0, 0.001), (3, 0.09, 0.001), (3, 0.19, 0.01)])
def test_samples_that_are_not_slow_are_not_named(slow_sample: Any) -> None:
    assert examine._slow_sample_of([Run(1, 100, 100, 1.0, 0.1, {}, slow_sample)]) == []


def test_a_loader_without_workers_is_tried_as_it_is(folder: pathlib.Path) -> None:
    found = of(folder, "sleepy_without_workers")["num_workers"]
    assert (found["severity"], found["value"]) == ("warning", "0")
    assert "tried one after the other: 0: " in found["consequence"]


@pytest.mark.parametrize(
    ("rates", "tried"),
    [
        ({0: 50, 1: 40, 2: 98, 4: 197, 8: 198, 16: 150}, [0, 1, 2, 4, 8, 16]),  # 1 met other work
        ({0: 50, 1: 50, 2: 40, 4: 197, 8: 394, 16: 400, 32: 400}, [0, 1, 2, 4, 8, 16, 32]),  # 2 did
        ({0: 50, 1: 50, 2: 50, 4: 50}, [0, 1, 2, 4]),
        ({0: 50, 1: 50, 2: 98, 4: 100, 8: 100}, [0, 1, 2, 4, 8]),  # beyond the cores each has to bring something
    ],
)
def test_trials_of_worker_counts_stop_after_two_without_gain(rates: dict[int, int], tried: list[int]) -> None:
    runs: list[Run] = []
    for workers in examine._candidates(0, 2, runs):
        runs.append(Run(workers, rates[workers], rates[workers], 1.0, 0.1, {}))
    assert [one.workers for one in runs] == tried


def test_numbers_of_workers_are_not_judged_by_a_short_epoch(folder: pathlib.Path) -> None:
    found = of(folder, "quick")["num_workers"]
    assert (found["severity"], found["fix"]) == ("ok", "")
    assert "too short to find the best number" in found["consequence"]


@pytest.mark.parametrize("name", ["repeating", "endlessly_repeating"])
def test_a_sampler_that_repeats_is_named_with_what_does_not_come(train: types.ModuleType, name: str) -> None:
    found = order_of(train, name)["sampler repeats"]
    assert found.severity == "warning"
    assert "2,000 of 4,000 samples are never drawn" in found.consequence


def test_sampler_with_replacement_is_a_note(train: types.ModuleType) -> None:
    found = order_of(train, "replacing")["sampler repeats"]
    assert (found.severity, found.fix) == ("note", "")


def test_a_sampler_that_goes_round_for_ever_does_not_repeat(train: types.ModuleType) -> None:
    assert order_of(train, "endless").keys() == {"sampler"}


def test_distributed_sampler_is_disjoint_but_needs_set_epoch(train: types.ModuleType) -> None:
    found = order_of(train, "distributed")
    assert (found["ranks"].severity, found["ranks"].value) == ("ok", "3")
    assert found["set_epoch"].severity == "warning"
    assert "loader.sampler.set_epoch(epoch)" in found["set_epoch"].fix


def test_without_shuffling_set_epoch_is_not_missed(train: types.ModuleType) -> None:
    found = order_of(train, "distributed_in_batches")
    assert found.keys() == {"ranks"}
    assert found["ranks"].severity == "ok"


def test_ranks_that_all_have_the_same_samples_are_an_error(folder: pathlib.Path, train: types.ModuleType) -> None:
    found = order_of(train, "all_ranks_alike")["ranks overlap"]
    assert (found.severity, found.value) == ("error", "by 12,000 samples")
    result = doctor("--run", "train:all_ranks_alike", "--batches", "5", folder=folder)
    assert result.returncode == 2
    assert "error    ranks overlap    by 12,000 samples   (4 ranks, simulated)" in result.stdout


def test_ranks_that_draw_from_process_random_state_are_a_warning(train: types.ModuleType) -> None:
    found = order_of(train, "ranks_of_the_processes_own_seed")
    assert found["ranks overlap"].severity == "warning"
    assert "unless all of them have the same seed" in found["ranks overlap"].consequence
    assert "set_epoch" not in found  # another order each time


def test_check_of_order_changes_no_random_state_and_no_sampler(train: types.ModuleType) -> None:
    """The random numbers and the sampler are afterwards as they were."""
    loader = train.ranks_of_the_processes_own_seed()
    before = random.getstate(), torch.get_rng_state(), dict(vars(loader.sampler))
    check_order(loader)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert vars(loader.sampler) == before[2]


@pytest.mark.parametrize(
    ("name", "severity", "value"),
    [
        ("padded", "warning", "93% of batch"),
        ("padded_in_dict", "warning", "of batch['ids']"),
        ("padded_little", "ok", "5% of batch"),
    ],
)
def test_padding_is_measured_against_the_samples_lengths(
    train: types.ModuleType, name: str, severity: str, value: str
) -> None:
    found = padding_of(train, name)
    assert found.severity == severity
    assert value in found.value
    assert ("headrace.Plan(headrace.lengths(dataset" in found.fix) == (severity == "warning")


def test_doctor_names_the_plan_that_has_less_padding(train: types.ModuleType) -> None:
    found = padding_of(train, "padded_in_dict")
    assert "headrace.Plan(headrace.lengths(dataset, 'ids'), max_padded=" in found.fix
    assert "tail='pad'" in found.fix
    assert "oversized='alone'" in found.fix  # a longer sample than those that were measured does not stop the training
    match = re.search(
        r"would have (\d+)% of padding, so a sample would cost (\d+)% of what it costs now", found.consequence
    )
    assert match is not None
    loader = train.padded_in_dict()
    limit = int(re.search(r"max_padded=(\d+)", found.fix)[1])  # type: ignore[index]
    plan = headrace.Plan(headrace.lengths(loader.dataset, "ids", workers=0), max_padded=limit)
    better = check_padding(DataLoader(loader.dataset, batch_sampler=plan, collate_fn=train.pad_in_dict))
    assert better == []  # all samples of a batch are equally long
    assert int(match[1]) <= 20 and int(match[2]) < 40


def test_uneven_ranks_are_named_with_the_plan(train: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = train.Numbers(800, lambda index: 4 + index // 8 % 2 * (96 + index % 8))
    found = check_padding(DataLoader(data, batch_size=8, collate_fn=train.pad))[1:]
    assert found[0].severity == "warning" and found[0].value == "1.93 of the mean"
    assert "With a plan it would have 1.00 of the mean" in found[0].consequence


def test_plan_is_not_proposed_in_place_of_a_plan(train: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    lengths = [400 if index % 16 == 0 else 5 for index in range(800)]
    plan = headrace.Plan(lengths, buckets=[(None, 16)], window=1)
    data = train.Numbers(800, lengths.__getitem__)
    (found,) = check_padding(DataLoader(data, batch_sampler=plan, collate_fn=train.pad))
    assert (found.name, found.severity, found.fix) == ("padding", "note", "")


@pytest.mark.parametrize("name", ["fine", "fine_numpy", "stream", "black_borders"])
def test_data_that_is_no_padding_is_not_called_padding(train: types.ModuleType, name: str) -> None:
    assert check_padding(getattr(train, name)()) == []


def test_threads_are_a_hazard_only_if_workers_are_forked(folder: pathlib.Path) -> None:
    found = of(folder, "with_threads")["threads"]
    assert (found["severity"], found["limit"]) == ("warning", "telemetry")
    assert "forkserver" in found["fix"]
    assert "threads" not in of(folder, "with_threads_spawned")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("train:bad", "ValueError: bad sample"),
        ("train:failing", "OSError: no disk"),
        ("train:no_loader", "train:no_loader gives no loader: int does not have all of"),
        ("train:absent", "has no 'absent'"),
        ("nothing:here", "No module named 'nothing'"),
    ],
)
def test_loader_that_cannot_run_is_an_error_with_the_reason(folder: pathlib.Path, source: str, message: str) -> None:
    result = doctor("--run", source, folder=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("headrace doctor: ")


def test_a_script_is_a_source_too(folder: pathlib.Path) -> None:
    assert "time" in findings("--run", str(folder / "train.py") + ":fine", "--batches", "20", folder=folder)


# ---- what the fork server cannot keep ----


def run_with_server(**server: Any) -> list[Observation]:
    report = {"fork_server": {"error": "", "hazards": [], "unkept": {}, "kept": "all", "seconds": 3.0, **server}}
    return examine._imports_of(Run(workers=2, batches=1, counted=0, seconds=0.0, first_s=0.0, report=report))


def test_module_that_workers_import_is_named_with_its_seconds() -> None:
    hazard = "pyfoo starts a thread (pool) when it is imported"
    (found,) = run_with_server(hazards=[hazard], unkept={"pyfoo": 2.1}, kept="part")
    assert (found.name, found.severity, found.value) == ("imports", "warning", "2.1 s in each worker")
    assert hazard in found.consequence and "persistent_workers=True" in found.consequence


def test_thread_of_the_script_itself_costs_at_most_all_imports() -> None:
    (found,) = run_with_server(hazards=["the script starts a thread (pool) when it is imported"], kept="part")
    assert found.value == "up to 3.0 s in each worker"
    assert "in a function that is called later" in found.consequence


def test_script_that_cannot_be_imported_by_the_server_is_named() -> None:
    (found,) = run_with_server(error="ImportError: no pyfoo", kept="nothing")
    assert (found.severity, found.value) == ("warning", "in each worker")
    assert "ImportError: no pyfoo" in found.consequence


def test_server_that_keeps_all_is_no_observation() -> None:
    assert run_with_server() == []


def test_doctor_reads_what_the_server_reports(tmp_path: pathlib.Path) -> None:
    """The whole way: a module that starts a thread, the server, the loader's report and the doctor's line."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "pyfoo.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, name='pool', daemon=True).start()\n"
    )
    (tmp_path / "train.py").write_text(
        "import pyfoo, headrace\n\nclass Data(list):\n    pass\n\ndef make_loader():\n"
        "    return headrace.Loader(Data(range(400)), 4, num_workers=1, multiprocessing_context='forkserver')\n"
    )
    arguments = ["--run", "train:make_loader", "--batches", "20"]
    found = findings(*arguments, folder=tmp_path, PYTHONPATH=f"{packages}:{tmp_path}")
    assert "pyfoo starts a thread (pool) when it is imported" in found["imports"]["consequence"]
