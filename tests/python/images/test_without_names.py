# SPDX-License-Identifier: Apache-2.0
"""headrace.images with a torch that lacks a private name: the same batches, and less is done in C or together."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import photos
import pytest
import torch.utils.data  # noqa: F401 # the names are looked for in it

if photos.MISSING:
    pytest.skip(photos.WHY_MISSING, allow_module_level=True)
from headrace._tensors import torch_names
from processes import run

COUNT = 9
LIB = Path(__file__).parents[1] / "lib"
SCRIPT = """
import json, sys, warnings
import torch.utils.data
sys.path.insert(0, {lib!r})
import photos, renamed
torch.multiprocessing.set_start_method("fork")  # which CPython 3.14 does not use by itself: the datasets have lambdas
photos.import_torchvision()
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

FILES = {files!r}

def steps():
    crop = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()]
    tail = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)]
    modules = [v1.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return torch.nn.Sequential(*modules), v1.Compose([*crop, *tail])

class Photos(torch.utils.data.Dataset):
    def __init__(self, load, transforms):
        self.load, self.transforms = load, transforms
    def __len__(self):
        return len(FILES)
    def __getitem__(self, index):
        return [transform(self.load(FILES[index])) for transform in self.transforms], index

def digests(loader):
    torch.manual_seed(5)
    return [[sum(one.double().sum().item() for one in parts), labels.tolist()] for parts, labels in loader]

def theirs():
    return digests(torch.utils.data.DataLoader(Photos(lambda path: Image.open(path).convert("RGB"), steps()), 3))

def case():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from headrace import images
        from headrace.images import _deferred
        from headrace.torch import DataLoader
        dataset = Photos(images.load_rgb, [images.native(one) for one in steps()])
        loader = DataLoader(dataset, 3, num_workers=1)
        same = [digests(loader), digests(DataLoader(dataset, 3))]
        return dict(
            warned=[str(one.message) for one in caught], same=[one == expected for one, expected in
            zip(same, [workers, here])], pends=_deferred._can_defer, native=repr(dataset.transforms[0]),
            decoded=loader.report().get("images"),
        )

here = renamed.run_each([""], theirs)[""]
def of_worker():
    torch.manual_seed(5)
    transforms = steps()
    return digests(torch.utils.data.DataLoader(
        Photos(lambda path: Image.open(path).convert("RGB"), transforms), 3, num_workers=1))
workers = renamed.run_each([""], of_worker)[""]
print(json.dumps(renamed.run_each({paths!r}, case)))
"""
PENDING = {
    "torch.Tensor._make_wrapper_subclass",
    "torch._C.DisableTorchFunctionSubclass",
    "torch.utils._pytree.tree_map",
}
OTHERS = {
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_unflatten",
    "torch.nn.modules.module.Module._modules",
    "torch.nn.modules.module.Module._forward_hooks",
    "torch.nn.modules.module.Module._forward_pre_hooks",
    "torch._C._set_throw_on_mutable_data_ptr",
    "torch._C._storage_Use_Count",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, drawn = tmp_path_factory.mktemp("photos"), photos.Drawn(Random(4))
    paths = [folder / f"{number}.jpg" for number in range(COUNT)]
    for path in paths:
        path.write_bytes(drawn.file())
    return list(map(str, paths))


def test_name_that_images_use_may_be_missing(tmp_path: Path, files: list[str]) -> None:
    paths = ["", *(path for path in sorted(PENDING | OTHERS) if torch_names.has(path))]
    assert len(paths) > len(PENDING)
    found: dict[str, Any] = json.loads(run(tmp_path, SCRIPT.format(lib=str(LIB), files=files, paths=paths)))
    for path, one in found.items():
        assert isinstance(one, dict), f"{path}: {one}"
        of_modules = path.startswith("torch.nn.")  # the steps in Sequential stay as they are, and a warning says so
        assert (one["same"], len(one["warned"])) == ([True, True], int(of_modules)), path
        assert ("NativeTail" in one["native"]) == (not of_modules), path
        assert one["pends"] == (path not in PENDING), path
    assert found[""]["decoded"]["made"] == 2 * COUNT
