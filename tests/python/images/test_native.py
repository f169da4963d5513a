# SPDX-License-Identifier: Apache-2.0
"""Native transforms give what the user's own give: values, types, and the random numbers after them."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
if not photos.MISSING:
    photos.import_torchvision()
    import numpy as np
    import torch
    from headrace import images
    from headrace.images import _deferred, _jitter, _native, _tables
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision import tv_tensors
    from torchvision.transforms import v2

PATH = photos.PHOTOS / "china.jpg"
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def pipelines() -> dict[str, Any]:
    jitter = (0.4, 0.4, 0.4, 0.1)
    return {
        "v1 train": v1.Compose(
            [v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)]
        ),
        "v1 bytes": v1.Compose([v1.RandomCrop(64, pad_if_needed=True), v1.PILToTensor()]),
        "v1 half": v1.Compose([v1.Resize(50), v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)]),
        "v1 evaluation": v1.Compose(
            [v1.Resize(80), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, DEVIATION, inplace=True)]
        ),
        "v1 colours": v1.Compose(
            [
                v1.RandomResizedCrop(64, interpolation=v1.InterpolationMode.BICUBIC),
                v1.RandomApply([v1.ColorJitter(*jitter)], p=0.8),
                v1.RandomGrayscale(0.3),
                v1.RandomVerticalFlip(),
                v1.ToTensor(),
            ]
        ),
        "v1 grey": v1.Compose([v1.Resize((40, 50)), v1.Grayscale(3), v1.ToTensor()]),
        "v1 one channel": v1.Compose([v1.Grayscale(), v1.Resize(44), v1.ToTensor(), v1.Normalize([0.5], [0.2])]),
        "v1 blur": v1.Compose([v1.RandomResizedCrop(64), v1.GaussianBlur(5), v1.ToTensor()]),
        "v1 erasing": v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor(), v1.RandomErasing(p=0.5)]),
        "v1 five crops": v1.Compose(
            [v1.FiveCrop(64), v1.Lambda(lambda crops: torch.stack([v1.ToTensor()(crop) for crop in crops]))]
        ),
        "v1 augment": v1.Compose([v1.TrivialAugmentWide(), v1.RandomResizedCrop(64), v1.ToTensor()]),
        "v2 train": v2.Compose(
            [
                v2.RandomResizedCrop(64),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, DEVIATION),
            ]
        ),
        "v2 pure": v2.Compose(
            [v2.Resize((30, 60)), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.ToPureTensor()]
        ),
        "v2 tensors": v2.Compose(
            [v2.ToImage(), v2.RandomResizedCrop(64, antialias=True), v2.ToDtype(torch.float32, scale=True)]
        ),
        "v2 colours": v2.Compose(
            [
                v2.RandomResizedCrop(64),
                v2.RandomApply([v2.ColorJitter(*jitter)], p=0.8),
                v2.RandomGrayscale(0.3),
                v2.PILToTensor(),
            ]
        ),
        "v2 grey": v2.Compose([v2.Grayscale(3), v2.CenterCrop(900), v2.ToImage()]),
        "nested": v1.Compose([v1.Compose([v1.RandomResizedCrop(64)]), v1.Compose([v1.ToTensor()])]),
        "alone": v1.ToTensor() if not photos.MISSING else None,
    }


NAMES = list(pipelines()) if not photos.MISSING else []


def run(transform: Any, image: Any, seed: int) -> tuple[Any, float]:
    torch.manual_seed(seed)
    result = transform(image)
    return result, float(torch.rand(1))


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_native_pipeline_gives_the_same(name: str) -> None:
    """At once, and as deferred tensors of a batch; also of a grey file."""
    transform = pipelines()[name]
    native = images.native(transform)
    if name != "alone":
        assert type(native) is type(transform)
    grey = photos.encode(Image.open(PATH).convert("L"))
    for seed in range(12):
        data = grey if seed % 6 == 5 else PATH.read_bytes()
        expected, after = run(transform, Image.open(io.BytesIO(data)).convert("RGB"), seed)
        found, found_after = run(native, images.open(io.BytesIO(data)).convert("RGB"), seed)
        assert_same(found, expected)
        assert found_after == after
        with _deferred.batching():
            found, found_after = run(native, images.open(io.BytesIO(data)).convert("RGB"), seed)
        assert tuple(found.shape) == tuple(expected.shape)
        assert found_after == after
        _deferred.Batch().finish([found], 2, keeps=True)
        assert_same(found, expected)


def test_native_passes_other_images_to_the_users_steps() -> None:
    transform = pipelines()["v1 train"]
    native = images.native(transform)
    assert_same(run(native, Image.open(PATH), 1)[0], run(transform, Image.open(PATH), 1)[0])
    cmyk = Image.open(PATH).convert("CMYK")
    with pytest.raises(RuntimeError):
        transform(cmyk)
    with pytest.raises(RuntimeError):
        native(cmyk)


def test_native_follows_changes_of_the_steps() -> None:
    native = images.native(v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)]))
    normalize = native.transforms[0].steps[1]
    native(images.load_rgb(PATH))
    normalize.mean = [0.1, 0.2, 0.3]
    assert_same(native(images.load_rgb(PATH)), v1.Compose([v1.ToTensor(), normalize])(Image.open(PATH)))
    native.transforms.insert(0, v1.Resize(30))
    assert native(images.load_rgb(PATH)).shape[1] == 30


@pytest.mark.parametrize("kind", [torch.tensor, np.array] if not photos.MISSING else [])
def test_native_follows_small_changes_of_values_in_arrays(kind: Any) -> None:
    """Values of which only digits differ that are not shown."""
    native = images.native(v1.Compose([v1.ToTensor(), v1.Normalize(kind(MEAN), kind(DEVIATION))]))
    normalize = native.transforms[0].steps[1]
    before = native(images.load_rgb(PATH))
    normalize.mean = kind([value + 1e-10 if kind is np.array else value + 1e-6 for value in MEAN])
    assert repr(normalize.mean) == repr(kind(MEAN))
    assert (
        len({_tables.key_of([normalize], "RGB"), _tables.key_of([v1.Normalize(kind(MEAN), kind(DEVIATION))], "RGB")})
        == 2
    )
    after = native(images.load_rgb(PATH))
    assert_same(after, v1.Compose([v1.ToTensor(), normalize])(Image.open(PATH)))
    assert kind is np.array or not torch.equal(after, before)


def test_native_ignores_the_default_device() -> None:
    transform = v1.Compose([v1.Resize((20, 30)), v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)])
    expected = transform(Image.open(PATH))
    torch.set_default_device("meta")
    try:
        native = images.native(transform)
        at_once = native(images.load_rgb(PATH))
        with _deferred.batching():
            samples = [native(images.load_rgb(PATH)) for _ in range(3)]
        assert all(type(one) is _deferred.DeferredTensor and one.device.type == "cpu" for one in samples)
        batch = _deferred.Batch()
        batch.finish(samples[:1], 1, keeps=True)
        batch.finish(samples[1:2], 1, keeps=False)
        samples[2].sum()
    finally:
        torch.set_default_device(None)
    for found in (at_once, *samples):
        assert_same(found, expected)


def test_native_follows_the_default_dtype() -> None:
    native = images.native(v1.Compose([v1.ToTensor()]))
    native(images.load_rgb(PATH))
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(native(images.load_rgb(PATH)), v1.ToTensor()(Image.open(PATH)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_native_does_not_replace_subclasses() -> None:
    class Mine(v1.ToTensor):
        def __call__(self, image: Any) -> Any:
            return super().__call__(image).flip(0)

    native = images.native(v1.Compose([Mine()]))
    assert isinstance(native.transforms[0], Mine)
    assert_same(native(images.load_rgb(PATH)), Mine()(Image.open(PATH)))


class _Doubled(v1.ToTensor if not photos.MISSING else object):  # type: ignore[misc]
    """A class with the name of its base, as a decorator makes them."""

    def __call__(self, image: Any) -> Any:
        return super().__call__(image) * 2 + torch.rand(())


def _hooked(step: Any) -> Any:
    step.register_forward_hook(lambda module, inputs, output: output + torch.rand(()))
    return step


def _with_its_own_forward(step: Any) -> Any:
    step.forward = lambda image: image + torch.rand(())
    return step


def test_native_does_not_replace_steps_that_do_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """They draw random numbers, so they may not even be tried. Nor is a class that has been patched replaced."""
    functools.update_wrapper(_Doubled, v1.ToTensor, updated=())
    monkeypatch.setattr(v1.GaussianBlur, "forward", lambda self, image: image.rotate(30))
    for steps in (
        [_Doubled()],
        [v1.ToTensor(), _hooked(v1.Normalize(MEAN, DEVIATION))],
        [v1.ToTensor(), _with_its_own_forward(v1.Normalize(MEAN, DEVIATION))],
        [v1.GaussianBlur(3), v1.ToTensor()],
    ):
        transform = v1.Compose([v1.Resize((40, 50)), *steps])
        found, expected = (
            run(one, image, 3)
            for one, image in ((_native.native_or_same(transform), images.open(PATH)), (transform, Image.open(PATH)))
        )
        assert_same(found[0], expected[0])
        assert found[1] == expected[1], steps


def test_native_sequential_keeps_its_hooks() -> None:
    def sequential() -> Any:
        return torch.nn.Sequential(v2.Resize((40, 50)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True))

    hooked, own = sequential(), _with_its_own_forward(sequential())
    hooked.register_forward_hook(lambda module, inputs, output: output - output.mean())
    own.forward = lambda image: torch.nn.Sequential.forward(own, image) * 2
    for transform in (hooked, own):
        assert_same(images.native(transform)(images.open(PATH)), transform(Image.open(PATH)))


def test_native_enters_only_compose_and_random_apply() -> None:
    class Mine(v1.Compose):
        pass

    class Other:
        def __init__(self) -> None:
            self.transforms = [v1.ToTensor(), v1.Normalize(MEAN, DEVIATION)]

        def __call__(self, image: Any) -> Any:
            return len(self.transforms)

    for module in (v1, v2):
        steps = [module.Grayscale(3), module.PILToTensor(), module.ConvertImageDtype(torch.float32)]
        for kind in (module.RandomChoice, module.RandomOrder):
            transform = module.Compose([kind(steps)])
            with pytest.warns(UserWarning, match=r"in torchvision\..*Compose there is no step of torchvision or timm"):
                assert images.native(transform) is transform
        apply = images.native(module.RandomApply(steps, p=0.5))
        assert type(apply) is module.RandomApply
        assert apply.transforms[1:] == steps[1:]
        assert "Noting" in type(apply.transforms[0]).__name__
    other = Other()
    for transform in (other, Mine(other.transforms), v1.Compose([v1.Resize(20)]), v1.RandomApply([v1.Resize(20)])):
        with pytest.warns(UserWarning, match="there is no step"):
            assert images.native(transform) is transform


def test_native_leaves_the_original_as_it_was() -> None:
    transform = pipelines()["v1 colours"]
    before = repr(transform)
    native = images.native(transform)
    assert repr(transform) == before
    assert "NativeTail(ToTensor())" in repr(native)
    assert "NotingColorJitter" in repr(native)
    assert isinstance(native.transforms[1].transforms[0], v1.ColorJitter)


def test_native_transforms_are_pickled_and_copied() -> None:
    for name in ("v1 colours", "v2 colours"):
        native = images.native(pipelines()[name])
        for other in (pickle.loads(pickle.dumps(native)), copy.deepcopy(native)):
            assert_same(run(other, images.load_rgb(PATH), 3)[0], run(pipelines()[name], Image.open(PATH), 3)[0])


def test_native_takes_tuples_and_refuses_what_is_no_transform() -> None:
    parts = images.native((v1.Compose([v1.Resize(20)]), v1.Compose([v1.ToTensor()])))
    assert isinstance(parts, tuple)
    assert isinstance(parts[1].transforms[0], _native.NativeTail)
    with pytest.raises(TypeError, match="give a transform, not int"):
        images.native(3)


def test_native_enters_a_sequential() -> None:
    steps = [v2.Resize(20), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
    transform = torch.nn.Sequential(*steps)
    native = images.native(transform)
    assert type(native) is torch.nn.Sequential
    assert "(1): NativeTail(ToImage(), ToDtype(scale=True), Normalize(" in repr(native)
    assert_same(native(images.load_rgb(PATH)), transform(Image.open(PATH)))
    assert_same(pickle.loads(pickle.dumps(native))(images.load_rgb(PATH)), transform(Image.open(PATH)))
    assert_same(native(Image.open(PATH)), transform(Image.open(PATH)))


def test_colour_factors_out_of_range_are_pillows() -> None:
    for module in (v1, v2):
        jitter = module.ColorJitter((3e6, 3e6), (2.0, 2.0), (1e7, 1e7), (0.2, 0.2))
        native = images.native(module.Compose([jitter, module.PILToTensor()]))
        plain = module.Compose([jitter, module.PILToTensor()])
        torch.manual_seed(5)
        expected = plain(Image.open(PATH).resize((30, 20)))
        torch.manual_seed(5)
        assert_same(native(images.load_rgb(PATH).resize((30, 20))), expected)


def test_native_transforms_boxes_and_masks_with_the_image() -> None:
    """v2's samples: an image, boxes, a mask and labels, which are a plain tensor."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )
    native = images.native(transform)
    size = Image.open(PATH).size
    mask = tv_tensors.Mask(torch.arange(size[0] * size[1]).reshape(size[1], size[0]) % 7)
    for seed in range(5):
        results = []
        for one, image in ((transform, Image.open(PATH)), (native, images.open(PATH))):
            box = tv_tensors.BoundingBoxes([[10, 20, 300, 200]], format="XYXY", canvas_size=(size[1], size[0]))
            target = {"boxes": box, "mask": mask, "label": torch.tensor([3, 4])}
            torch.manual_seed(seed)
            results.append(one(image, target))
        (expected, target), (found, found_target) = results
        assert_same(found, expected)
        for key in target:
            assert_same(found_target[key], target[key])


USES: list[Callable[[Any], Any]] = [
    lambda tensor: tensor.mean(),
    lambda tensor: tensor + 1,
    lambda tensor: 1 + tensor,
    lambda tensor: tensor[0, 3:5],
    lambda tensor: tensor.numpy().sum(),
    lambda tensor: __import__("numpy").asarray(tensor).sum(),
    lambda tensor: torch.stack([tensor, tensor]).sum(),
    lambda tensor: torch.cat([tensor]).sum(),
    lambda tensor: tensor.clone(),
    lambda tensor: tensor.contiguous(),
    lambda tensor: tensor.to(torch.float64),
    lambda tensor: tensor.float().permute(1, 2, 0),
    lambda tensor: tensor.mul_(2),
    lambda tensor: tensor.__setitem__((0, 0, 0), 5),
    lambda tensor: tensor.tolist()[0][0][:3],
    lambda tensor: tensor.sum().item(),
    lambda tensor: repr(tensor),
    lambda tensor: str(tensor),
    lambda tensor: pickle.loads(pickle.dumps(tensor)),
    lambda tensor: copy.copy(tensor),
    lambda tensor: copy.deepcopy(tensor),
    lambda tensor: torch.nn.functional.conv2d(tensor[None].float(), torch.ones(1, tensor.shape[0], 3, 3)),
    lambda tensor: torch.equal(tensor, tensor),
    lambda tensor: tensor == tensor,
    lambda tensor: [row.sum() for row in tensor],
    lambda tensor: tensor.data_ptr() != 0,
    lambda tensor: tensor.storage_offset(),
    lambda tensor: tensor.stride(),
    lambda tensor: tensor.is_contiguous(),
    lambda tensor: tensor.untyped_storage().nbytes(),
    lambda tensor: tensor.requires_grad_().sum().backward(),
    lambda tensor: tensor.T.shape if tensor.dim() == 2 else tensor.mT.sum(),
    lambda tensor: tensor.share_memory_(),
    lambda tensor: torch.utils.data.default_collate([tensor, tensor]),
    lambda tensor: (tensor.shape, tensor.dtype, tensor.ndim, tensor.size(), tensor.size(1), len(tensor), tensor.device),
    lambda tensor: (tensor.dim(), tensor.numel(), tensor.requires_grad, tensor.is_floating_point(), tensor.layout),
    lambda tensor: isinstance(tensor, torch.Tensor),
    lambda tensor: torch.is_tensor(tensor),
    lambda tensor: bool(tensor.any()),
    lambda tensor: tensor.element_size(),
    lambda tensor: tensor.nothing,
]


@pytest.mark.parametrize("number", range(len(USES)))
@pytest.mark.parametrize("is_v2", [False, True])
def test_deferred_tensor_is_used_like_an_ordinary_one(number: int, is_v2: bool) -> None:
    def outcome(tensor: Any) -> Any:
        try:
            result = USES[number](tensor)
        except Exception as error:
            return type(error)
        if isinstance(result, torch.Tensor):
            return type(result), result.detach().as_subclass(torch.Tensor).tolist()
        return result

    transform = v1.Compose([v1.Resize((7, 9)), v1.ToTensor()])
    if is_v2:
        transform = v2.Compose([v2.Resize((7, 9)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    with _deferred.batching():
        found = images.native(transform)(images.load_rgb(PATH))
    assert isinstance(found, _deferred.DeferredTensor)
    expected = transform(Image.open(PATH).convert("RGB"))
    assert outcome(found) == outcome(expected)
    assert torch.equal(found, expected)
    assert type(found) is type(expected)


def test_deferred_tensor_keeps_the_users_attributes() -> None:
    native = images.native(v1.Compose([v1.Resize((7, 9)), v1.ToTensor()]))
    with _deferred.batching():
        used, made = native(images.load_rgb(PATH)), native(images.load_rgb(PATH))
    for tensor in (used, made):
        tensor.path = PATH
    used.sum()
    _deferred.Batch().finish([made], 1, keeps=True)
    for tensor in (used, made):
        assert type(tensor) is torch.Tensor
        assert vars(tensor) == {"path": PATH}


def test_batch_makes_deferred_tensors_wherever_they_are() -> None:
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])
    native = images.native(transform)
    batch = _deferred.Batch()
    for keeps in (True, False, False):
        torch.manual_seed(5)
        expected = [transform(Image.open(PATH).convert("RGB")) for _ in range(6)]
        torch.manual_seed(5)
        with _deferred.batching():
            one = images.open(PATH).convert("RGB")
            views = [native(one if number < 3 else images.load_rgb(PATH)) for number in range(6)]
        batch.finish([(views[0], 1), [views[1], {"a": views[2]}], (views[3], views[4], views[4]), views[5]], 3, keeps)
        for found, wanted in zip(views, expected, strict=True):
            assert_same(found, wanted)


def test_damaged_images_of_a_batch_are_pillows() -> None:
    """Data that the decoder in C reports as damaged, next to good images."""
    random = Random(5)
    transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
    native = images.native(transform)
    small = photos.encode(Image.open(PATH).convert("RGB").resize((60, 50)))
    tried = 0
    for _ in range(60):
        data = bytearray(small)
        for place in range(len(data) - 300, len(data) - 200):
            data[place] = random.choice([0x7F, 0xFE, 0xFB])
        with _deferred.batching():
            found = [native(images.open(io.BytesIO(one)).convert("RGB")) for one in (small, bytes(data), small)]
        _deferred.Batch().finish(found, 2, keeps=True)
        for one, tensor in zip((small, bytes(data), small), found, strict=True):
            assert_same(tensor, transform(Image.open(io.BytesIO(one)).convert("RGB")))
        tried += 1
    assert tried == 60


def test_blurs_are_torchvisions_to_the_last_bit() -> None:
    """Random sizes, modes and sigmas, alone and twice."""
    random = Random(4)
    for seed in range(8):
        module = (v1, v2)[seed % 2]
        kernel = [random.randrange(1, 25, 2), random.randrange(1, 25, 2)]
        blur = module.GaussianBlur(kernel, (random.uniform(0.1, 0.6), random.uniform(0.6, 2.5)))
        size = [random.randint(13, 90), random.randint(13, 90)]
        steps = [module.Resize(size), blur, module.RandomApply([module.GaussianBlur(3)], p=0.5), module.PILToTensor()]
        steps = [module.Grayscale(), *steps] if seed % 4 > 1 else steps
        transform = module.Compose(steps)
        native = images.native(transform)
        assert "NotingGaussianBlur" in repr(native)
        assert_same(run(native, images.load_rgb(PATH), seed)[0], run(transform, Image.open(PATH), seed)[0])
        assert_same(run(native, Image.open(PATH), seed)[0], run(transform, Image.open(PATH), seed)[0])


def test_blur_wider_than_the_image_raises_torchvisions_error() -> None:
    for module in (v1, v2):
        native = images.native(module.Compose([module.GaussianBlur(23), module.PILToTensor()]))
        with pytest.raises(RuntimeError, match=r"[Pp]adding size should be less than"):
            native(images.load_rgb(PATH).resize((50, 11)))


def test_blur_that_differs_is_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jitter._steps, "blur", lambda *arguments: _jitter._steps.hue(3))
    _jitter._blur_is_exact.cache_clear()
    transform = v1.Compose([v1.GaussianBlur(5), v1.PILToTensor()])
    try:
        with pytest.warns(UserWarning, match=r"in the self-test, a blur .* \(a blur of mode RGB differs\)"):
            found = run(images.native(transform), images.load_rgb(PATH), 3)[0]
    finally:
        _jitter._blur_is_exact.cache_clear()
    assert_same(found, run(transform, Image.open(PATH), 3)[0])


def test_blur_of_a_damaged_file_is_torchvisions() -> None:
    """Pillow decodes it when C has found the damage, and torch blurs it."""
    data = bytearray(photos.encode(photos.photo("china").resize((40, 30)), quality=90))
    middle = data.index(b"\xff\xda") + 30
    data[middle : middle + 40] = b"\xff\x00" * 20
    for steps in ([], [v1.Grayscale()]):
        transform = v1.Compose([*steps, v1.GaussianBlur((5, 3)), v1.PILToTensor()])
        found = run(images.native(transform), images.open(io.BytesIO(data)), 3)[0]
        assert_same(found, run(transform, Image.open(io.BytesIO(data)), 3)[0])
