# SPDX-License-Identifier: Apache-2.0
"""timm's transforms give the same with `native`, and say what is done in C."""

from __future__ import annotations

import random
from typing import Any

import photos
import pytest

if photos.MISSING:
    pytest.skip(photos.WHY_MISSING, allow_module_level=True)
photos.import_torchvision()
pytest.importorskip("timm", reason=photos.WHY_MISSING)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from headrace import images  # noqa: E402
from PIL import Image  # noqa: E402
from timm.data import create_transform  # noqa: E402

PATH = photos.PHOTOS / "china.jpg"
TRAIN = {"input_size": 64, "is_training": True}
EVALUATION = {"input_size": 64, "is_training": False}
TAIL = "NativeTail(MaybeToTensor(), Normalize("
BYTES = "NativeTail(MaybePILToTensor())"
COLOURS = {"color_jitter": 0.4, "grayscale_prob": 0.5, "gaussian_blur_prob": 0.5}
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "train": (TRAIN, ["NotingColorJitter(", TAIL]),
    "train for the prefetcher": ({**TRAIN, "use_prefetcher": True}, ["NotingColorJitter(", BYTES]),
    "train with colours": ({**TRAIN, **COLOURS}, ["NotingRandomGrayscale(", "NotingGaussianBlur(", TAIL]),
    "train with RandAugment": ({**TRAIN, "auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5}, ["RandomErasing(", TAIL]),
    "train in three parts": ({**TRAIN, "separate": True}, ["NotingColorJitter(", TAIL]),
    "evaluation": (EVALUATION, [TAIL]),
    "evaluation for the prefetcher": ({**EVALUATION, "use_prefetcher": True}, [BYTES]),
    "evaluation with borders": ({**EVALUATION, "crop_mode": "border"}, [TAIL]),
}


def run(transform: Any, image: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    for part in transform if isinstance(transform, tuple) else (transform,):
        image = part(image)
    return image, torch.rand(1), random.random()


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_of_timm_give_the_same(kind: str) -> None:
    options, shown = KINDS[kind]
    transform = create_transform(**options)
    native = images.native(transform)
    assert all(name in str(native) for name in shown)
    for seed in range(4):
        expected, *expected_draws = run(transform, Image.open(PATH).convert("RGB"), seed)
        found, *draws = run(native, images.load_rgb(PATH), seed)
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert draws == expected_draws
