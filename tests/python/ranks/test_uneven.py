# SPDX-License-Identifier: Apache-2.0
"""Parts of ranks that differ by the rest of a division: right where no rank waits for another, a mistake elsewhere."""

from __future__ import annotations

import pathlib

import pytest
from rank_scripts import run_ranks
from test_loaders_agree import LOADERS

UNREPEATED = (
    LOADERS
    + """
import contextlib, itertools, warnings
distributed = torch.distributed

class Unrepeated(TorchsSampler):
    # As Lightning's: no sample is repeated, so the ranks may have one more or less.
    def __iter__(self):
        return iter(range(self.rank, len(self.dataset), self.num_replicas))

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))

class Uneven(Unrepeated):
    # A mistake: rank 0 has three samples more.
    def __iter__(self):
        return iter(range(8 - 3 * self.rank))

    def __len__(self):
        return 8 - 3 * self.rank

def read(loader, mode=contextlib.nullcontext, each_step=lambda: None):
    with warnings.catch_warnings(record=True) as caught, mode():
        warnings.simplefilter("always", UserWarning)
        try:
            for batch in loader:
                each_step()
            result = "fine"
        except headrace.RanksDisagree as error:
            result = f"raised {error}"
        except RuntimeError as error:
            result = "lost the other rank"  # which has raised
    return [result, *(str(one.message) for one in caught)]

def unrepeated(batch_size=1, sampler=Unrepeated, **options):
    return DataLoader(range(11), batch_size, sampler=sampler(range(11)), **options)
"""
)


def test_parts_of_a_division_may_differ_without_gradients(tmp_path: pathlib.Path) -> None:
    """Rank 0 goes on for longer than the thread of the board waits before it prints a line."""
    code = """
slow = lambda: time.sleep(0.4 * RANK)
for mode in torch.no_grad, torch.inference_mode:
    print(*read(unrepeated(), mode, slow))
    distributed.barrier()
loader = unrepeated(num_workers=1, multiprocessing_context="fork")
print(*read(loader, torch.no_grad))
distributed.barrier()
print(loader.report()["ranks"])
meet("end")
os._exit(0)
"""
    report = "of the sampler); compared with 1 other processes of this machine"
    for rank, printed in enumerate(run_ranks(tmp_path, 2, UNREPEATED + code)):
        assert printed == "fine\nfine\nfine\n" + f"rank {rank} of 2 ({report}\n"


def test_more_than_a_rest_raises_without_gradients_too(tmp_path: pathlib.Path) -> None:
    code = 'print(*read(unrepeated(sampler=Uneven), torch.no_grad))\nmeet("end")\nos._exit(0)'
    first, second = run_ranks(tmp_path, 2, UNREPEATED + code)
    assert first == second and "rank 0 has 8 batches, rank 1 has 5" in first


def test_equal_steps_of_unequal_parts_are_no_error(tmp_path: pathlib.Path) -> None:
    """No rank waits, also in a training with a collective in each step."""
    code = """
print(*read(unrepeated(6), each_step=lambda: distributed.all_reduce(torch.ones(1))))
meet("end")
os._exit(0)
"""
    assert run_ranks(tmp_path, 2, UNREPEATED + code) == ["fine\n"] * 2


def test_uneven_steps_with_gradients_warn_once(tmp_path: pathlib.Path) -> None:
    """Nothing says yet whether the steps have collectives: these have none."""
    code = """
loader = unrepeated()
for epoch in range(2):
    print(*read(loader))
    distributed.barrier()
meet("end")
os._exit(0)
"""
    warning = "epoch 0: rank 0 has 6 batches, rank 1 has 5 (lengths 5, 6)"
    for printed in run_ranks(tmp_path, 2, UNREPEATED + code):
        first, second = printed.splitlines()
        assert first.startswith("fine headrace: loader at script.py:") and warning in first and "per_rank" in first
        assert second == "fine"


@pytest.mark.parametrize(("workers", "mode"), [(0, "contextlib.nullcontext"), (1, "torch.no_grad")])
def test_uneven_steps_with_collectives_raise_at_the_end(tmp_path: pathlib.Path, workers: int, mode: str) -> None:
    """Without gradients too: an evaluation may gather the predictions of each step."""
    code = f"""
options = dict(num_workers={workers}, multiprocessing_context="fork" if {workers} else None)
print(read(unrepeated(**options), {mode}, lambda: distributed.all_reduce(torch.ones(1)))[0], flush=True)
os._exit(0)
"""
    printed = run_ranks(tmp_path, 2, UNREPEATED + code)
    assert any("raised" in text and "rank 1 is at its end after 5 batches" in text for text in printed), printed


def test_rank_without_samples_is_no_error_unless_it_waits(tmp_path: pathlib.Path) -> None:
    """Groups of some ranks do not count without gradients: they may be those of tensor parallelism."""
    code = """
groups = [distributed.new_group([rank]) for rank in range(2)]
one = lambda: DataLoader(range(1), 1, sampler=Unrepeated(range(1)))
print(read(one())[0])
distributed.barrier()
print(*read(unrepeated(), torch.no_grad, lambda: distributed.all_reduce(torch.ones(1), group=groups[RANK])))
meet("end")
os._exit(0)
"""
    assert run_ranks(tmp_path, 2, UNREPEATED + code) == ["fine\nfine\n"] * 2


def test_batch_samplers_of_unequal_lengths_raise_at_once(tmp_path: pathlib.Path) -> None:
    code = """
class Batches(Unrepeated):
    def __iter__(self):
        return ([i] for i in super(Batches, self).__iter__())

def loader():
    return DataLoader(range(11), batch_sampler=Batches(range(11)))

print(*read(loader()))
print(*read(loader(), torch.no_grad))
meet("end")
os._exit(0)
"""
    for printed in run_ranks(tmp_path, 2, UNREPEATED + code):
        first, second = printed.splitlines()
        assert "raised" in first and "rank 0 has 6 batches, rank 1 has 5" in first
        assert second == "fine"
