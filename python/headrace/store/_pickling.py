# SPDX-License-Identifier: Apache-2.0
"""Pickles views, for other processes and for files.

multiprocessing's pickler sends a handle: the descriptor of an image in memory, or the path and digest of a file. Any
other pickle may be read by any process at any time: it contains the image itself, or the path and digest of its file.
Pickles in users' files contain the names of this module and of its functions, so never rename them.
"""

from __future__ import annotations

import collections.abc
import copyreg
import errno
import os
import weakref
from multiprocessing import context, reduction
from typing import Any

from headrace import _core
from headrace._core import Image, StoreError
from headrace._start import transport

_images: weakref.WeakValueDictionary[bytes, Image] = weakref.WeakValueDictionary()  # by id: each is mapped once
# The images that this process got when it was started. All handles of one have the same descriptor, which is read once.
_inherited: dict[bytes, Image] = {}
# Up to this size, an embedded image is loaded into ordinary memory: a pickle may have many, and descriptors are few.
_SMALL_BYTES = 1 << 20
_sent_descriptors: weakref.WeakKeyDictionary[Any, dict[bytes, Any]] = (
    weakref.WeakKeyDictionary()
)  # by the process that is being started


def remember(image: Image, path: str | None) -> None:
    image.path = path
    _images[image.id] = image


def open_file(path: str, verify: bool, trust: bool) -> Image:
    image = _core.open_image(os.fsencode(path), verify, trust)
    known = _images.get(image.id)
    if known is not None and known.path == path and known.trusted == trust:
        return known
    remember(image, path)
    return image


# ---- images ----


def _attach(identity: bytes, fd: int, what: str) -> Image:
    return _take(_core.attach_image(fd, "frozen data", True), identity, what)


def _take(image: Image, identity: bytes, what: str) -> Image:
    if image.id != identity:
        raise StoreError(f"headrace: {what} is not the frozen data that was sent; send it again")
    remember(image, None)
    return image


def _load_inherited(identity: bytes, sent: Any) -> Image:
    """Loads an image from the process that started this one."""
    known = _inherited.get(identity)
    if known is None:
        fd = sent.detach()
        try:
            known = _images.get(identity) or _attach(identity, fd, "an inherited descriptor")
        finally:
            os.close(fd)
        _inherited[identity] = known
    return known


def _load_sent(identity: bytes, sent: Any) -> Image:
    """Loads an image from a process that sent it through a queue or pipe, which keeps the descriptor for one fetch."""
    known = _images.get(identity)
    try:
        fd = sent.detach()
    except (OSError, EOFError) as error:
        if known is not None:
            return known
        raise StoreError(
            f"headrace: the frozen data that another process sent cannot be fetched from it ({error}); it must live "
            "until its message has been received, once"
        ) from error
    try:
        return known or _attach(identity, fd, "what another process sent")
    finally:
        os.close(fd)


def _load_file(path: str, digest: bytes, trust: bool) -> Image:
    for known in list(_images.values()):
        if known.path == path and known.digest == digest and known.trusted == trust:
            return known
    try:
        image = open_file(path, False, trust)
    except FileNotFoundError as error:
        raise StoreError(
            f"headrace: the frozen file {path}, which this pickle refers to, is missing; bring it there"
        ) from error
    if image.digest != digest:
        raise StoreError(
            f"headrace: {path} is another frozen file than this pickle refers to; bring the right one there"
        )
    return image


def _load_embedded(data: bytes, identity: bytes) -> Image:
    known = _images.get(identity)
    if known is not None:
        return known
    if len(data) <= _SMALL_BYTES:
        return _take(_core.copy_image(data, True), identity, "this pickle")
    try:
        with transport.memory("headrace-frozen") as file:
            file.write(data)
            file.flush()
            return _attach(identity, file.fileno(), "this pickle")
    except OSError as error:
        if error.errno != errno.EFBIG:  # larger than the limit on file sizes, which does not apply to ordinary memory
            raise
        return _take(_core.copy_image(data, True), identity, "this pickle")


def _load_part(data: bytes, identity: bytes, small_items: int = 0) -> Any:
    image = _load_embedded(data, identity)
    image.small_items = small_items
    return image.root()


def _descriptor(image: Image) -> int:
    """Returns the descriptor of an image in memory. If it has none, makes one that lives as long as the image."""
    if image.fd >= 0:
        return image.fd
    if not hasattr(image, "file"):
        file = transport.memory("headrace-frozen")
        buffer: Any = image
        file.write(buffer)
        file.flush()
        image.file = file
        weakref.finalize(image, file.close)
    return image.file.fileno()


def _sent_descriptor(image: Image) -> Any:
    """Returns the image's descriptor, duplicated once per process that is being started."""
    popen = context.get_spawning_popen()
    sent = _sent_descriptors.setdefault(popen, {})
    if image.id not in sent:
        sent[image.id] = reduction.DupFd(_descriptor(image))
    return sent[image.id]


def _with_state(image: Image, function: Any, *arguments: Any) -> Any:
    """Returns a reduction that sets how small containers of the image are read."""
    state = (None, {"small_items": image.small_items}) if image.small_items else None
    return function, arguments, state


def _reduce_image_by_handle(image: Image) -> Any:
    if hasattr(image, "handle"):  # an object of a cache
        return image.handle
    if image.path is not None:
        return _load_file, (image.path, image.digest, image.trusted)
    if context.get_spawning_popen() is not None:
        return _with_state(image, _load_inherited, image.id, _sent_descriptor(image))
    return _with_state(image, _load_sent, image.id, reduction.DupFd(_descriptor(image)))


def _reduce_image_plainly(image: Image) -> Any:
    if image.path is not None:
        return _load_file, (image.path, image.digest, image.trusted)
    buffer: Any = image
    return _with_state(image, _load_embedded, bytes(buffer), image.id)


# ---- views ----


def _view(image: Image, value: int, part: slice | None) -> Any:
    view = image.at(value)
    return view if part is None else view[part]


def _reduce_by_handle(view: Any) -> Any:
    image, value, part = _core.where(view)
    return _view, (image, value, part)


def reduce_plainly(view: Any) -> Any:
    """Reduces a view for any pickle. Of an image in memory, it includes only the part that the view needs."""
    image, value, part = _core.where(view)
    if image.path is None and (value != image.root_value or part is not None):
        small, _ = _core.freeze(view, None, True)
        buffer: Any = small
        # not the image object: the memo of the pickler would keep every part alive
        return _load_part, (bytes(buffer), small.id, *([image.small_items] if image.small_items else []))
    return _view, (image, value, part)


copyreg.pickle(Image, _reduce_image_plainly)
reduction.ForkingPickler.register(Image, _reduce_image_by_handle)
for _type, _abc in (
    (_core.FrozenList, collections.abc.Sequence),
    (_core.FrozenTuple, collections.abc.Sequence),
    (_core.FrozenDict, collections.abc.Mapping),
    (_core.FrozenSet, collections.abc.Set),
    (_core.FrozenKeys, collections.abc.KeysView),
    (_core.FrozenItems, collections.abc.ItemsView),
    (_core.FrozenValues, collections.abc.ValuesView),
):
    _abc.register(_type)
    if _type not in (_core.FrozenKeys, _core.FrozenItems, _core.FrozenValues):
        reduction.ForkingPickler.register(_type, _reduce_by_handle)
