# SPDX-License-Identifier: Apache-2.0
"""Tries the verdicts of `headrace report` on real jobs that were made to have a cause, and on jobs without one.

    python bench/verdicts.py [--times 5] [--only NAME...] [--keep FOLDER]

Each job runs for about 15 s in processes of its own, with HEADRACE_RECORD. "network" reads from a server of this one.
"too few" needs a core that no other program uses: the script waits for it, and leaves this job out if it does not come.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace._report import reading, rules
from headrace._report.ranks import jobs_of

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "python" / "lib"))

JOB = """
import os, sys, time
import numpy as np
from headrace import Loader

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

class Data:
    def __init__(self, count, cpu_s=0.0, sleep_s=0.0, slow_every=0):
        self.count, self.cpu_s, self.sleep_s, self.slow_every = count, cpu_s, sleep_s, slow_every
        self.cold_s = 0.0
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        if self.cpu_s:
            burn(self.cpu_s)
        if self.sleep_s + self.cold_s:
            time.sleep(self.sleep_s + self.cold_s)
        if self.slow_every and index % self.slow_every == 7:
            time.sleep(0.4)
        return np.float32(index)

class SlowCollate:
    def __call__(self, samples):
        burn(0.02)
        return np.stack(samples)

class SlowStart:
    def __call__(self, worker):
        time.sleep(0.4)

step_s, epochs = 0.005, 1
rank = int(os.environ.get("RANK", 0))
options = dict(batch_size=8, num_workers=2, shuffle=False)

def meet():
    "Waits for the other rank, as an all-reduce does."
    if "RANK" in os.environ:
        sys.stdout.write("step\\n"); sys.stdout.flush(); sys.stdin.readline()

exec(os.environ["STAGE"])
ends_at = time.monotonic() + float(os.environ["SECONDS"])
loader = Loader(data, **options)
for epoch in range(epochs):
    if epoch:
        data.cold_s = 0.0  # for the workers of this epoch
    for batch in loader:
        time.sleep(step_s)
        meet()
        if time.monotonic() > ends_at:
            sys.exit()
"""


@dataclass(frozen=True)
class Stage:
    """A job that is made to have a cause: Python code that sets its parts."""

    code: str
    kinds: Sequence[str]  # the verdicts that are right
    ranks: int = 1
    words: Sequence[str] = field(default=())  # of the verdict's text
    free_cores: float = 0.0  # that the machine has to have besides, else the verdict is rightly another one
    latency_s: float = 0.0  # of a server, whose file the code finds as URL; 0: it has no server


SECONDS = 18  # after which a job ends, if its epochs have not ended before
STAGES = {
    "slow samples": Stage("data = Data(10**6, sleep_s=0.0005, slow_every=160)", ["slow samples"]),
    "collate": Stage("options |= dict(num_workers=1, collate_fn=SlowCollate()); data = Data(10**6)", ["collate"]),
    "storage": Stage("data = Data(10**6, sleep_s=0.005)", ["storage"]),
    "network": Stage(
        "from headrace import sources; options['shuffle'] = True; data = sources.Tokens(os.environ['URL'], length=512)",
        ["network"], latency_s=0.3,
    ),
    "cold disk": Stage(
        "epochs = 2; data = Data(8 * 450, sleep_s=0.003); data.cold_s = 0.005", ["storage"], words=["the first epoch"]
    ),
    "starting": Stage(
        "epochs = 25; options['worker_init_fn'] = SlowStart(); data = Data(8 * 20)", ["starting"]
    ),
    "one rank": Stage("data = Data(10**6, sleep_s=0.006 if rank else 0.0001)", ["rank"], ranks=2, words=["Rank 1"]),
    "too few": Stage(
        "options['num_workers'] = 1; step_s = 0.01; data = Data(10**6, cpu_s=0.0025, sleep_s=0.0015)", ["too few"],
        free_cores=1.6,
    ),
    "no cores": Stage("options['num_workers'] = 4 * os.cpu_count(); data = Data(10**6, cpu_s=0.004)", ["no cores"]),
    "trainer": Stage("options['num_workers'] = 4; step_s = 0.02; data = Data(10**6, cpu_s=0.0002)", ["trainer"]),
    # Workers of both ranks make their batches when the loops go on, on the same cores; so they make little.
    "trainer, two ranks": Stage("step_s = 0.02; data = Data(10**6, cpu_s=0.00002)", ["trainer"], ranks=2),
    "trainer, no workers": Stage("options['num_workers'] = 0; step_s = 0.02; data = Data(10**6)", ["trainer"]),
    "short": Stage("step_s = 0.02; data = Data(8 * 100, sleep_s=0.005)", ["short"]),
}  # fmt: skip
PATIENCE_S = 60  # for a machine that has free cores


def idle_cores(seconds: float) -> float:
    """Measures how many cores no program uses."""

    def idle_ticks() -> int:
        numbers = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return int(numbers[3]) + int(numbers[4])

    before = idle_ticks()
    time.sleep(seconds)
    return (idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def wait_for_cores(count: float) -> float:
    """Waits until cores are idle. Returns how many are, by the last look."""
    deadline = time.monotonic() + PATIENCE_S
    while (idle := idle_cores(2)) < count and time.monotonic() < deadline:
        pass
    return idle


@contextlib.contextmanager
def served(latency_s: float) -> Iterator[dict[str, str]]:
    """Gives the variables of a job that reads from a server. Nothing is kept, so each batch waits for answers."""
    from remote_runs import end_fetchers, token_bytes
    from remote_server import RemoteServer

    if not latency_s:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder, RemoteServer({"a.bin": token_bytes(20_000_000)}) as server:
        server.latency_s = latency_s
        yield {"URL": server.url("a.bin"), "HEADRACE_REMOTE": folder, "HEADRACE_REMOTE_QUOTA": "0"}
        end_fetchers(Path(folder))


def run(stage: Stage, folder: Path) -> None:
    with served(stage.latency_s) as variables:
        run_ranks(stage, {**os.environ, **variables, "HEADRACE_RECORD": str(folder), "STAGE": stage.code})


def run_ranks(stage: Stage, env: dict[str, str]) -> None:
    """Runs the ranks of a job. Each writes a line after each step, and goes on when all have written theirs."""
    env["SECONDS"] = str(SECONDS)
    if stage.ranks == 1:
        subprocess.run([sys.executable, "-c", JOB], env=env, check=True)
        return
    pipe = subprocess.PIPE
    ranks = []
    for rank in range(stage.ranks):
        of_rank = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(stage.ranks),
                   "LOCAL_WORLD_SIZE": str(stage.ranks)}  # fmt: skip
        ranks.append(subprocess.Popen([sys.executable, "-c", JOB], env=of_rank, stdin=pipe, stdout=pipe, text=True))
    while all(rank.stdout and rank.stdout.readline() for rank in ranks):
        for rank in ranks:
            print(file=rank.stdin, flush=True)
    for rank in ranks:
        rank.communicate()


def judge(folder: Path) -> tuple[str, str]:
    """Returns the verdict on a recording: its kind, and its text."""
    recorded, complaints = reading.read(folder)
    if not recorded:
        return "no recording", "; ".join(complaints)
    verdict = rules.verdict_on(jobs_of(recorded)[0])
    return verdict.kind, f"{verdict.title}. {verdict.text} {verdict.advice}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    asked = parser.parse_args()
    right, total = 0, 0
    for turn in range(asked.times):
        for name in asked.only:
            stage = STAGES[name]
            idle = wait_for_cores(stage.free_cores)
            if idle < stage.free_cores:
                print(f"{name:20} not tried: {idle:.1f} cores are idle, and it needs {stage.free_cores}", flush=True)
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = (asked.keep or Path(temporary)) / f"{name.replace(' ', '-')}-{turn}"
                folder.mkdir(parents=True)
                run(stage, folder)
                kind, text = judge(folder)
            is_right = kind in stage.kinds and all(word in text for word in stage.words)
            right, total = right + is_right, total + 1
            print(f"{name:20} {idle:4.1f} cores idle before: {'right' if is_right else 'WRONG'}: {text}", flush=True)
    print(f"{right} of {total} verdicts are right")


if __name__ == "__main__":
    main()
