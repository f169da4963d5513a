# SPDX-License-Identifier: Apache-2.0
"""examples/train_images.py on one and two ranks has the same losses as with Pillow, and examples/c/images.c the same
batches."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "tests" / "python" / "lib"
PROGRAM = ROOT / "build" / "dev" / "tests" / "example_images"
COUNT, EPOCHS, BATCH = 40, 2, 8
RUN = f"""
import sys, runpy
sys.path.insert(0, {str(LIBRARY)!r})
import photos
photos.import_torchvision()
sys.argv = [{str(ROOT / "examples" / "train_images.py")!r}, *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("train")
    random = Random(9)
    for number in range(COUNT):
        name = random.choice(photos.NAMES)
        place = root / name
        place.mkdir(exist_ok=True)
        image = photos.photo(name)
        left, upper = random.randrange(300), random.randrange(200)
        part = image.crop((left, upper, left + random.randint(60, 300), upper + random.randint(60, 200)))
        (place / f"{number}.jpg").write_bytes(photos.encode(part, quality=90, progressive=number % 5 == 0))
    return root


def losses(folder: Path, script: Path, ranks: int, *options: str) -> list[str]:
    command = [sys.executable, str(script), str(folder), "--epochs", str(EPOCHS), *options]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0", "--standalone"]
        command = [sys.executable, *launcher, *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("step "))


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_gives_the_same_losses_as_with_pillow(folder: Path, tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(RUN)
    found = losses(folder, script, ranks)
    assert found == losses(folder, script, ranks, "--pillow")
    assert len(found) == EPOCHS * ranks * math.ceil(COUNT / ranks / BATCH)
    assert len({line.partition("loss")[2] for line in found}) > 2


@pytest.mark.skipif(not PROGRAM.exists(), reason="the C examples are not built")
@pytest.mark.skipif(not photos.MISSING and photos.pillow_version() < 13, reason="the example is for Pillow 13")
def test_c_example_writes_the_batches_of_torchvision(folder: Path, tmp_path: Path) -> None:
    photos.import_torchvision()
    import numpy as np
    from PIL import Image
    from torchvision import transforms

    place = folder / photos.NAMES[0]
    done = subprocess.run([str(PROGRAM), str(place), str(tmp_path), "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.fromfile(tmp_path / "0.f32", "float32").reshape(-1, 3, 224, 224)
    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    expected = {transform(Image.open(path).convert("RGB")).numpy().tobytes() for path in place.glob("*.jpg")}
    assert {image.tobytes() for image in found} == expected
