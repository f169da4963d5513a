# SPDX-License-Identifier: Apache-2.0
"""torchvision's ColorJitter, Grayscale, RandomGrayscale and GaussianBlur for lazy images: the same draws, and noted
steps.

torchvision's own classes reach into the pixels. The classes here are subclasses of exactly those, made when the first
one is replaced, so that torchvision need not be installed.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace._base.warn import warn_user
from headrace.images import _lazy, _steps
from headrace.images._proof import untouched
from headrace.images._selftest import verdict

_NOTED: list[Callable[[float], bytes]] = [_steps.brightness, _steps.contrast, _steps.saturation]
_HUE = 3


def _can_note(image: Any) -> bool:
    """Returns True if colour steps can be noted. The file of an image that was opened is read."""
    if isinstance(image, _lazy.LazyJpeg):
        image.load()
    return _lazy.note_of(image) is not None and verdict().colour


def _adjust(image: Any, number: int, factor: float | None) -> Any:
    """Notes one of the four adjustments, numbered as in torchvision; none if there is no factor. Pillow does one whose
    factor is out of range for C, and those after it."""
    if factor is None or (number == _HUE and image.mode == "L"):
        return image
    is_lazy = _lazy.note_of(image) is not None
    if number == _HUE:
        shift = int(factor * 255) & 255
        return _lazy.then(image, _steps.hue(shift)) if is_lazy else _steps.shift_hue(image, shift)
    if is_lazy and 0 <= factor <= _steps.MOST_FACTOR:
        return _lazy.then(image, _NOTED[number](factor))
    return _steps.ENHANCERS[number](image).enhance(factor)


def _make_grey(image: Any, channels: int) -> Any:
    grey = image.convert("L")
    return grey.convert("RGB") if channels == 3 else grey


class _Noting:
    """A base of the subclasses: they are pickled by their torchvision class, and contain its attributes."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (type(self).__bases__[1], self.__dict__)


class _JitterV1(_Noting):
    def forward(self, image: Any) -> Any:
        if not _can_note(image):
            return super().forward(image)  # type: ignore[misc]
        order, *factors = self.get_params(self.brightness, self.contrast, self.saturation, self.hue)  # type: ignore[attr-defined]
        for number in order.tolist():
            image = _adjust(image, number, factors[number])
        return image


class _JitterV2(_Noting):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not _can_note(inpt):
            return super().transform(inpt, params)  # type: ignore[misc]
        names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
        for number in params["fn_idx"]:
            inpt = _adjust(inpt, int(number), params[names[int(number)]])
        return inpt


class _GreyV1(_Noting):
    def forward(self, image: Any) -> Any:
        if not _can_note(image):
            return super().forward(image)  # type: ignore[misc]
        return _make_grey(image, self.num_output_channels)  # type: ignore[attr-defined]


class _GreyV2(_Noting):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not _can_note(inpt):
            return super().transform(inpt, params)  # type: ignore[misc]
        return _make_grey(inpt, self.num_output_channels)  # type: ignore[attr-defined]


class _RandomGreyV1(_Noting):
    def forward(self, image: Any) -> Any:
        if not _can_note(image):
            return super().forward(image)  # type: ignore[misc]
        is_grey = bool(torch.rand(1) < self.p)  # type: ignore[attr-defined]
        return _make_grey(image, len(image.getbands())) if is_grey else image


class _RandomGreyV2(_Noting):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not _can_note(inpt):
            return super().transform(inpt, params)  # type: ignore[misc]
        return _make_grey(inpt, params["num_input_channels"])


# ---- blur: its weights are those that torchvision computes ----


def _functions_of(is_v2: bool) -> tuple[Any, Any]:
    """Returns torchvision's functions that blur an image, and that compute the weights."""
    if is_v2:
        from torchvision.transforms.v2 import functional
        from torchvision.transforms.v2.functional._misc import _get_gaussian_kernel2d
    else:
        from torchvision.transforms import functional
        from torchvision.transforms._functional_tensor import _get_gaussian_kernel2d
    return functional.gaussian_blur, _get_gaussian_kernel2d


def _noted_blur(image: Any, sizes: Any, sigmas: Any, weights_of: Any) -> Any:
    note = _lazy.note_of(image)
    assert note is not None
    weights = weights_of(list(sizes), list(sigmas), torch.float32, torch.device("cpu")).contiguous().numpy().tobytes()
    width, height = sizes
    step = _steps.blur(width, height, len(note.weights) // _steps.FLOAT_BYTES)
    return _lazy.then(image, step, weights)


@cache
def _blur_is_exact(is_v2: bool) -> bool:
    """Compares blurs with torchvision's, whose sums are rounded as torch rounds them on this processor."""
    try:
        blur, weights_of = _functions_of(is_v2)
        file = io.BytesIO()
        Image.linear_gradient("L").resize((93, 61)).rotate(33).save(file, "JPEG", quality=30)
        for mode in ("RGB", "L"):
            for size, sigma in ((3, 0.5), (9, 1.3), (23, 0.4), (23, 2.0)):
                plain: Any = JpegImageFile(io.BytesIO(file.getvalue()))
                image = _lazy_file(io.BytesIO(file.getvalue())).convert(mode)
                expected = blur(plain.convert(mode), [size, size], [sigma, sigma])
                if _noted_blur(image, (size, size), (sigma, sigma), weights_of).tobytes() != expected.tobytes():
                    raise ValueError(f"a blur of mode {mode} differs")
    except Exception as error:
        warn_user(
            f"headrace: images: in the self-test, a blur did not give the pixels of torchvision ({error}), so "
            "torchvision does this. Pixels stay right; they are made at its speed."
        )
        return False
    return True


def _lazy_file(file: Any) -> Any:
    image: Any = JpegImageFile(file)
    _lazy.make_lazy(image)
    image.load()
    return image


def _can_blur(image: Any, sizes: Any, is_v2: bool) -> bool:
    if not _can_note(image) or not _blur_is_exact(is_v2):
        return False
    return bool(all(size // 2 < side for size, side in zip(sizes, image.size, strict=True)))


class _BlurV1(_Noting):
    def forward(self, image: Any) -> Any:
        if not _can_blur(image, self.kernel_size, False):  # type: ignore[attr-defined]
            return super().forward(image)  # type: ignore[misc]
        sigma = self.get_params(*self.sigma)  # type: ignore[attr-defined]
        return _noted_blur(image, self.kernel_size, (sigma, sigma), _functions_of(False)[1])  # type: ignore[attr-defined]


class _BlurV2(_Noting):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not _can_blur(inpt, self.kernel_size, True):  # type: ignore[attr-defined]
            return super().transform(inpt, params)  # type: ignore[misc]
        return _noted_blur(inpt, self.kernel_size, params["sigma"], _functions_of(True)[1])  # type: ignore[attr-defined]


_V1, _V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2._color"
_KINDS: dict[tuple[str, str], type] = {
    (_V1, "ColorJitter"): _JitterV1,
    (_V2, "ColorJitter"): _JitterV2,
    (_V1, "Grayscale"): _GreyV1,
    (_V2, "Grayscale"): _GreyV2,
    (_V1, "RandomGrayscale"): _RandomGreyV1,
    (_V2, "RandomGrayscale"): _RandomGreyV2,
    (_V1, "GaussianBlur"): _BlurV1,
    ("torchvision.transforms.v2._misc", "GaussianBlur"): _BlurV2,
}


@cache
def _subclass_of(base: Any) -> Any:
    kind = _KINDS.get((base.__module__, base.__qualname__))
    return None if kind is None else type(f"Noting{base.__name__}", (kind, base), {"__module__": __name__})


def noting(transform: Any) -> Any:
    """Returns a copy of the transform that notes its steps; None if it is not exactly one of torchvision's."""
    cls: Any = type(transform)
    kind = _subclass_of(cls)
    return None if kind is None or not untouched.is_as_written(cls) else _fill(kind, transform.__dict__)


def _restore(base: type, attributes: dict[str, Any]) -> Any:
    return _fill(_subclass_of(base), attributes)


def _fill(kind: Any, attributes: dict[str, Any]) -> Any:
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made
