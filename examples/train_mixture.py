# SPDX-License-Identifier: Apache-2.0
"""Training on two tar files of pictures, mixed 7 to 3, that is killed on two ranks, and goes on with one rank.

    python examples/train_mixture.py                                    # shows it: trains, kills, resumes, compares
    headrace run --nproc 2 examples/train_mixture.py --train FOLDER     # the training alone; run it again to resume

The function `train` is the part to copy. It needs torchvision and Pillow. The tar files are as WebDataset writes
them: a picture `KEY.jpg` and its class `KEY.cls`. The pictures are decoded, cropped and resized by headrace.images.
"""

from __future__ import annotations

import collections
import io
import os
import random
import signal
import sys
import tarfile
import tempfile

import headrace
import torch
import torch.distributed as dist
from headrace import images, sources
from headrace.torch import DataLoader, per_rank
from kill_and_resume import kill_and_resume, note_samples, parser_of
from PIL import Image
from torchvision import transforms

WEIGHTS = {"stripes": 0.7, "noise": 0.3}
SAMPLES = {"stripes": 150, "noise": 40}
BATCH, EPOCHS, SIDE = 8, 2, 32


def make_mixture(folder: str) -> headrace.Mixture:
    """Returns 7 samples of one tar file for 3 of the other, until both were read: the smaller one is read again."""
    steps = transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.ToTensor()])
    tars = {
        name: sources.Tar(
            os.path.join(folder, f"{name}.tar"),
            fields=("jpg", "cls"),
            transform={"jpg": images.native(steps)},
            keep="job",  # the index goes with the last rank, as the files of this example do
        )
        for name in WEIGHTS
    }
    return headrace.Mixture(tars, WEIGHTS, seed=0, until="all")


def train(folder: str, workers: int, killed_at: int) -> None:
    """Trains on all ranks, and saves a checkpoint every five steps."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), os.path.join(folder, "checkpoint.pt")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    mix = make_mixture(folder)
    if rank == 0:
        print(mix.report(), flush=True)
    sampler = per_rank(mix, tail="exact")
    loader = DataLoader(mix.dataset, BATCH, sampler=sampler, num_workers=workers, rng="sample", seed=0)

    step, first_epoch = 0, 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        loader.load_state_dict(checkpoint["loader"])  # the next `for` begins after the last sample of the checkpoint
        step, first_epoch = checkpoint["step"], checkpoint["epoch"]
        if rank == 0:
            print(f"  resumed after step {step}, in epoch {first_epoch}, on {dist.get_world_size()} ranks", flush=True)

    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for pictures, classes in loader:
            weights = loader.last.weights  # 0 for a sample that another rank has too, 1 for all others
            losses = torch.nn.functional.cross_entropy(model(pictures), classes, reduction="none")
            optimizer.zero_grad()
            ((losses * weights).sum() / loader.last.global_count).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            note_samples(folder, rank, step, epoch, loader.last.indices, weights.tolist())
            if step % 5 == 0 and rank == 0:
                next_epoch = epoch + (loader.steps_left == 0)  # the state after the last batch is its start
                state = {"model": model.state_dict(), "loader": loader.state_dict(), "step": step, "epoch": next_epoch}
                torch.save(state, path + ".new")
                os.rename(path + ".new", path)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


# ---- what follows only shows that it works ----


def make_tar(path: str, is_noise: bool, count: int) -> None:
    """Writes pictures of stripes or of noise, and the class of each: 1 if it is rather red."""
    drawn = random.Random(count)
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            is_red = drawn.random() < 0.5
            size = drawn.randint(40, 90), drawn.randint(40, 90)
            picture = Image.effect_noise(size, 90) if is_noise else Image.linear_gradient("L").resize(size)
            bands = [picture, *(picture.point(lambda value: value // 2) for _ in range(2))]
            data = io.BytesIO()
            Image.merge("RGB", bands if is_red else bands[::-1]).save(data, "JPEG", quality=90)
            for name, content in ((f"{number:06}.jpg", data.getvalue()), (f"{number:06}.cls", b"%d" % is_red)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def show(workers: int, killed_at: int) -> bool:
    """Trains on two ranks, kills them, resumes on one, and says whether each sample was seen as often as it should."""
    with tempfile.TemporaryDirectory() as folder:
        for name, count in SAMPLES.items():
            make_tar(os.path.join(folder, f"{name}.tar"), name == "noise", count)
        print(f"two ranks train, and are killed at step {killed_at}", flush=True)
        epochs = kill_and_resume([__file__], folder, workers, killed_at, EPOCHS)
        mix = make_mixture(folder)
    is_right = True
    for epoch, seen in enumerate(epochs):
        names = collections.Counter(mix.dataset.names[mix.dataset.place_of(index)[0]] for index in seen)
        again = sum(index >= len(mix.dataset) for index in seen)
        print(f"epoch {epoch}: {len(seen)} samples, {dict(names)}, {again} of a later pass")
        is_right &= sorted(seen) == sorted(mix.with_epoch(epoch))
    return is_right


def main() -> int:
    options = parser_of(__doc__).parse_args()
    if options.train:
        train(options.train, options.workers, options.killed_at)
        return 0
    is_right = show(options.workers, options.killed_at or 22)
    print("each epoch had the samples of its mixture" if is_right else "samples are missing, or were seen twice")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
