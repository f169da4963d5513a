# SPDX-License-Identifier: Apache-2.0
"""Whatever a dataset does with the result of a native transform, it does it with an ordinary tensor, whose class,
strides and values are those of torchvision."""

from __future__ import annotations

import functools
import io
import itertools
import os
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import photos
import pytest

if photos.MISSING:
    pytest.skip(photos.WHY_MISSING, allow_module_level=True)
photos.import_torchvision()
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.utils.data  # noqa: E402
import torch.utils.dlpack  # noqa: E402
import torchvision.datasets  # noqa: E402
from headrace import images  # noqa: E402
from headrace.images import _deferred  # noqa: E402
from headrace.images._proof import passed_on  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

SIZE = (9, 7)
FILE = photos.encode(photos.photo("china").resize((40, 30)), quality=90)
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TRAIN = v1.Compose([v1.Resize(SIZE), v1.ToTensor()])
# Leaves the channels last in memory, as ToImage does, too.
BYTES = v2.Compose([v2.Resize(SIZE), v2.PILToTensor()])


class MetaTensor(torch.Tensor):
    """Made as MONAI makes its own."""

    @staticmethod
    def __new__(cls, value: Any) -> Any:
        return torch.as_tensor(value).as_subclass(cls)


class Sample:
    """A class of the user's that holds a tensor, and of which no library knows."""

    def __init__(self, image: Any) -> None:
        self.image = image


class Touching(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Does something with the image in __getitem__, and keeps what came out."""

    def __init__(self, transform: Any, is_native: bool, functions: list[Callable[[Any], Any]]) -> None:
        self.transform = images.native(transform) if is_native else transform
        self.open = images.open if is_native else Image.open
        self.functions = functions
        self.outcomes: list[Any] = []

    def __len__(self) -> int:
        return len(self.functions)

    def __getitem__(self, index: int) -> int:
        image = self.transform(self.open(io.BytesIO(FILE)).convert("RGB"))
        torch.default_generator.manual_seed(index)  # torch.manual_seed formats the stack for each accelerator
        np.random.seed(index)
        self.outcomes.append(outcome(self.functions[index], image))
        return index


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        is_dense = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        strides = value.stride() if is_dense else None
        bits = repr(value.detach().as_subclass(torch.Tensor).tolist()) if is_dense else None
        return type(value), value.dtype, value.shape, strides, value.requires_grad, bits
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value), [described(one) for one in value]
    if isinstance(value, Sample):
        return type(value.image), described(value.image)
    return value if isinstance(value, (int, float, str, type)) else type(value)


def outcome(function: Callable[[Any], Any], image: Any) -> Any:
    try:
        return described(function(image)), described(image)
    except Exception as error:
        return type(error)


def outcomes(transform: Any, is_native: bool, functions: list[Callable[[Any], Any]]) -> list[Any]:
    dataset = Touching(transform, is_native, functions)
    list(DataLoader(dataset, 8))
    return dataset.outcomes


USES: dict[str, Callable[[Any], Any]] = {
    "as_subclass": lambda image: image.as_subclass(MetaTensor),
    "unbound as_subclass": lambda image: torch.Tensor.as_subclass(image, MetaTensor),
    "_make_subclass": lambda image: torch.Tensor._make_subclass(MetaTensor, image),
    "MetaTensor": MetaTensor,
    "Parameter": lambda image: torch.nn.Parameter(image, requires_grad=False),
    "Buffer": torch.nn.Buffer,
    "to_dlpack": lambda image: torch.from_dlpack(torch.utils.dlpack.to_dlpack(image)),
    "from_dlpack": np.from_dlpack,
    "asarray": np.asarray,
    "type": lambda image: type(image) is torch.Tensor,
    "object": Sample,
    "strides": lambda image: (image.stride(), image.is_contiguous(), image.storage_offset()),
    "randn_like": torch.randn_like,
    "sum": lambda image: image.float().sum(),
    "bernoulli": lambda image: torch.bernoulli(torch.full_like(image, 0.5, dtype=torch.float32)),
}


@pytest.mark.parametrize("transform", [TRAIN, BYTES], ids=["v1", "channels last"])
def test_dataset_that_uses_an_image_gets_torchvisions(transform: Any) -> None:
    functions = list(USES.values())
    expected = outcomes(transform, False, functions)
    for name, ours, theirs in zip(USES, outcomes(transform, True, functions), expected, strict=True):
        assert ours == theirs, name


# ---- all public functions of torch ----

# They would write files, wait, start processes, or change settings of this process.
_LEFT_OUT = (
    "set_ save load compile export seed deterministic autocast_ script fork wait share_memory import_ enable disable"
).split()
# Their results are uninitialised memory or addresses, differ from call to call, or depend on how memory is aligned.
_VOLATILE = "empty new resize fbgemm data_ptr lstsq set_rng rand_rng get_rng unique_id __hash__ id".split()
_MODULES = (
    torch,
    torch.nn.functional,
    torch.linalg,
    torch.fft,
    torch.special,
    torch.Tensor,
    torch.sparse,
    torch.nn.init,
    torch.nn.utils,
    torch.utils.data,
)
_FORMS: list[Callable[[Any], tuple[Any, ...]]] = [
    lambda image: (image,),
    lambda image: (image, image),
    lambda image: (image, 1),
    lambda image: (image, 0, 1),
    lambda image: (image, 2.0),
    lambda image: (image, (1, 2)),
    lambda image: ([image, image],),
]
_ALL_FORMS = "HEADRACE_EXAMPLES" in os.environ


def public_functions() -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for module in _MODULES:
        for name in sorted(vars(module)) if isinstance(module, types.ModuleType) else sorted(dir(module)):
            function = getattr(module, name, None)
            is_function = callable(function) and not isinstance(function, (type, types.ModuleType))
            if not is_function or name.startswith("_") or id(function) in seen:
                continue
            seen.add(id(function))
            if not any(word in name for word in (*_LEFT_OUT, *_VOLATILE)):
                yield f"{module.__name__}.{name}", function


def test_public_functions_of_torch_give_torchvisions() -> None:
    """Each function with the image alone; HEADRACE_EXAMPLES=1 gives it further arguments, too."""
    forms = _FORMS if _ALL_FORMS else _FORMS[:1]
    calls = list(itertools.product(public_functions(), forms))
    functions = [lambda image, f=function, form=form: f(*form(image)) for (_, function), form in calls]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcomes(TRAIN, False, functions)
        found = outcomes(TRAIN, True, functions)
    different = [name for ((name, _), _), ours, theirs in zip(calls, found, expected, strict=True) if ours != theirs]
    assert different == []
    assert len(calls) > 1000
    assert sum(isinstance(one, tuple) for one in expected) > 300


def test_deferred_tensor_never_gives_other_values() -> None:
    """C code may call a transform and use its result, which no one can see. So a deferred tensor itself has to give the
    same as an ordinary one, or to raise an exception."""
    # They ask for the exact class, which is another one, or return the tensor as it is.
    asks_for_class = {"nn.Parameter", "torch.as_tensor", "torch.asarray"}
    native = images.native(TRAIN)
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in (*public_functions(), *USES.items()):
            torch.default_generator.manual_seed(1)
            expected = outcome(function, TRAIN(Image.open(io.BytesIO(FILE)).convert("RGB")))
            with _deferred.batching():
                image = native(images.open(io.BytesIO(FILE)).convert("RGB"))
            torch.default_generator.manual_seed(1)
            found = outcome(lambda one, f=function: settled(f(one)), image)
            if found != expected and not isinstance(found, type):
                different.append(name)
    assert {name for name in different if "has_torch_function" not in name} <= {*asks_for_class, "type", "Parameter"}


def settled(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(settled, value)) if type(value) in (list, tuple) else value
    if isinstance(value, Sample):
        _deferred.settle(value.image)
    return _deferred.settle(value)


# ---- steps after the tail, and code after the transform ----


class Last:
    """A step of the user's that looks at what it gets."""

    def __call__(self, image: Any) -> Any:
        assert type(image) is torch.Tensor
        return torch.full_like(image, image.stride()[0]) + torch.rand_like(image)


def adds_noise_to_bytes() -> bool:
    """Says whether torchvision does that: 0.21 refuses."""
    try:
        return v2.functional.gaussian_noise(torch.zeros(1, 1, 1, dtype=torch.uint8)) is not None
    except ValueError:
        return False


FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
STEPS: dict[str, list[Any]] = {
    "GaussianNoise": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()],
    "noise on pure tensors": [v2.ToImage(), *FLOATS, v2.GaussianNoise()],
    "noise on bytes": [v2.PILToTensor(), v2.GaussianNoise(sigma=0.3)],
    "own step": [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Lambda(Last())],
    "normalized": [v2.ToImage(), *FLOATS[:1], v2.Normalize(MEAN, DEVIATION), v2.GaussianNoise()],
    "one channel": [v2.Grayscale(), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()],
    "v1 bytes": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Lambda(Last())],
    "v1 floats": [v1.ToTensor(), v1.Normalize(MEAN, DEVIATION), v1.Lambda(Last())],
    "v1 erasing": [v1.PILToTensor(), v1.RandomErasing(p=0.7, value="random")],
    "v2 erasing": [v2.ToImage(), *FLOATS, v2.RandomErasing(p=0.7, value="random")],
    "rotation": [v2.ToImage(), v2.RandomRotation(30)],
    "resize": [v2.ToImage(), v2.Resize((5, 6))],
    "blur": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianBlur(3)],
    "last": [v2.ToImage()],
}
if not adds_noise_to_bytes():
    del STEPS["noise on bytes"]


def composed(name: str, size: Any) -> Any:
    return (v1 if name.startswith("v1") else v2).Compose([v1.Resize(size), *STEPS[name]])


def transformed(transform: Any, image: Any, seed: int) -> Any:
    """Returns the result, or the class of the exception (of a blur, for an image of one row), and the next number."""
    torch.manual_seed(seed)
    try:
        result = described(transform(image.convert("RGB")))
    except RuntimeError as error:
        result = type(error)
    return result, float(torch.rand(1))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("size", [SIZE, (1, 7), (9, 1)], ids=str)
def test_step_after_the_tail_gets_torchvisions_strides(name: str, size: Any) -> None:
    transform = composed(name, size)
    native = images.native(transform)
    for seed in range(3):
        expected = transformed(transform, Image.open(io.BytesIO(FILE)), seed)
        assert transformed(native, images.open(io.BytesIO(FILE)), seed) == expected


class Folder(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Passes its images on."""

    def __init__(self, transform: Any, opened: Any) -> None:
        self.transform, self.opened = transform, opened

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.opened(io.BytesIO(FILE)).convert("RGB"))


class Finished(Folder):
    """Does something with its images."""

    def __init__(self, transform: Any, opened: Any, finish: Callable[[Any], Any]) -> None:
        super().__init__(transform, opened)
        self.finish = finish

    def __getitem__(self, index: int) -> Any:
        return self.finish(self.transform(self.opened(io.BytesIO(FILE)).convert("RGB")))


def batches(dataset: Any, loader_class: Any = DataLoader, **options: Any) -> list[Any]:
    torch.manual_seed(5)
    return [described(batch) for batch in loader_class(dataset, **{"batch_size": 4, **options})]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", STEPS)
def test_batches_have_torchs_strides_too(name: str, workers: int) -> None:
    transform = composed(name, SIZE)
    options = {"num_workers": workers}
    expected = batches(Folder(transform, Image.open), torch.utils.data.DataLoader, **options)
    assert batches(Folder(images.native(transform), images.open), threads=2, **options) == expected


@pytest.mark.parametrize("options", [{"batch_size": None}, {"collate_fn": list}], ids=["no batches", "list"])
def test_samples_have_torchs_strides_too(options: Any) -> None:
    for workers in (0, 1):
        expected = batches(Folder(BYTES, Image.open), torch.utils.data.DataLoader, num_workers=workers, **options)
        assert batches(Folder(images.native(BYTES), images.open), num_workers=workers, **options) == expected


def test_users_object_holds_an_ordinary_tensor() -> None:
    """With num_workers=0 the trainer gets the object itself, in which the loader does not look."""
    (samples,) = DataLoader(Finished(images.native(TRAIN), images.open, Sample), 8, collate_fn=list)
    assert {type(sample.image) for sample in samples} == {torch.Tensor}


def double(image: Any) -> Any:
    return image * 2


def test_report_names_the_place_that_uses_images() -> None:
    loader = DataLoader(Finished(images.native(TRAIN), images.open, double), 4, num_workers=2)
    list(loader)
    ((place, count),) = images.report(loader).alone.items()
    assert place.startswith("test_touched.py:")
    assert place.endswith(" (__getitem__)")
    assert count == images.report(loader).made == 8
    assert f"8 made one by one, without threads: {place} uses them" in str(images.report(loader))
    list(loader := DataLoader(Folder(images.native(TRAIN), images.open), 4, num_workers=1))
    assert images.report(loader).alone == {}


def test_python_that_is_not_known_makes_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = batches(Folder(TRAIN, Image.open), torch.utils.data.DataLoader)
    monkeypatch.setattr(passed_on, "VERSION", (3, 99))
    assert batches(Folder(images.native(TRAIN), images.open)) == expected
    loader = DataLoader(Folder(images.native(TRAIN), images.open), 4, num_workers=1)
    list(loader)
    ((place, count),) = images.report(loader).alone.items()
    assert place.startswith("CPython 3.99 is not known, so test_touched.py:") and count == 8


def test_step_that_is_added_gets_an_ordinary_tensor() -> None:
    """After native(): at the end of its Compose, and in another Compose around it."""
    seen: list[type] = []

    def look(image: Any) -> Any:
        seen.append(type(image))
        return image

    native = images.native(v1.Compose([v1.Resize(SIZE), v1.ToTensor()]))
    outer = v1.Compose([images.native(TRAIN), v1.Lambda(look)])
    native.transforms.append(v1.Lambda(look))
    for transform in (native, outer):
        list(DataLoader(Folder(transform, images.open), 4))
    assert seen == [torch.Tensor] * 16


def test_hook_of_a_module_gets_an_ordinary_tensor() -> None:
    seen: list[type] = []
    native = images.native(v2.Compose([v2.Resize(SIZE), v2.PILToTensor()]))
    native.register_forward_hook(lambda module, inputs, result: seen.append(type(result)))
    list(DataLoader(Folder(native, images.open), 4))
    assert seen == [torch.Tensor] * 8


class Remembered(Folder):
    """lru_cache, which is C code, keeps samples from batch to batch."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform, images.open)
        self.made = functools.lru_cache(maxsize=None)(self.make)
        self.seen: list[type] = []

    def make(self, index: int) -> Any:
        return self.transform(self.opened(io.BytesIO(FILE)).convert("RGB"))

    def __getitem__(self, index: int) -> Any:
        if index >= 4:
            self.seen.append(type(self.made(index - 4)))
        return self.made(index % 4), " ".join(one.__name__ for one in self.seen)


@pytest.mark.parametrize("workers", [0, 1])
def test_kept_results_are_ordinary_in_later_batches(workers: int) -> None:
    context = "fork" if workers else None  # a cache of functools cannot be pickled
    dataset = Remembered(images.native(TRAIN))
    first, second = DataLoader(dataset, 4, num_workers=workers, multiprocessing_context=context)
    assert torch.equal(first[0], second[0])
    assert second[1][-1] == "Tensor Tensor Tensor Tensor"


class Plain(Folder):
    """The usual ways in which datasets pass an image on."""

    def __getitem__(self, index: int) -> Any:
        image = self.transform(self.opened(io.BytesIO(FILE)).convert("RGB"))
        sample = {"image": image, "views": [self.transform(self.opened(io.BytesIO(FILE))) for _ in range(2)]}
        sample["name"] = str(index)
        return sample


class Own(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset, with what its __getitem__ does."""

    def __init__(self, get: Callable[[Any, int], Any], base: Any = None) -> None:
        self.get, self.base = get, base
        self.transform, self.target_transform = images.native(TRAIN), None

    def __len__(self) -> int:
        return 4

    def load(self) -> Any:
        return images.open(io.BytesIO(FILE)).convert("RGB")

    def __getitem__(self, index: int) -> Any:
        return self.get(self, index)


class Pair(NamedTuple):
    image: Any
    label: int


def with_label(own: Any, index: int) -> Any:
    image, label = own.load(), index
    if own.transform is not None:
        image = own.transform(image)
    if own.target_transform:
        label = own.target_transform(label)
    return image, torch.tensor(label)


def in_a_block(own: Any, index: int) -> Any:
    with io.BytesIO(FILE) as file:
        try:
            image = own.transform(images.open(file).convert("RGB"))
        except ValueError:
            return own[index + 1]
    return image, index


def as_dict(own: Any, index: int) -> Any:
    sample = {"image": own.load(), "label": index}
    if own.transform:
        sample["image"] = own.transform(sample["image"])
    return sample


def two_views(own: Any, index: int) -> Any:
    image = own.load()
    return [own.transform(image) for _ in range(2)], index


def wrapped_as_dict(own: Any, index: int) -> Any:
    image, label = own.base[index]
    return {"image": image, "label": label}


def common_datasets(folder: Path) -> dict[str, Any]:
    """Returns datasets as most programs have them."""
    (folder / "one").mkdir()
    for name in "abcd":
        (folder / "one" / f"{name}.jpg").write_bytes(FILE)
    first, second = (
        torchvision.datasets.ImageFolder(str(folder), images.native(transform), loader=images.load_rgb)
        for transform in (TRAIN, v2.Compose([v2.Resize(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]))
    )
    own: list[Callable[[Any, int], Any]] = [with_label, in_a_block, as_dict, two_views]
    wrappers: dict[str, Callable[[Any, int], Any]] = {
        "wrapped as a dict": wrapped_as_dict,
        "wrapped as a named tuple": lambda own, index: Pair(own.base[index][0], label=index),
        "wrapped with its index": lambda own, index: (*own.base[index], index),
        "wrapped with its path": lambda own, index: own.base[index] + (own.base.imgs[index][0],),
    }
    return {
        "ImageFolder": first,
        "ImageFolder, v2": second,
        "Subset": torch.utils.data.Subset(first, [3, 1, 2, 0]),
        "ConcatDataset": torch.utils.data.ConcatDataset([first, second]),
        **{get.__name__: Own(get) for get in own},
        **{name: Own(get, first) for name, get in wrappers.items()},
    }


def test_common_datasets_have_images_made_together(tmp_path: Path) -> None:
    for name, dataset in common_datasets(tmp_path).items():
        before = images.report()
        for _ in (loader := DataLoader(dataset, 2)):
            pass
        after = images.report(loader)
        assert (name, after.alone) == (name, before.alone)
        assert after.made >= before.made + 4


def test_images_that_are_passed_on_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker makes them in the memory of the batch, and has no other way here."""
    dataset = Plain(images.native(TRAIN), images.open)
    dataset[0]
    expected = batches(Plain(TRAIN, Image.open), torch.utils.data.DataLoader)

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("an image was made outside the batch's memory")

    monkeypatch.setattr(_deferred._tables, "make", refuse)
    found = batches(dataset, num_workers=1, multiprocessing_context="fork")
    assert str(found) == str(expected)
