# SPDX-License-Identifier: Apache-2.0
"""Trains on real photographs, with torch's DataLoader and with headrace's; kills a worker; kills the job; goes on.

    pip install torch torchvision pillow scikit-image scikit-learn    # and headrace: `make demo` installs all
    python demo.py

It needs no other file. The photographs are in the wheels of scikit-image and scikit-learn. It ends with a table and a
picture. Every number is measured here and now. The exit status is 0 if all went well, 1 if not, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import html
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = {"headrace": "headrace", "torch": "torch", "torchvision": "torchvision", "pillow": "PIL"}
SIDE = 224  # of the images that the network gets
SEED = 0

# ---- The photographs

PHOTOGRAPHS = (  # class, file, who made it and the licence
    ("astronaut", "astronaut.png", "NASA (Eileen Collins), public domain"),
    ("cat", "chelsea.png", "Stefan van der Walt, CC0"),
    ("coffee", "coffee.png", "Rachel Michetti, CC0"),
    ("flower", "flower.jpg", "vultilion on Flickr, CC BY 2.0"),
    ("galaxies", "hubble_deep_field.jpg", "NASA (Hubble eXtreme Deep Field), public domain"),
    ("retina", "retina.jpg", "Mikael Häggström, CC0"),
    ("rocket", "rocket.jpg", "SpaceX, public domain"),
    ("temple", "china.jpg", "danielbuechele on Flickr, CC BY 2.0"),
)


def find_photographs(folders: list[Path]) -> list[Path]:
    """Returns the photographs, which are in one of the given folders or in installed packages."""
    for package, inside in (("skimage", "data"), ("sklearn", "datasets/images")):
        if found := importlib.util.find_spec(package):  # This does not import it.
            folders = [*folders, *(Path(root, inside) for root in found.submodule_search_locations or ())]
    paths = [[folder / file for folder in folders if (folder / file).exists()] for _, file, _ in PHOTOGRAPHS]
    if not all(paths):
        sys.exit("demo: the photographs are missing; pip install scikit-image scikit-learn brings them")
    return [found[0] for found in paths]


def make_files(folder: Path, photographs: list[Path], per_class: int) -> Path:
    """Cuts parts out of the photographs and writes them as JPEG files of many sizes: a folder for each class. They are
    made once."""
    from PIL import Image

    files, unfinished = folder / f"photographs-{per_class}", folder / "unfinished"
    if files.exists():
        return files
    shutil.rmtree(unfinished, ignore_errors=True)
    drawn = random.Random(SEED)
    for (name, _, _), path in zip(PHOTOGRAPHS, photographs, strict=True):
        (unfinished / name).mkdir(parents=True)
        with Image.open(path) as opened:
            photograph = opened.convert("RGB")
        for number in range(per_class):
            width, height = (int(side * drawn.uniform(0.5, 1.0)) for side in photograph.size)
            left, upper = drawn.randint(0, photograph.width - width), drawn.randint(0, photograph.height - height)
            size = drawn.randint(375, 640), drawn.randint(375, 640)
            part = photograph.resize(size, Image.Resampling.BICUBIC, (left, upper, left + width, upper + height))
            part.save(unfinished / name / f"{number:03}.jpg", quality=drawn.randint(85, 95))
    unfinished.rename(files)
    return files


# ---- What is measured: this process and all below it

GONE = (OSError, IndexError)  # of a process that has just ended: its file is not there, or ends within a line


def stat_of(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processes() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(*GONE):
            children.setdefault(int(stat_of(name)[1]), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def cpu_seconds() -> float:
    """Returns the CPU time, also of processes that have ended."""
    ticks = 0
    for pid in processes():
        with contextlib.suppress(*GONE):
            ticks += sum(map(int, stat_of(pid)[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory() -> dict[str, int]:
    """Returns bytes: memory that no other program has, and shared memory, in /dev/shm and without a file (memfd), that
    is mapped or open."""
    private, shared = 0, dict[tuple[str, str], int]()  # shared: by kind and inode
    for pid in processes():
        with contextlib.suppress(*GONE):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            private += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss_Anon:"))
            kind = inode = ""
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                first, *rest = line.split()
                if not first.endswith(":"):  # a new mapping: addresses, rights, offset, device, inode, name
                    inode, kind = rest[3], kind_of(rest[4] if len(rest) > 4 else "")
                elif first == "Rss:" and kind:
                    shared[kind, inode] = max(shared.get((kind, inode), 0), int(rest[0]) * 1024)
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                if kind := kind_of(os.readlink(descriptor)):
                    shared[kind, str(descriptor.stat().st_ino)] = descriptor.stat().st_blocks * 512
    sums = {kind: sum(size for (one, _), size in shared.items() if one == kind) for kind in ("/dev/shm", "memfd")}
    return {"private": private, **sums}


def kind_of(name: str) -> str:
    return "/dev/shm" if name.startswith("/dev/shm/") else "memfd" if name.startswith("/memfd:") else ""


class Meter:
    """Measures what the batches of an epoch cost."""

    def __init__(self, is_timed: bool = True, skips_first: bool = False) -> None:
        self.is_timed = is_timed  # If not, memory is looked at after each step.
        self.skips_first = skips_first  # the first batch, for which the workers are started; memory is looked at then
        self.peak: dict[str, int] = {}

    def start(self) -> None:
        self.samples, self.waited = 0, 0.0
        self.cpu, self.begun = cpu_seconds(), time.perf_counter()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        self.start()
        asked = self.begun
        for batch in loader:
            self.waited += time.perf_counter() - asked
            yield batch
            self.samples += len(batch[0])
            if self.skips_first or not self.is_timed:
                self.look()
            if self.skips_first:
                self.skips_first = False
                self.start()
            asked = time.perf_counter()

    def look(self) -> None:
        for name, size in memory().items():
            self.peak[name] = max(size, self.peak.get(name, 0))

    def report(self) -> dict[str, Any]:
        seconds, cpu = time.perf_counter() - self.begun, cpu_seconds() - self.cpu
        self.look()
        timed = {"samples": self.samples, "seconds": seconds, "waited": self.waited, "cpu": cpu}
        return {**(timed if self.is_timed else {}), **self.peak}


# ---- The training. Each scene is a process of its own.


def import_torchvision() -> Any:
    """Returns torchvision. If it was built for another torch, its operators are missing, and it cannot be imported. The
    transforms do without them, so they are defined without an implementation."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        import_torchvision.library = torch.library.Library("torchvision", "DEF")  # type: ignore[attr-defined]
        operators = "nms roi_align ps_roi_align roi_pool ps_roi_pool deform_conv2d".split()
        for name in [*operators, *(f"_{name}_backward" for name in operators[1:]), "qnms", "qroi_align"]:
            import_torchvision.library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[attr-defined]
        import torchvision
    return torchvision


if __name__ == "__mp_main__":  # in a worker that was not forked: it gets the dataset by pickle
    import_torchvision()


def make_dataset(files: str, in_c: bool) -> Any:
    torchvision = import_torchvision()
    transforms = torchvision.transforms
    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    if in_c:
        from headrace import images

        return torchvision.datasets.ImageFolder(files, images.native(transform), loader=images.load_rgb)
    return torchvision.datasets.ImageFolder(files, transform)


class Killing:
    """The same dataset, whose worker is killed at one sample if the file `mark` exists, which is then removed."""

    def __init__(self, dataset: Any, at: int, mark: Path) -> None:
        self.dataset, self.at, self.mark = dataset, at, mark

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index == self.at and self.mark.exists():
            self.mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.dataset[index]


class Trainer:
    """A small network for images, its optimizer, and one step of both."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        convolutions = nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
        last = nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, len(PHOTOGRAPHS))
        self.model = nn.Sequential(*convolutions, *last)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)
        self.losses: list[str] = []  # to the last bit

    def step(self, images: Any, labels: Any, last: Any = None, add_up: Any = None) -> None:
        """Makes one step. On several ranks, `last` has the number of samples of all; `add_up` adds their gradients."""
        from torch.nn.functional import cross_entropy

        losses = cross_entropy(self.model(images), labels, reduction="none")
        loss = (losses * last.weights).sum() / last.global_count if last else losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters() if add_up else ():
            add_up(parameter.grad)
        self.optimizer.step()
        self.losses.append(loss.item().hex())

    def train(self, meter: Meter, loader: Any) -> None:
        for images, labels in meter.batches(loader):
            self.step(images, labels)


def train_in_turns(scene: argparse.Namespace) -> None:
    """Scenes 1 to 3: trains an epoch for each line of stdin. The first is not timed."""
    if scene.name == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace.torch import DataLoader
    dataset = make_dataset(scene.files, in_c=scene.name == "images")
    loader: Any = DataLoader(dataset, scene.batch, shuffle=True, num_workers=1, persistent_workers=True)
    trainer, is_timed = Trainer(), False
    for _ in sys.stdin:
        meter = Meter(is_timed)
        trainer.train(meter, loader)
        counts = {"images": {"left": {}}} if scene.name == "torch" else loader.report()
        if not counts:
            sys.exit("demo: headrace cannot run here, so there is nothing to show; its warning says why")
        print(json.dumps({**meter.report(), "losses": trainer.losses, "left": counts["images"]["left"]}), flush=True)
        is_timed = True


def train_with_a_kill(scene: argparse.Namespace) -> None:
    """Scene 4: trains two epochs; again, with a worker that is killed; then kills a worker of torch's loader."""
    import headrace.torch
    import torch.utils.data

    mark = Path(scene.folder, "kill a worker")
    photographs = make_dataset(scene.files, in_c=True)
    dataset: Any = Killing(photographs, len(photographs) // 2, mark)
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "persistent_workers": True}
    report: dict[str, Any] = {}
    for name in ("whole", "killed"):
        trainer = Trainer()
        # rng="sample": the random numbers of a sample do not depend on the worker that makes it.
        loader = headrace.torch.DataLoader(dataset, scene.batch, max_restarts=1, rng="sample", seed=SEED, **options)
        for is_timed in (False, True):
            if is_timed and name == "killed":
                mark.touch()
            meter = Meter(is_timed)
            trainer.train(meter, loader)
            report.update(meter.report())
        report.update({name: trainer.losses, "restarts": loader.report()["restarts"]})
    mark.touch()
    try:
        for _ in torch.utils.data.DataLoader(dataset, scene.batch, **options):
            pass
    except (RuntimeError, OSError, EOFError) as error:  # The last two: while it reads a batch that was being sent
        report["torch"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps(report), flush=True)


def train_on_ranks(scene: argparse.Namespace) -> None:
    """Scenes 5 and 6: trains on all ranks, and saves checkpoints. If there is one already, it goes on from there."""
    import torch
    import torch.distributed as dist
    from headrace.torch import DataLoader, per_rank
    from torch.utils.data import RandomSampler

    dist.init_process_group("gloo")
    rank, checkpoint = dist.get_rank(), Path(scene.folder, "checkpoint.pt")
    dataset = make_dataset(scene.files, in_c=True)
    sampler = per_rank(RandomSampler(dataset), tail="exact", seed=SEED)
    loader = DataLoader(dataset, scene.batch // 2, sampler=sampler, num_workers=1, rng="sample", seed=SEED)
    trainer, step, first_epoch = Trainer(), 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        trainer.model.load_state_dict(saved["model"])
        trainer.optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # The next `for` begins after the last sample of the checkpoint.
        step, first_epoch = saved["step"], saved["epoch"]
    for epoch in range(first_epoch, 2):
        sampler.set_epoch(epoch)
        meter = Meter(skips_first=True)
        for images, labels in meter.batches(loader):
            trainer.step(images, labels, loader.last, dist.all_reduce)
            step += 1
            note_samples(scene, rank, epoch, step, loader.last)
            if step % scene.saved_every == 0 and rank == 0:
                state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
                state |= {"loader": loader.state_dict(), "step": step, "epoch": epoch + (loader.steps_left == 0)}
                torch.save(state, f"{checkpoint}.new")
                os.rename(f"{checkpoint}.new", checkpoint)
            if step == scene.killed_at:
                break
        Path(scene.folder, f"report-{rank}-of-{scene.ranks}").write_text(json.dumps(meter.report()))
        if step == scene.killed_at:
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
    dist.destroy_process_group()


def note_samples(scene: argparse.Namespace, rank: int, epoch: int, step: int, last: Any) -> None:
    seen = [index for index, weight in zip(last.indices, last.weights.tolist(), strict=True) if weight]
    with open(Path(scene.folder, f"seen-{rank}-of-{scene.ranks}"), "a") as file:
        print(json.dumps([epoch, step, seen]), file=file)


# ---- The scenes, as the process that the user started sees them


class Scene:
    """A process that trains, in a session of its own, so that only the demo gets a Ctrl-C of the terminal."""

    def __init__(self, args: argparse.Namespace, name: str, **more: int) -> None:
        settings = {"name": name, "files": str(args.files), "folder": str(args.folder), "batch": args.batch, **more}
        launch = ["-m", "headrace", "run", f"--nproc={more['ranks']}"] if "ranks" in more else []
        command = [sys.executable, *launch, str(Path(__file__).resolve()), "--scene", json.dumps(settings)]
        local = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **local}, start_new_session=True, **pipes)
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        running.append(self)

    def train(self) -> dict[str, Any]:
        """Lets it train one epoch, and returns what was measured."""
        with contextlib.suppress(BrokenPipeError):
            print("epoch", file=self.stdin, flush=True)
        return self.read()

    def read(self) -> dict[str, Any]:
        assert self.stdout
        if line := self.stdout.readline():
            return dict(json.loads(line))
        sys.exit(f"demo: a scene ended with status {self.process.wait()}; its output is above")

    def end(self) -> None:
        assert self.stdin and self.stdout
        self.stdin.close()
        self.process.wait()
        self.stdout.close()
        running.remove(self)


running: list[Scene] = []


def end_all() -> None:
    for scene in list(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(scene.process.pid, signal.SIGKILL)
        scene.end()


class Row(NamedTuple):
    """A row of the table."""

    number: int
    what: str
    numbers: dict[str, float]

    @staticmethod
    def of(number: int, what: str, timed: list[dict[str, Any]], looked_at: dict[str, Any]) -> Row:
        """Takes the medians of the epochs that were timed, and the memory of the one in which it was looked at."""
        numbers = {
            "samples/s": statistics.median(one["samples"] / one["seconds"] for one in timed),
            "waited": statistics.median(one["waited"] / one["seconds"] for one in timed),
            "CPU/image": statistics.median(one["cpu"] / one["samples"] for one in timed),
        }
        return Row(number, what, {**numbers, **{name: looked_at[name] for name in ("private", "/dev/shm", "memfd")}})


FORMS = {
    "samples/s": lambda value: f"{value:.0f}",
    "waited": lambda value: f"{value:.0%}",
    "CPU/image": lambda value: f"{value * 1e3:.1f} ms",
    **dict.fromkeys(("private", "/dev/shm", "memfd"), lambda value: f"{value / 1e6:.0f} MB"),
}

TURNS = {
    "torch": ("torch's DataLoader, Pillow", "from torch.utils.data import DataLoader"),
    "import": ("headrace's DataLoader, Pillow", "from headrace.torch import DataLoader"),
    "images": ("headrace's, headrace.images", "ImageFolder(files, images.native(transform), loader=images.load_rgb)"),
}


def say(scene: int, what: str, code: str) -> None:
    print(f"\nScene {scene}: {what}\n    {code}", flush=True)


def show_turns(args: argparse.Namespace) -> tuple[list[Row], str]:
    """Scenes 1 to 3 take turns, epoch by epoch, because other programs may use the machine."""
    for number, (what, code) in enumerate(TURNS.values(), 1):
        say(number, what, code)
    scenes = {name: Scene(args, name) for name in TURNS}
    looked_at = {name: scene.train() for name, scene in scenes.items()}
    epochs: dict[str, list[dict[str, Any]]] = {name: [] for name in scenes}
    for number in range(1, args.epochs + 1):
        for name, scene in scenes.items():
            epochs[name].append(scene.train())
        rates = (f"{one[-1]['samples'] / one[-1]['seconds']:.0f}" for one in epochs.values())
        print(f"    epoch {number}, samples/s of scenes 1 to 3: {', '.join(rates)}", flush=True)
    for scene in scenes.values():
        scene.end()
    for reason, number in epochs["images"][-1]["left"].items():
        print(f"    {number} images were left to Pillow: {reason}", flush=True)
    losses = [epochs[name][-1]["losses"] for name in scenes]
    digests = [hashlib.sha256(" ".join(one).encode()).hexdigest()[:12] for one in losses]
    print(f"    digests of the losses: {', '.join(digests)}", flush=True)
    if digests != digests[:1] * 3:
        raise Wrong("the losses of scenes 1 to 3 differ")
    steps = len(losses[0]) // (1 + args.epochs)  # of an epoch
    first, last = (statistics.mean(map(float.fromhex, part)) for part in (losses[0][:steps], losses[0][-steps:]))
    rows = [Row.of(number, TURNS[name][0], epochs[name], looked_at[name]) for number, name in enumerate(scenes, 1)]
    return rows, f"Scenes 1 to 3: the losses are equal to the last bit. Their mean went from {first:.2f} to {last:.2f}."


def show_kill(args: argparse.Namespace) -> tuple[list[Row], str]:
    say(
        4, "a worker is killed in the middle of an epoch", f"DataLoader(..., max_restarts=1, rng='sample', seed={SEED})"
    )
    scene = Scene(args, "kill")
    report = scene.read()
    scene.end()
    print(f"    torch's DataLoader, killed at the same sample: {report.get('torch')}", flush=True)
    if report["whole"] != report["killed"] or report["restarts"] != 1:
        raise Wrong(f"{report['restarts']} workers were replaced, or the losses differ from those without the kill")
    return [
        Row.of(4, "a worker is killed", [report], report)
    ], "Scene 4: the killed worker was replaced; the losses are those without the kill."


RANKS = ((0, 2), (1, 2), (0, 1))


def show_ranks(args: argparse.Namespace) -> tuple[list[Row], str]:
    """Scenes 5 and 6."""
    count = len(list(args.files.glob("*/*.jpg")))
    steps = count // (args.batch // 2 * 2)  # of an epoch on two ranks
    more = {"saved_every": steps // 2, "killed_at": steps + steps * 3 // 4}
    kept = more["killed_at"] // more["saved_every"] * more["saved_every"]
    for name in (
        "checkpoint.pt",
        *(f"{what}-{rank}-of-{ranks}" for what in ("seen", "report") for rank, ranks in RANKS),
    ):
        (args.folder / name).unlink(missing_ok=True)
    say(
        5,
        f"two ranks; rank 1 is killed at step {more['killed_at']}, in the middle of epoch 1",
        "headrace run --nproc 2",
    )
    both = run_ranks(args, 2, **more)
    total: dict[str, Any] = {name: sum(one[name] for one in both) for name in both[0]}
    total.update(seconds=max(one["seconds"] for one in both), waited=total["waited"] / 2)
    say(6, f"one rank goes on from the checkpoint of step {kept}", "loader.load_state_dict(checkpoint['loader'])")
    (alone,) = run_ranks(args, 1, **{**more, "killed_at": 0})
    seen = samples_seen(args.folder, kept)
    if sorted(seen) != list(range(count)):
        raise Wrong(f"epoch 1 had {len(seen)} samples, {len(set(seen))} different ones, and not each of {count} once")
    rows = [Row.of(5, "two ranks, until the kill", [total], total), Row.of(6, "one rank goes on", [alone], alone)]
    return rows, f"Scenes 5, 6: a job of two ranks was killed; one rank went on; each of {count} samples was seen once."


def run_ranks(args: argparse.Namespace, ranks: int, **more: int) -> list[dict[str, Any]]:
    """Runs scene 5 or 6, and returns the last report of each rank."""
    scene = Scene(args, "ranks", ranks=ranks, **more)
    for line in scene.stdout or ():
        print(f"    {line}", end="", flush=True)
    scene.end()
    paths = [args.folder / f"report-{rank}-of-{ranks}" for rank in range(ranks)]
    if not all(path.exists() for path in paths):
        raise Wrong("a rank has ended early; its output is above")
    return [json.loads(path.read_text()) for path in paths]


def samples_seen(folder: Path, kept: int) -> list[int]:
    """Returns the samples of epoch 1: those of two ranks up to the checkpoint, and those of one rank after it."""
    found: list[int] = []
    for rank, ranks in RANKS:
        for epoch, step, seen in map(json.loads, (folder / f"seen-{rank}-of-{ranks}").read_text().splitlines()):
            found += seen if epoch == 1 and (ranks == 1 or step <= kept) else []
    return found


class Wrong(Exception):
    """Says that a scene did not show what it has to show."""


# ---- The table and the picture


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pillow", "headrace")]
    cores = f"{len(os.sched_getaffinity(0))} cores" + "".join(f" ({line.partition(': ')[2]})" for line in models[:1])
    return ", ".join((cores, f"Python {platform.python_version()}", *versions, str(datetime.date.today())))


def print_table(rows: list[Row]) -> None:
    print(f"\n{'':32}" + "".join(f"{head:>11}" for head in FORMS))
    for row in rows:
        cells = (f"{form(row.numbers[head]):>11}" for head, form in FORMS.items())
        print(f"{row.number} {row.what:30}" + "".join(cells))
    print(
        "waited: the part of the time in which the training waited for data. CPU/image: all processes, with the model."
    )
    print("private: memory that is not shared. /dev/shm, memfd: shared memory of batches; docker limits the first.")
    print("The time that workers take to start is not counted.\n")


STYLE = """
 text { font: 13px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
 text.head { font-weight: 600 } text.small { font-size: 11px; fill: #59636e }
 .paper { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #0969da } .torch { fill: #8c959f }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } text.small { fill: #9198a1 }
  .paper { fill: #0d1117; stroke: #3d444d } .bar { fill: #4493f8 } .torch { fill: #6e7681 }
 }"""
WIDTH, LEFT, LINE = 772, 252, 24


def draw(rows: list[Row], results: list[str]) -> str:
    """Returns an SVG: bars for scenes 1 to 3, and the results as text. Where a browser prefers dark, it is dark."""
    parts, y = list[str](), 30

    def write(x: float, words: str, kind: str = "") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y}" class="{kind}">{html.escape(words)}</text>')

    for title, head in (("Samples per second", "samples/s"), ("CPU time per image, with the model's", "CPU/image")):
        write(20, title, "head")
        for row in rows[:3]:
            y += LINE
            value = row.numbers[head]
            width = (WIDTH - LEFT - 100) * value / max(one.numbers[head] for one in rows[:3])
            kind = "torch" if row.number == 1 else "bar"
            write(20, f"{row.number}: {row.what}")
            parts.append(f'<rect x="{LEFT}" y="{y - 12}" width="{width:.0f}" height="16" rx="2" class="{kind}"/>')
            write(LEFT + width + 8, FORMS[head](value))
        y += LINE + 14
    for result in results:
        write(20, result)
        y += LINE
    write(20, machine(), "small")
    size = f'width="{WIDTH}" height="{y + 18}" viewBox="0 0 {WIDTH} {y + 18}"'
    paper = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{y + 17}" rx="6" class="paper"/>'
    return "\n".join(
        (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>", paper, *parts, "</svg>\n")
    )


# ---- The demo


def demo(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    args.folder.mkdir(parents=True, exist_ok=True)
    args.files = make_files(args.folder, find_photographs(args.photographs), args.per_class)
    count = len(list(args.files.glob("*/*.jpg")))
    print(f"{count} JPEG files in {args.files}, cut out of these photographs:")
    for name, _, credit in PHOTOGRAPHS:
        print(f"    {name}: {credit}")
    print("    CC BY 2.0 is https://creativecommons.org/licenses/by/2.0/")
    print(f"A small network trains on crops of {SIDE} pixels, in batches of {args.batch}, with one worker.")
    rows, results = [], []
    for show in (show_turns, show_kill, show_ranks):
        more, result = show(args)
        print(f"    {result}", flush=True)
        rows += more
        results.append(result)
    print_table(rows)
    rate = {row.number: row.numbers["samples/s"] for row in rows}
    print(f"Scene 2 has {rate[2] / rate[1]:.2f} times the samples/s of scene 1, scene 3 {rate[3] / rate[1]:.2f} times.")
    print("headrace gains nothing where the model is the bottleneck, and little where Pillow is kept (scene 2).")
    picture = args.folder / "demo.svg"
    picture.write_text(draw(rows, results))
    took, times = time.monotonic() - begun, os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    print(f"{machine()}\nIt took {took:.0f} s, and {cpu:.0f} s of CPU time. The picture: {picture}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("headrace-demo"), help="where it writes its files")
    parser.add_argument("--photographs", type=Path, action="append", default=[], help="a folder with the photographs")
    parser.add_argument("--per-class", type=int, default=40, help="how many files are cut out of each photograph")
    parser.add_argument("--batch", type=int, default=16, help="samples in a batch")
    parser.add_argument("--epochs", type=int, default=4, help="how many epochs of scenes 1 to 3 are timed")
    parser.add_argument("--scene", type=json.loads, help=argparse.SUPPRESS)  # for the processes that it starts
    args = parser.parse_args()
    if args.scene:
        scene = argparse.Namespace(**args.scene)
        {"kill": train_with_a_kill, "ranks": train_on_ranks}.get(scene.name, train_in_turns)(scene)
        return 0
    missing = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is None]
    if missing:
        parser.error(f"these packages are missing: {' '.join(missing)}")
    if args.per_class * len(PHOTOGRAPHS) < 4 * args.batch:
        parser.error("an epoch has to have four batches: choose more files (--per-class), or a smaller --batch")
    args.folder = args.folder.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        demo(args)
        return 0
    except Wrong as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C must not leave anything running.
        end_all()


if __name__ == "__main__":
    sys.exit(main())
