# SPDX-License-Identifier: Apache-2.0
"""Sees that a loader spends its time on images, and says what headrace.images would give, measured on its samples."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from headrace._base import lookup
from headrace._samples.random_numbers import generators_kept
from headrace.doctor.observations import Observation

_SAMPLES = 24  # a few, spread over the dataset
_WORTH_IT = 1.15  # times as fast
_TRANSFORM = "transform"  # the attribute of torchvision's datasets, and of most others


def check_images(loader: Any) -> list[Observation]:
    """Returns an observation if the samples of the loader's dataset open images with Pillow, else none. Exceptions of
    the dataset are left to the loader's own run."""
    dataset = loader.dataset
    if "PIL.Image" not in sys.modules or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return []
    try:
        return _measure(dataset)
    except Exception:
        return []


def _measure(dataset: Any) -> list[Observation]:
    from headrace import images
    from headrace.images import _check, _selftest

    if images.installed() or not _selftest.verdict().decode:
        return []
    size = len(dataset)
    count = min(_SAMPLES, size)
    indices = [number * size // count for number in range(count)]
    with generators_kept(), _opened_by_headrace():
        opened = _check.compare(dataset, indices)
        if not opened.made or opened.differ:
            return []
        with _native(dataset) as is_native:
            native = _check.compare(dataset, indices) if is_native else None
    if native is not None and (native.differ or native.speedup < opened.speedup):
        native = None
    return [_observe(opened, native)]


def _observe(opened: Any, native: Any) -> Observation:
    best = opened if native is None else native
    per = 1e3 / opened.samples
    text = (
        f"A sample takes {opened.pillow_s * per:.2f} ms of CPU time with Pillow. With the images of headrace it takes "
    )
    text += f"{opened.headrace_s * per:.2f} ms"
    if native is not None:
        text += f", and with headrace.images.native around the dataset's transform {native.headrace_s * per:.2f} ms"
    text += f". The samples are equal to the last bit ({opened.samples} were compared)."
    is_worth_it = best.speedup >= _WORTH_IT
    fix = "headrace.images.open(path) for PIL.Image.open(path), or loader=headrace.images.load_rgb"
    if native is not None:
        fix += ", and transform=headrace.images.native(transform)"
    return Observation(
        "images",
        "note",
        f"{best.speedup:.1f} times as fast with headrace.images" if is_worth_it else "as fast with Pillow",
        f"{opened.samples} samples",
        text,
        fix if is_worth_it else "",
    )


@contextlib.contextmanager
def _opened_by_headrace() -> Iterator[None]:
    from headrace import images

    images.install()
    try:
        yield
    finally:
        images.uninstall()


@contextlib.contextmanager
def _native(dataset: Any) -> Iterator[bool]:
    """Gives the dataset native transforms while it is active, if it has an attribute that can be replaced. The datasets
    of torchvision have a second reference to it in `transforms`."""
    from headrace.images._native import native_or_same

    places = [(dataset, _TRANSFORM), (lookup.attribute(dataset, "transforms"), _TRANSFORM)]
    kept = [
        (owner, name, vars(owner)[name]) for owner, name in places if hasattr(owner, "__dict__") and name in vars(owner)
    ]
    kept = [(owner, name, value) for owner, name, value in kept if callable(value)]
    for owner, name, value in kept:
        setattr(owner, name, native_or_same(value))
    try:
        yield bool(kept)
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
